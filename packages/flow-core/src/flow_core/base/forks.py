"""Forked processes: a child has a copy of its parent's memory, but only the forking thread.

The other resources of a session stay with the parent: threads that run steps, load batches and
write files, devices, and connections to other processes.  Locks that those threads held stay
locked in the child.  Objects that use them therefore register with `in_child` or `owned`, and
refuse to work in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from flow_core.base.errors import ForkError


def in_child(call: Callable[[], object]) -> None:
    """Register a function to call at the start of every process forked from this one.

    It must neither raise nor wait for a lock.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


class Owned(Protocol):
    """An object whose resources stay with the parent of a forked process."""

    def leave_to_parent(self) -> bool:
        """Abandon the resources in a forked process; return whether any were in use."""


_owned: WeakSet[Owned] = WeakSet()
_left: list[Owned] = []
_process = [os.getpid()]
_parent: list[int] = []


def owned(thing: Owned) -> None:
    """Register an object to abandon in processes forked from this one."""
    _owned.add(thing)


def check_process() -> None:
    """Refuse the use of flow in a fork of a process with a session in use.

    Raises `ForkError` if this process was forked from one that had a session in use.
    """
    if _parent:
        raise refusal("using flow in a forked process", _parent[0])


def _leave_to_parent() -> None:
    """Abandon registered objects in a forked process, keeping them alive but unreachable."""
    _left.extend([thing for thing in _owned if thing.leave_to_parent()])
    if _left and not _parent:
        _parent[:] = _process
    _process[:] = [os.getpid()]


in_child(_leave_to_parent)


def refusal(attempted: str, parent: int) -> ForkError:
    """Return the error for using resources of the process from which this one was forked."""
    return ForkError.at_caller(
        attempted,
        found=f"process {os.getpid()}, a fork of process {parent}, which has the session's threads "
        "and devices",
        allowed=f"use of flow in process {parent} only; a process that is forked before the first "
        "job is compiled has a session of its own",
        hint='start processes that run jobs with multiprocessing.get_context("spawn"); processes '
        "that only prepare data with numpy may be forked",
    )
