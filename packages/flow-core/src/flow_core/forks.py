"""Forked processes: a child has a copy of its parent's memory, and only the thread that forked.

Whatever else belongs to a session stays with the parent: the threads that run steps, make batches
and write files, devices, and connections to other processes.  Locks that these threads held stay
locked in the child for good.  So what uses them is told `in_child`, before anything else runs
there, and refuses to work from then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from flow_core.errors import ForkError, user_line


def in_child(call: Callable[[], object]) -> None:
    """Have a function called first thing in every process that is forked off this one.

    It must not raise, nor wait for a lock.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


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
