"""Readers that break the rules of the harness, each at a few cases, for its own tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.errors import DataError
from fuzzing.target import Target
from fuzzing.worker import MIB, Limits, work

LIMITS = Limits(seconds=0.5, memory=64 * MIB)
AT = 7
"""The case that goes wrong; in even ones before and behind it an input is refused."""


def _raise() -> None:
    raise KeyError("a raw error")


def _loop() -> None:
    while True:
        pass


def _take_long() -> None:
    until = time.process_time() + 0.6
    while time.process_time() < until:
        pass


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _use_memory() -> None:
    np.ones(100 * MIB, np.uint8).sum()


def _run_out_of_memory() -> None:
    try:
        np.ones(1 << 46, np.uint8)
    except MemoryError as error:
        raise DataError("reading", found="too much") from error


class _UnprintableError(DataError):
    """An error with a text of its own."""

    def __str__(self) -> str:
        return "\ud800"


def _raise_unprintable() -> None:
    raise _UnprintableError("reading")


MISTAKES: dict[str, tuple[Callable[[], None], str]] = {
    "raises": (_raise, "KeyError at misbehaving.py"),
    "loops": (_loop, "no end after"),
    "slow": (_take_long, "over 0.5 s"),
    "crashes": (_crash, "the process ended with status -9"),
    "memory": (_use_memory, "over 64 MiB"),
    "hidden": (_run_out_of_memory, "memory ran out"),
    "unprintable": (_raise_unprintable, "an error text that cannot be printed"),
}
"""What a reader does at one case, and what the harness has to say about it."""


def _target(name: str, mistake: Callable[[], None]) -> Target:
    def open_it(folder: Path) -> Callable[[bytes, int], object]:
        def read(data: bytes, number: int) -> None:
            if data != b"sound" and number == AT:
                mistake()
            elif data != b"sound" and number % 2 == 0:
                raise DataError("reading", found=repr(data))

        return read

    return Target(name, lambda: [b"sound"], open_it, lambda data, rng: rng.randbytes(9))


TARGETS = {name: _target(name, mistake) for name, (mistake, _) in MISTAKES.items()}


def work_badly(connection: Any, board: Any, limits: Limits, folder: str) -> None:
    """What a worker with these readers runs."""
    work(connection, board, limits, folder, TARGETS)
