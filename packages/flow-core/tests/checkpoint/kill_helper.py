"""Save checkpoints until killed, or exit at a given line of the save; run by test_kill."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from flow_core.builtin.formats_plugin import FORMATS
from flow_core.checkpoint import save, swap
from flow_core.checkpoint import store as watched


def version(number: int) -> dict[str, Any]:
    """Return variables that encode their version; their number differs between versions."""
    names = [f"block{i}/weight" for i in range(4 + number % 3)]
    return {name: np.full((50, 7), number, np.float32) for name in names}


def loop(path: str, first: str = "1", step: str = "1") -> None:
    swap.sync = lambda _: None  # for speed: no power failure is simulated
    if Path(path).name == "plain":  # without digests, as OneFlow writes checkpoints
        watched.write_sums = lambda _: None
    for number in count(int(first), int(step)):
        save(path, version(number), FORMATS, overwrite=True)
        if number == int(first):
            sys.stdout.write("saved\n")
            sys.stdout.flush()


def traced(path: Path, seen: Callable[[FrameType], None]) -> None:
    """Save version 2 and call ``seen`` for each executed line of the package."""
    folder = os.path.dirname(watched.__file__)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(folder):
            return None
        if event == "line":
            seen(frame)
        return trace

    sys.settrace(trace)
    save(path, version(2), overwrite=True)
    sys.settrace(None)


def dying_save(path: Path, line: int) -> None:
    """Save version 2 and exit once ``line`` lines of the package have run."""
    left = count(line, -1)

    def seen(_: FrameType) -> None:
        if next(left) <= 0:
            os._exit(9)

    traced(path, seen)
    os._exit(0)


def places(path: Path, which: str) -> list[int]:
    """Return the lines to exit at: every executed line, or the first and last run of each line."""
    ran: list[tuple[str, int]] = []
    save(path, version(1))
    traced(path, lambda frame: ran.append((frame.f_code.co_filename, frame.f_lineno)))
    if which == "all":
        return [*range(len(ran) + 1)]
    last = {line: number for number, line in enumerate(ran)}
    first = {line: len(ran) - 1 - number for number, line in enumerate(reversed(ran))}
    return sorted({*first.values(), *last.values(), len(ran)})


def lines(root: str, how: str, which: str) -> None:
    if how == "two-steps":
        swap.exchange = lambda *_: False
    swap.sync = lambda _: None  # for speed: no power failure is simulated
    for line in places(Path(root) / "all" / "model", which):
        path = Path(root) / f"at{line}" / "model"
        save(path, version(1))
        child = os.fork()
        if child == 0:
            dying_save(path, line)
        finished = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        sys.stdout.write(f"{path.relative_to(root)} {'finished' if finished else 'killed'}\n")


if __name__ == "__main__":
    {"loop": loop, "lines": lines}[sys.argv[1]](*sys.argv[2:])
