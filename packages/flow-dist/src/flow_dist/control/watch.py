"""A record of where this process is waiting, kept at minimal cost to the running step.

A communicator (comm) creates a `Site` when it binds an exchange, and wraps the launches that wait
with `Site.around`, which adds three stores and two additions to each exchange.  Only the reporting
thread reads the clock.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any
from zlib import crc32

from flow_core.authoring.backends import Launch
from flow_core.base.errors import SourceLine, user_line

HISTORY = 32
"""Number of exchanges remembered for each group, to detect ranks that diverge."""


class Group:
    """A set of ranks that exchange with each other, and the last exchanges that they entered."""

    __slots__ = ("count", "current", "lane", "last", "ranks", "sites")

    def __init__(self, ranks: tuple[int, ...], lane: str) -> None:
        self.ranks = ranks
        self.lane = lane  # distinguishes independent orders of exchanges
        self.count = 0  # number of exchanges entered
        # Keys of the last exchanges, each at the exchange's number modulo the length.
        self.last = [0] * HISTORY
        # Number of sites created; equal in all members at the same point of the program.
        self.sites = 0
        self.current: Site | None = None  # the site at which the process waits, else None

    def keys(self, count: int) -> list[int]:
        """Return the keys of the last exchanges up to ``count``, the newest last.

        The list is empty if another exchange has been entered meanwhile.  It leaves out the oldest
        slot, which the next exchange overwrites before it is counted.
        """
        keys = [self.last[n % HISTORY] for n in range(max(count - HISTORY + 1, 0) + 1, count + 1)]
        return keys if self.count == count else []


class Site:
    """A point of the program at which this process waits for others; see `Watch.site`."""

    __slots__ = ("_key", "at", "count", "group", "op", "what")

    def __init__(self, op: str, what: str, at: str, group: Group) -> None:
        self.count = 0  # number of launches so far
        self.op = op  # see `Watch.site`
        self.what = what
        self.at = at
        self.group = group
        group.sites += 1
        self._key = crc32(f"{group.sites} {op} {what}".encode())

    def around(self, wait: Launch) -> Launch:
        """Wrap a launch, so that the process counts as waiting at this site while it runs."""
        group, last, key = self.group, self.group.last, self._key

        def launch() -> None:
            self.count += 1
            count = group.count + 1
            last[count % HISTORY] = key
            group.count = count
            group.current = self
            wait()
            group.current = None

        return launch

    def enter(self) -> None:
        """Mark the process as waiting at this site; usable as a launch."""
        group = self.group
        count = group.count + 1
        group.last[count % HISTORY] = self._key
        group.count = count
        group.current = self

    def leave(self) -> None:
        """Mark the process as no longer waiting; usable as a launch."""
        self.group.current = None

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:  # the report of an error needs the site
            self.leave()


class Watch:
    """A record of the steps of this process and of the sites at which it waits.

    >>> watch = Watch()
    >>> site = watch.site("loss", "all_reduce float32[4]", ranks=(0, 1), at="train.py:7")
    >>> site.enter()
    >>> [(group.ranks, group.count) for group in watch.groups()]
    [((0, 1), 1)]
    >>> site.leave()
    """

    def __init__(self) -> None:
        # Number of the running step: an integer, or a 0-d array that the runtime increments and
        # reports read.
        self.steps: Any = 0
        self.finished = 0  # number of finished steps of all jobs
        self._groups: dict[tuple[tuple[int, ...], str], Group] = {}

    def site(
        self,
        op: str,
        what: str,  # collective, element type and shape of the exchange; equal in all ranks
        *,
        ranks: Iterable[int],  # the ranks that take part
        at: SourceLine | str | None = None,  # user's source line; the line of the caller if None
        # The name of an order of exchanges: all ranks enter the sites of one lane in the same
        # order, and independent threads use different lanes.
        lane: str = "",
    ) -> Site:
        """Create a site; all ranks must call this method once per site, in the same order."""
        members = tuple(sorted(set(ranks)))
        group = self._groups.setdefault((members, lane), Group(members, lane))
        return Site(op, what, str(at or user_line(2) or ""), group)

    def groups(self) -> list[Group]:
        """Return all groups created so far."""
        return list(self._groups.copy().values())


def line_of_main() -> str:
    """Return the user's source line that the main thread executes."""
    return line_of(_frames().get(threading.main_thread().ident or 0))


def _frames() -> dict[int, FrameType]:
    """Return the current frames of all threads, by thread identity.

    Before Python 3.12, a garbage collection inside of ``_current_frames`` can deadlock with the end
    of a thread (gh-106883), so garbage collection is disabled during the call.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()


def line_of(frame: FrameType | None) -> str:
    """Search outwards from a frame for a line of a user's file; return it, else ""."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not (name.startswith("<") or _is_library(name)):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_library(name: str) -> bool:
    return name.startswith(_LIBRARIES) or any(folder in name for folder in _OWN)


_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
"""Folders of libraries, whose lines are not the user's; flow's packages may be elsewhere."""

_OWN = tuple(
    f"{os.sep}{name}{os.sep}"
    for name in (
        "flow_core",
        "flow_cuda",
        "flow_data",
        "flow_dist",
        "flow_onednn",
        "flow_typing",
        "oneflow",
        "oneflow_api",
    )
)

WATCH = Watch()
"""The watch of this process."""
