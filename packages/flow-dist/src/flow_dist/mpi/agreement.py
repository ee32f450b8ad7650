"""Check that all processes run the same jobs and collectives in the same order, with equal feeds.

Every step and every host collective of a process is an event in its log, whose running hash is
compared with those of the other processes (`flow_dist.shm.event_log`) without waiting for them.  If
hashes differ, all processes gather descriptions of their last events, and raise the same error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
from xxhash import xxh3_64_intdigest

from flow_core.base.arrays import Array
from flow_core.base.errors import FeedsDifferError, FlowError, ProcessesDifferError, SourceLine
from flow_dist.control.ranges import ranks_text
from flow_dist.control.watch import line_of, line_of_main
from flow_dist.shm.event_log import EventLog

STEPS, COLLECTIVES = LANES = ("steps", "collectives")
"""The lanes, which are independent orders of events: a collective may run during a step of another
thread."""

FULL_CALLS, PERIOD = 4, 1024
"""Feeds are compared in full in the first `FULL_CALLS` calls of a job, and later in calls whose
numbers are powers of two up to `PERIOD` or multiples of `PERIOD`."""

SMALL = 1024
"""Arrays of at most this many bytes are compared in full in every step."""

SAMPLES = 32
"""Number of elements of a larger array that are compared in a step; they change in every step."""

MAX_DIGESTS = 256
"""Maximum number of arrays whose digests are part of an event's description."""

Tell = Callable[[Any], Sequence[Any]]
"""A function that all-gathers a JSON value; raises `FlowError` if a process replies too late."""

Description: TypeAlias = Mapping[str, Any]
"""An event as a JSON object with the fields ``what``, ``at`` and ``fed``."""


# -------------------------------------------------------------------------------------- digests


def next_full(calls: int, policy: str) -> int:
    """Return the number of the next call of a job whose feeds are compared in full; -1 for none.

    Args:
        policy: one of `flow_core.base.config.CHECK_FEEDS`.

    >>> [next_full(calls, "sometimes") for calls in (0, 3, 4, 5, 9, 600, 1024, 1025)]
    [0, 3, 4, 8, 16, 1024, 1024, 2048]
    """
    if policy == "never":
        return -1
    if policy == "always" or calls < FULL_CALLS:
        return calls
    return min(1 << (calls - 1).bit_length(), -(-calls // PERIOD) * PERIOD)


def digest(array: Array) -> int:
    """Return a 64-bit hash of an array's bytes and shape; for a partial feed, of its shape only."""
    if array.nbytes == 0:
        return hash(array.shape)
    if array.dtype.hasobject:
        return hash(tuple([digest(part) for part in array.reshape(-1)]))
    raw: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hash((array.shape, xxh3_64_intdigest(raw)))


def sample(array: Array, calls: int) -> int:
    """Return a hash of some elements of an array, which are different elements in each call."""
    if array.dtype.hasobject:
        return digest(array) if array.size < 2 else sample(array.flat[calls % array.size], calls)
    stride = max(1, array.size // SAMPLES)
    elements = array.reshape(-1) if array.flags.c_contiguous else array.flat
    return xxh3_64_intdigest(elements[calls * _PRIME % stride :: stride].tobytes())


_PRIME = 7919
"""A prime stride that spreads the samples of successive calls over the array."""


# --------------------------------------------------------------------------------------- events


class Job:
    """A job whose calls are compared with the calls of the other processes.

    Args:
        policy: how often feeds are compared, one of `flow_core.base.config.CHECK_FEEDS`.
    """

    def __init__(self, log: EventLog, name: str, arrays: Sequence[str], policy: str) -> None:
        self._post, self._name, self._arrays, self._policy = log.post, name, arrays, policy
        self._key = crc32(name.encode())
        self._calls = self._before = 0
        self._whole = next_full(0, policy)
        self._digests: tuple[int, ...] = ()
        self._sampled = -1

    @property
    def step(self) -> int:
        """The number of the next step of the job."""
        return self._before + self._calls

    @step.setter
    def step(self, number: int) -> None:
        self._before = number - self._calls

    def __call__(self, feeds: Sequence[Array]) -> None:
        """Record a call and its feeds, in the user's thread."""
        calls, sampled = self._calls, self._sampled
        self._calls = calls + 1
        seen: Any = ()
        if calls == self._whole:
            seen = self._all(feeds)
        elif sampled >= 0:
            array = feeds[sampled]
            is_small = array.nbytes <= SMALL and not array.dtype.hasobject
            seen = xxh3_64_intdigest(array.tobytes()) if is_small else sample(array, calls)
        self._post((self._key, seen), (self, calls, seen))

    def _all(self, feeds: Sequence[Array]) -> tuple[int, ...]:
        """Return digests of all feeds, and choose the array that the next calls sample.

        The choice is the smallest array that has changed since the last full comparison, because
        such an array is cheap to hash, and different in every batch.
        """
        digests = tuple([digest(array) for array in feeds])
        known = self._digests or digests
        changed = [i for i, (old, new) in enumerate(zip(known, digests, strict=True)) if old != new]
        if changed:
            self._sampled = min(changed, key=lambda i: int(feeds[i].nbytes))
        self._whole = next_full(self._calls, self._policy)
        self._digests = digests
        return digests

    def describe(self, calls: int, digests: int | tuple[int, ...]) -> Description:
        """Describe a call for the other processes."""
        if isinstance(digests, int):
            fed = {self._arrays[self._sampled]: f"{digests:x}"}
        else:
            rows = zip(self._arrays[:MAX_DIGESTS], digests, strict=False)
            fed = {name: f"{number:x}" for name, number in rows}
        return {"what": f"step {self._before + calls} of job {self._name!r}", "fed": fed}


class _Collective(NamedTuple):
    """A host collective."""

    what: str

    def describe(self) -> Description:
        """Describe the collective for the other processes."""
        return {"what": self.what, "fed": {}}


# ------------------------------------------------------------------------------------ agreement


class Agreement:
    """A comparison of this process's events with those of the other processes.

    Args:
        tell: all-gathers descriptions of events after a difference is found.
    """

    def __init__(self, rank: int, logs: Iterable[EventLog], tell: Tell) -> None:
        self._rank, self._tell = rank, tell
        self._lanes = dict(zip(LANES, logs, strict=True))
        self._steps = self._lanes[STEPS]
        self._lock = threading.Lock()
        self._error: ProcessesDifferError | None = None

    def job(self, name: str, arrays: Sequence[str], policy: str) -> Job:
        """Return a job whose calls are compared with the calls of the other processes."""
        return Job(self._steps, name, arrays, policy)

    def enter(self, what: str) -> None:
        """Record that this process enters a host collective."""
        self._lanes[COLLECTIVES].post(crc32(what.encode()), (_Collective(what),))

    def check(self) -> None:
        """Compare the steps of this process with those of its neighbors, at negligible cost.

        Raises `ProcessesDifferError` if a neighbor has run other steps.
        """
        if self._steps.quick_difference() is not None:
            self.check_all()

    def check_all(self) -> None:
        """Compare all events of this process with those of all other processes.

        Raises `ProcessesDifferError` if another process has run other steps or collectives.
        """
        differences = {name: lane.difference() for name, lane in self._lanes.items()}
        if any(number is not None for number in differences.values()):
            raise self._difference(differences)

    def explain(self, error: Exception) -> None:
        """Raise the error of `check_all` if a difference of processes may explain ``error``."""
        if not isinstance(error, ProcessesDifferError):
            self.check_all()

    def finish(self) -> None:
        """Wait until pending comparisons have completed, and check their results."""
        for lane in self._lanes.values():
            lane.drain()
        self.check_all()

    def _difference(self, found: Mapping[str, int | None]) -> ProcessesDifferError:
        """Return the error that all processes derive together; all threads get the same error."""
        with self._lock:
            if self._error is None:
                own = {name: [found[name], _describe(lane)] for name, lane in self._lanes.items()}
                self._error = _error(self._rank, self._gather(own))
            return self._error

    def _gather(self, own: Any) -> Mapping[int, Any]:
        """Gather the descriptions of all ranks, or only this rank's if not all reply in time."""
        try:
            return dict(enumerate(self._tell(own)))
        except FlowError:
            return {self._rank: own}


def _describe(log: EventLog) -> list[Description]:
    """Describe the last events, with their numbers and the current source line."""
    events = [event.describe(*rest) for event, *rest in list(log.events)]
    first = log.count - len(events) + 1
    at = {"at": line_of(sys._getframe()) or line_of_main()}
    return [{"number": first + i, **event, **at} for i, event in enumerate(events)]


# --------------------------------------------------------------------------------------- errors


def _error(rank: int, descriptions: Mapping[int, Any]) -> ProcessesDifferError:
    """Derive the error from the descriptions of all ranks; the error is equal on all ranks."""
    lane, number = min(
        (LANES.index(name), of[name][0])
        for of in descriptions.values()
        for name in of
        if of[name][0] is not None
    )
    by_rank = {r: of[LANES[lane]][1] for r, of in descriptions.items()}
    events = {r: _event(of, number) for r, of in by_rank.items() if _has_reached(of, number)}
    own = events.get(rank) or next(iter(events.values()))  # this rank may be behind
    if len(_ranks_by_text({r: event["what"] for r, event in events.items()})) > 1:
        return _other_events(own, events)
    fed = [event["fed"] for event in events.values()]
    names = [name for name in fed[0] if len({of.get(name) for of in fed}) > 1]
    return _other_feeds(own, events, names) if names else _unknown(own, events)


UNKNOWN: Description = {"what": "an earlier call", "at": "", "fed": {}}
"""The description of an event that is no longer kept."""


def _has_reached(events: Sequence[Description], number: int) -> bool:
    """Return whether a process has reached an event."""
    return bool(events) and events[-1]["number"] >= number


def _event(events: Sequence[Description], number: int) -> Description:
    return next((event for event in events if event["number"] == number), UNKNOWN)


def _ranks_by_text(texts: Mapping[int, str]) -> dict[str, list[int]]:
    """Group ranks that have equal texts, the largest group first."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(texts):
        groups.setdefault(texts[rank], []).append(rank)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}"


def _places(events: Mapping[int, Description]) -> dict[int, str]:
    return {r: f" (at {event['at']})" if event["at"] else "" for r, event in events.items()}


def _common_place(events: Mapping[int, Description], ranks: Sequence[int]) -> str:
    """Return the most frequent source line of a group; ranks may have gone on to other lines."""
    places = _places(events)
    return next(iter(_ranks_by_text({rank: places[rank] for rank in ranks})))


def _line(event: Description) -> SourceLine | None:
    return SourceLine.parsed(str(event["at"]))


def _other_events(own: Description, events: Mapping[int, Description]) -> ProcessesDifferError:
    groups = _ranks_by_text({r: event["what"] for r, event in events.items()})
    found = (
        f"{_ranks(ranks)} in {what}{_common_place(events, ranks)}" for what, ranks in groups.items()
    )
    return ProcessesDifferError(
        f"comparing {own['what']} with the calls of the other processes",
        at=_line(own),
        found="; ".join(found),
        allowed="the same calls in the same order in all processes",
        hint="call jobs, and functions that read, save or load variables, equally often in all "
        "processes, not under a condition that depends on the rank, time or random numbers",
    )


def _other_feeds(
    own: Description, events: Mapping[int, Description], names: Sequence[str]
) -> FeedsDifferError:
    places = _places(events)
    arrays = {r: str([event["fed"].get(name) for name in names]) for r, event in events.items()}
    (_, usual), *odd = _ranks_by_text(arrays).items()
    found = f"{_ranks(usual)} feed{'s' * (len(usual) == 1)} one array{places[usual[0]]}"
    for _, ranks in odd:
        found += f"; {_ranks(ranks)} feed{'s' * (len(ranks) == 1)} another{places[ranks[0]]}"
    job = str(next(iter(events.values()))["what"])
    return FeedsDifferError(
        f"feeding {', '.join(map(repr, names))} at {job} in all processes",
        at=_line(own),
        found=found,
        allowed="the same arrays in all processes, each of which uses its own part of them",
        hint="seed random numbers alike in all processes, also in threads and forked processes; "
        "sort directory listings; a process that calls the job once more or less feeds another "
        "batch; where arrays may differ, set function_config.check_feeds('never') or "
        "FLOW_CHECK_FEEDS=never",
    )


def _unknown(own: Description, events: Mapping[int, Description]) -> ProcessesDifferError:
    others = "" if len(events) > 1 else "; the other processes did not report what they run"
    return ProcessesDifferError(
        f"comparing {own['what']} with the calls of the other processes",
        at=_line(own),
        found=f"another process that made a different call{others}",
        allowed="the same calls in the same order in all processes",
    )
