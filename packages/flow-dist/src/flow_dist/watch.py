"""What this process is waiting for, kept so that the step path pays next to nothing.

A comm makes a `Site` per exchange when it binds it and puts `Site.enter` and `Site.leave` around
the launch that waits for others: two stores and two additions per exchange.  The clock is looked
at by the thread that reports, never by the one that works.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from flow_core.errors import SourceLine, user_line


class Group:
    """Processes that exchange with one another, and how often they did.

    Attributes:
        ranks: the members.
        count: exchanges entered so far: the same in all members that are at the same one.
    """

    __slots__ = ("count", "ranks")

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.count = 0


class Site:
    """A place in the program where this process waits for others; see `Watch.site`."""

    __slots__ = ("_watch", "at", "group", "op", "what")

    def __init__(self, watch: Watch, op: str, what: str, at: str, group: Group) -> None:
        self._watch = watch
        self.op = op
        self.what = what
        self.at = at
        self.group = group

    def enter(self) -> None:
        """Says that the process now waits here: a launch."""
        watch = self._watch
        self.group.count += 1
        watch.sequence += 1
        watch.current = self

    def leave(self) -> None:
        """Says that it waits no longer: a launch."""
        self._watch.current = None

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:  # one who reports the error wants to know where it was
            self.leave()


class Watch:
    """Where the process is.

    One thread waits for others at a time, as a process has one that communicates.

    Attributes:
        current: where the process waits for others, None while it works.
        sequence: how often it has waited.
        steps: number of the running step: an integer, or a 0-d array that the runtime counts
            up, which is read when somebody asks.

    >>> watch = Watch()
    >>> site = watch.site("loss", "all_reduce float32[4]", ranks=(0, 1), at="train.py:7")
    >>> site.enter()
    >>> watch.report()["op"], watch.report()["count"]
    ('loss', 1)
    >>> site.leave()
    >>> sorted(watch.report())
    ['at', 'counts', 'sequence', 'step']
    """

    def __init__(self) -> None:
        self.current: Site | None = None
        self.sequence = 0
        self.steps: Any = 0
        self._groups: dict[tuple[int, ...], Group] = {}

    def site(
        self, op: str, what: str, *, ranks: Iterable[int], at: SourceLine | str | None = None
    ) -> Site:
        """A place to wait at, made once.

        Args:
            op: name of the op or exchange.
            what: what is exchanged, the same in all ranks: collective, element type, shape.
            ranks: who takes part.
            at: the user's line; the caller's own one when None.
        """
        members = tuple(sorted(set(ranks)))
        group = self._groups.setdefault(members, Group(members))
        return Site(self, op, what, str(at or user_line(2) or ""), group)

    def report(self) -> dict[str, Any]:
        """Where the process is now, as plain data."""
        counts = [[list(group.ranks), group.count] for group in list(self._groups.values())]
        found = {
            "step": int(self.steps),
            "sequence": self.sequence,
            "counts": counts,
            "at": _line_of_main(),
        }
        site = self.current
        if site is not None:
            found |= {
                "op": site.op,
                "what": site.what,
                "at": site.at,
                "ranks": list(site.group.ranks),
                "count": site.group.count,
            }
        return found


def _line_of_main() -> str:
    """The user's line that the main thread is at."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    return line_of(frame)


def line_of(frame: FrameType | None) -> str:
    """The innermost line of a user's file, from a frame outwards; "" when there is none."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not (name.startswith("<") or _is_library(name)):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_library(name: str) -> bool:
    return name.startswith(_LIBRARIES)


def _libraries() -> tuple[str, ...]:
    """Folders whose files nobody means by "my line": ours, what is installed, Python's own."""
    import sysconfig
    from pathlib import Path

    import flow_core

    paths = sysconfig.get_paths()
    own = [Path(__file__).parent.parent, Path(flow_core.__file__).parent.parent]
    return (*(paths[name] for name in ("stdlib", "purelib", "platlib")), *map(str, own))


_LIBRARIES = _libraries()

WATCH = Watch()
"""The one of this process."""
