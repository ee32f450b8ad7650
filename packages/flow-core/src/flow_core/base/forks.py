"""Forked processes: a child has a copy of its parent's memory, and only the thread that forked.

Whatever else belongs to a session stays with the parent: the threads that run steps, make batches
and write files, devices, and connections to other processes.  Locks that these threads held stay
locked in the child for good.  So what uses them is told `in_child`, before anything else runs
there, and refuses to work from then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from flow_core.base.errors import ForkError, user_line


def in_child(call: Callable[[], object]) -> None:
    """Have a function called first thing in every process that is forked off this one.

    It must not raise, nor wait for a lock.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


class Owned(Protocol):
    """What a process that is forked off may have to leave to its parent."""

    def leave_to_parent(self) -> bool:
        """In a forked process: give up what is in use; whether anything was."""


_owned: WeakSet[Owned] = WeakSet()
_left: list[Owned] = []
_process = [os.getpid()]
_parent: list[int] = []


def owned(thing: Owned) -> None:
    """Have something given up in processes that are forked off this one."""
    _owned.add(thing)


def check_process() -> None:
    """Refuse the use of flow where it is the parent's.

    Raises:
        ForkError: this process was forked from one that had a session in use.
    """
    if _parent:
        raise refusal("using flow in a forked process", _parent[0])


def _leave_to_parent() -> None:
    """In a forked process: what is in use stays as it is, and nobody gets it any more."""
    _left.extend([thing for thing in _owned if thing.leave_to_parent()])
    if _left and not _parent:
        _parent[:] = _process
    _process[:] = [os.getpid()]


in_child(_leave_to_parent)


def refusal(attempted: str, parent: int) -> ForkError:
    """An error about the use of what belongs to the process that this one was forked from.

    Args:
        attempted: what the program tried.
        parent: the number of that process.
    """
    return ForkError(
        attempted,
        at=user_line(2),
        found=f"process {os.getpid()}, a fork of process {parent}, which has the session's threads "
        "and devices",
        allowed=f"use of flow in process {parent} only; a process that is forked before the first "
        "job is compiled has a session of its own",
        hint='start processes that run jobs by multiprocessing.get_context("spawn"); those that '
        "only prepare data with numpy may be forked",
    )
