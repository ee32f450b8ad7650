"""Notifications to listeners when the tracing, compiling or binding of a job begins or ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

STAGES = ("tracing", "compiling", "binding")

Listener = Callable[[str, str, bool], object]
"""A function that is called with a job's name, a stage, and whether the stage begins."""

listeners: list[Listener] = []
"""The functions to call at the beginning and end of each stage of any job."""


@contextmanager
def stage(job: str, name: str) -> Iterator[None]:
    """Call the listeners at the beginning and the end of a ``with`` block."""
    for listener in listeners:
        listener(job, name, True)
    try:
        yield
    finally:
        for listener in listeners:
            listener(job, name, False)
