"""Count what Python does; unlike seconds of the processor, the numbers do not grow with the load.

As a program, ``python -I work.py CODE...`` runs pieces of code in order and prints a line of JSON
for each, with the fields of `Work`.
"""

from __future__ import annotations

import cProfile
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Work:
    """What a piece of code has done.

    Attributes:
        calls: number of calls, of functions of Python and of C, in the thread of the code.
        code: bytes of the code objects that all threads have executed as modules.
    """

    calls: int
    code: int

    def __add__(self, other: Work) -> Work:
        return Work(self.calls + other.calls, self.code + other.code)

    def within(self, most: Work) -> bool:
        """Return whether neither number is larger than that of ``most``."""
        return self.calls <= most.calls and self.code <= most.code


def calls(function: Callable[[], object]) -> int:
    """Return the number of calls that a function makes in this thread, of Python and of C."""
    profile = cProfile.Profile()
    profile.runcall(function)
    return sum(entry.callcount for entry in profile.getstats())


def bytes_of(code: CodeType) -> int:
    """Return the size of a code object with those of its functions and classes."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return len(code.co_code) + sum(map(bytes_of, inner))


def measured(pieces: list[str]) -> Iterator[Work]:
    """Run pieces of code in one namespace, and yield the work of each."""
    executed: list[CodeType] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec":
            executed.append(arguments[0])

    sys.addaudithook(note)
    names: dict[str, Any] = {"__name__": "__main__"}
    for piece in pieces:
        compiled = compile(piece, "work", "exec")
        executed.clear()

        def run(compiled: CodeType = compiled) -> None:
            with redirect_stdout(io.StringIO()), suppress(SystemExit):
                exec(compiled, names)

        found = calls(run)
        yield Work(found, sum(map(bytes_of, {id(code): code for code in executed}.values())))


if __name__ == "__main__":
    for work in measured(sys.argv[1:]):
        print(json.dumps(asdict(work)))
