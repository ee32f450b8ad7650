"""What this process is waiting for, kept so that the step path pays next to nothing.

A comm makes a `Site` per exchange when it binds it, and puts it `Site.around` the launches that
wait for others: three stores and two additions per exchange.  The clock is looked at by the thread
that reports, never by the one that works.
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

LAST = 32
"""Exchanges of a group that are remembered, to find out where ranks went different ways."""

MOST = 32
"""Groups in a report: those that exchange most."""


class Group:
    """Processes that exchange with one another, and the last exchanges that they came to.

    Attributes:
        ranks: the members.
        lane: tells exchanges of one order from those of another.
        count: exchanges entered so far.
        last: keys of the last ones, each at the place of its number.
        sites: places made so far: the same in all members at the same time of the program.
        current: where the process waits, None while it does not.
    """

    __slots__ = ("count", "current", "lane", "last", "ranks", "sites")

    def __init__(self, ranks: tuple[int, ...], lane: str) -> None:
        self.ranks = ranks
        self.lane = lane
        self.count = 0
        self.last = [0] * LAST
        self.sites = 0
        self.current: Site | None = None

    def history(self) -> list[int]:
        """Keys of the last exchanges, the newest last."""
        count = self.count
        return [self.last[n % LAST] for n in range(max(count - LAST, 0) + 1, count + 1)]


class Site:
    """A place in the program where this process waits for others; see `Watch.site`.

    Attributes:
        op, what, at, group: as there.
        count: how often launches have been here.
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
        """A launch with what says that the process waits here as long as it runs."""
        group, last, key = self.group, self.group.last, self._key

        def launch() -> None:
            self.count += 1
            group.count = count = group.count + 1
            last[count % LAST] = key
            group.current = self
            wait()
            group.current = None

        return launch

    def enter(self) -> None:
        """Says that the process now waits here: a launch."""
        group = self.group
        group.count += 1
        group.last[group.count % LAST] = self._key
        group.current = self

    def leave(self) -> None:
        """Says that it waits no longer: a launch."""
        self.group.current = None

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:  # one who reports the error wants to know where it was
            self.leave()


class Watch:
    """Where the process is.

    Attributes:
        steps: number of the running step: an integer, or a 0-d array that the runtime counts
            up, which is read when somebody asks.
        finished: how many steps of any job have finished.

    >>> watch = Watch()
    >>> site = watch.site("loss", "all_reduce float32[4]", ranks=(0, 1), at="train.py:7")
    >>> site.enter()
    >>> watch.report()["op"], watch.report()["count"]
    ('loss', 1)
    >>> site.leave()
    >>> sorted(watch.report())
    ['at', 'finished', 'groups', 'line', 'sequence', 'step']
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
        """A place to wait at, made once, in all ranks in the same order.

        Args:
            op: name of the op or exchange.
            what: what is exchanged, the same in all ranks: collective, element type, shape.
            ranks: who takes part.
            at: the user's line; the caller's own one when None.
            lane: all ranks come to the places of one lane in the same order; threads that do
                not know of each other have lanes of their own.
        """
        members = tuple(sorted(set(ranks)))
        group = self._groups.setdefault((members, lane), Group(members, lane))
        return Site(op, what, str(at or user_line(2) or ""), group)

    def report(self) -> dict[str, Any]:
        """Where the process is now, as plain data; of several threads that wait, one of them."""
        groups = sorted(self._groups.copy().values(), key=lambda group: -group.count)
        line = line_of_main()
        found = {
            "step": int(self.steps),
            "finished": self.finished,
            "sequence": sum([group.count for group in groups]),
            "groups": [[list(g.ranks), g.lane, g.count, g.history()] for g in groups[:MOST]],
            "line": line,
            "at": line,
        }
        site = next((s for s in [group.current for group in groups] if s is not None), None)
        if site is not None:
            found |= {
                "op": site.op,
                "what": site.what,
                "at": site.at,
                "ranks": list(site.group.ranks),
                "lane": site.group.lane,
                "count": site.group.count,
            }
        return found


def line_of_main() -> str:
    """The user's line that the main thread is at."""
    return line_of(_frames().get(threading.main_thread().ident or 0))


def _frames() -> dict[int, FrameType]:
    """Where all threads are, by identity.

    Before 3.12, Python may collect garbage while it looks, with a lock held that the end of a
    thread's own data takes too (gh-106883): all threads would hang.  So nothing is collected then.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()


def line_of(frame: FrameType | None) -> str:
    """The innermost line of a user's file, from a frame outwards; "" when there is none."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not (name.startswith("<") or _is_library(name)):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_library(name: str) -> bool:
    return name.startswith(_LIBRARIES) or any(folder in name for folder in _OWN)


_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
"""Folders whose files nobody means by "my line"; our own packages may lie elsewhere."""

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
"""The one of this process."""
