"""Changes of one line of a program's source, and the program as it would be with them.

A change is applied to the text of a file, as the user would do it.  To compile a job with it, the
functions of that file temporarily get the code that the changed text compiles to.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Literal, TypeAlias

Action: TypeAlias = Literal["after", "around", "replace", "shell"]
"""Where a line goes: after a statement, around it, in its place, or into the environment."""

INDENT = "    "


@dataclass(frozen=True, slots=True)
class Edit:
    """One line of code for a program."""

    action: Action  # what the line does to the statement
    code: str  # the line, without its indentation
    file: str = ""  # the file of the statement; empty for a line of the shell
    line: int = 0  # of the statement
    end: int = 0  # the last line of the statement

    @property
    def where(self) -> str:
        """The place as text, such as ``after train.py:12``."""
        if self.action == "shell":
            return "in the shell"
        place = {"after": f"after {self.file}:{self.end}", "around": f"around {self.file}"}
        lines = f":{self.line}" + (f"-{self.end}" if self.end > self.line else "")
        return place.get(self.action, f"at {self.file}") + (lines if self.action != "after" else "")

    def applied(self, text: str) -> str:
        """Return the text of the file with the change.

        >>> print(Edit("around", "with scope:", "net.py", 1, 1).applied("x = f(x)"))
        with scope:
            x = f(x)
        """
        lines = text.splitlines()
        own = lines[self.line - 1 : self.end]
        indent = own[0][: len(own[0]) - len(own[0].lstrip())]
        code = [indent + self.code]
        if self.action == "after":
            code = [*own, *code]
        elif self.action == "around":
            code += [INDENT + line for line in own]
        return "\n".join([*lines[: self.line - 1], *code, *lines[self.end :]])


def text_of(file: str) -> str:
    """Return the text of a file of the program; empty if it is not readable, as in notebooks."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


@contextmanager
def edited(
    edit: Edit, find: Callable[[str], Sequence[FunctionType]] | None = None
) -> Iterator[None]:
    """Give the functions of a file the code that they have with a change, in a ``with`` block.

    Args:
        find: returns the functions of a file; `functions_of` if None.

    Raises:
        SyntaxError, ValueError: the change is not applicable there.
    """
    text = text_of(edit.file)
    after = _codes(_compiled(edit.applied(text), edit.file))
    before = _codes(_compiled(text, edit.file))
    changed = {_key(old): new for old, new in zip(before, after, strict=True)}
    functions = [f for f in (find or functions_of)(edit.file) if _key(f.__code__) in changed]
    kept = [(function, function.__code__) for function in functions]
    try:
        for function, code in kept:
            function.__code__ = changed[_key(code)]
        yield
    finally:
        for function, code in kept:
            function.__code__ = code


def functions_of(file: str) -> list[FunctionType]:
    """Return the functions that a file defines and that exist, from among all objects."""
    found = (f for f in gc.get_objects() if type(f) is FunctionType)
    return [f for f in found if f.__code__.co_filename == file]


def _compiled(text: str, file: str) -> CodeType:
    return compile(ast.parse(text, file), file, "exec", dont_inherit=True)


def _codes(code: CodeType) -> list[CodeType]:
    """Return the code of all functions of a module, in the order in which it defines them."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [found for each in inner for found in (each, *_codes(each))]


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno
