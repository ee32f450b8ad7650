"""Where this process is waiting, recorded at minimal cost on the step path.

A comm creates a `Site` per exchange when it binds it, and wraps the launches that wait with
`Site.around`: three stores and two additions per exchange.  Only the reporting thread reads the
clock.
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
"""Exchanges of a group that are remembered, to detect ranks that diverge."""


class Group:
    """A set of ranks that exchange with each other, and the last exchanges that they entered.

    Attributes:
        ranks: the members.
        lane: distinguishes independent orders of exchanges.
        count: number of exchanges entered.
        last: keys of the last ones, each at its number modulo the length.
        sites: number of sites created; equal in all members at the same point of the program.
        current: the site at which the process waits, else None.
    """

    __slots__ = ("count", "current", "lane", "last", "ranks", "sites")

    def __init__(self, ranks: tuple[int, ...], lane: str) -> None:
        self.ranks = ranks
        self.lane = lane
        self.count = 0
        self.last = [0] * HISTORY
        self.sites = 0
        self.current: Site | None = None

    def keys(self, count: int) -> list[int]:
        """Return the keys of the last exchanges up to ``count``, the newest last.

        Empty if another exchange has been entered meanwhile; the oldest slot is left out, which the
        next one overwrites before it is counted.
        """
        found = [self.last[n % HISTORY] for n in range(max(count - HISTORY + 1, 0) + 1, count + 1)]
        return found if self.count == count else []


class Site:
    """A point of the program at which this process waits for others; see `Watch.site`.

    Attributes:
        op, what, at, group: see `Watch.site`.
        count: number of launches so far.
    """

    __slots__ = ("_key", "at", "count", "group", "op", "what")

    def __init__(self, op: str, what: str, at: str, group: Group) -> None:
        self.count = 0
        self.op = op
        self.what = what
        self.at = at
        self.group = group
        group.sites += 1
        self._key = crc32(f"{group.sites} {op} {what}".encode())

    def around(self, wait: Launch) -> Launch:
        """Return a launch that marks the process as waiting here while another launch runs."""
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
        """Mark the process as waiting here; a launch."""
        group = self.group
        count = group.count + 1
        group.last[count % HISTORY] = self._key
        group.count = count
        group.current = self

    def leave(self) -> None:
        """Mark the process as no longer waiting; a launch."""
        self.group.current = None

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:  # the report of an error needs the site
            self.leave()


class Watch:
    """Where the process is.

    Attributes:
        steps: number of the running step: an integer, or a 0-d array that the runtime increments
            and reports read.
        finished: number of finished steps of all jobs.

    >>> watch = Watch()
    >>> site = watch.site("loss", "all_reduce float32[4]", ranks=(0, 1), at="train.py:7")
    >>> site.enter()
    >>> [(group.ranks, group.count) for group in watch.groups()]
    [((0, 1), 1)]
    >>> site.leave()
    """

    def __init__(self) -> None:
        self.steps: Any = 0
        self.finished = 0
        self._groups: dict[tuple[tuple[int, ...], str], Group] = {}

    def site(
        self,
        op: str,
        what: str,
        *,
        ranks: Iterable[int],
        at: SourceLine | str | None = None,
        lane: str = "",
    ) -> Site:
        """Create a site; called once per site, in the same order in all ranks.

        Args:
            op: name of the op or exchange.
            what: what is exchanged, equal in all ranks: collective, element type, shape.
            ranks: the ranks that take part.
            at: the user's source line; that of the caller when None.
            lane: all ranks enter the sites of one lane in the same order; independent threads
                have lanes of their own.
        """
        members = tuple(sorted(set(ranks)))
        group = self._groups.setdefault((members, lane), Group(members, lane))
        return Site(op, what, str(at or user_line(2) or ""), group)

    def groups(self) -> list[Group]:
        """Return all groups so far."""
        return list(self._groups.copy().values())


def line_of_main() -> str:
    """Return the user's source line that the main thread executes."""
    return line_of(_frames().get(threading.main_thread().ident or 0))


def _frames() -> dict[int, FrameType]:
    """Return the current frames of all threads, by thread identity.

    Before Python 3.12 a garbage collection inside of ``_current_frames`` can deadlock with the end
    of a thread (gh-106883), so collection is disabled meanwhile.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()


def line_of(frame: FrameType | None) -> str:
    """Return the innermost source line of a user's file, from a frame outwards, else ""."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not (name.startswith("<") or _is_library(name)):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_library(name: str) -> bool:
    return name.startswith(_LIBRARIES) or any(folder in name for folder in _OWN)


_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
"""Folders of libraries, whose lines are not the user's; our packages may be installed elsewhere."""

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
