"""Whether all processes run the same: the same jobs and meetings in order, fed the same arrays.

Each step and each meeting of a process is an event.  A process posts a word for each, made of all
that it has done so far, and compares it with those of the others once they are there: no process
waits for another one because of this.  Where words differ, all processes tell each other what they
were doing, and each raises the same error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from xxhash import xxh3_64_intdigest

from flow_core.base.errors import (
    FeedsDifferError,
    FlowError,
    ProcessesDifferError,
    SourceLine,
)
from flow_dist.control.watch import line_of, line_of_main
from flow_dist.shm.step_words import Words

STEPS, MEETINGS = LANES = ("steps", "meetings")
"""Orders of events: meetings may be held while another thread runs a step."""

FIRST, PERIOD = 4, 1024
"""Steps of a job in which all that is fed is compared; after that at powers of two up to a period,
and once per period."""

SMALL = 1024
"""Bytes up to which all of an array is compared at every step."""

SAMPLES = 32
"""Elements of a larger array that are compared at every step, others each time."""

MOST = 256
"""Arrays of an event whose digests are told."""

Tell = Callable[[Any], Sequence[Any]]
"""Gives what all processes tell, in the order of the ranks; raises `FlowError` if some do not."""


# -------------------------------------------------------------------------------------- digests


def next_whole(calls: int, often: str) -> int:
    """The number of the next call of a job at which all that is fed is compared; -1 for none.

    Args:
        calls: how many have been.
        often: one of `flow_core.base.config.CHECK_FEEDS`.

    >>> [next_whole(calls, "sometimes") for calls in (0, 3, 4, 5, 9, 600, 1024, 1025)]
    [0, 3, 4, 8, 16, 1024, 1024, 2048]
    """
    if often == "never":
        return -1
    if often == "always" or calls < FIRST:
        return calls
    return min(1 << (calls - 1).bit_length(), -(-calls // PERIOD) * PERIOD)


def digest(array: Any) -> int:
    """A number of 64 bits that tells an array from others, by all its bytes and its shape."""
    if array.dtype.hasobject:
        return hash(tuple([digest(part) for part in array.reshape(-1)]))
    raw: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hash((array.shape, xxh3_64_intdigest(raw)))


def sample(array: Any, calls: int) -> int:
    """A digest of some elements of an array, others at each call."""
    if array.dtype.hasobject:
        return digest(array) if array.size < 2 else sample(array.flat[calls % array.size], calls)
    stride = max(1, array.size // SAMPLES)
    elements = array.reshape(-1) if array.flags.c_contiguous else array.flat
    return xxh3_64_intdigest(elements[calls * _APART % stride :: stride].tobytes())


_APART = 7919
"""A prime: the samples of successive calls lie apart."""


# --------------------------------------------------------------------------------------- events


class Job:
    """A job, whose calls are held against those in other processes.

    Args:
        words: of this process and of the others, for steps.
        name: of the job.
        arrays: the names of the arrays that it is fed.
        often: how often these are compared, one of `flow_core.base.config.CHECK_FEEDS`.

    """

    def __init__(self, words: Words, name: str, arrays: Sequence[str], often: str) -> None:
        self._post, self._name, self._arrays, self._often = words.post, name, arrays, often
        self._key = crc32(name.encode())
        self._calls = self._before = 0
        self._whole = next_whole(0, often)
        self._digests: tuple[int, ...] = ()
        self._sampled = -1

    @property
    def step(self) -> int:
        """The number of its next step."""
        return self._before + self._calls

    @step.setter
    def step(self, number: int) -> None:
        self._before = number - self._calls

    def __call__(self, feeds: Sequence[Any]) -> None:
        """A call, in the thread of the user; says what it feeds."""
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

    def _all(self, feeds: Sequence[Any]) -> tuple[int, ...]:
        """Digests of all that is fed; chooses the array that is sampled at the next calls.

        The smallest of those that have changed, which is cheap and tells batches apart.
        """
        digests = tuple([digest(array) for array in feeds])
        known = self._digests or digests
        changed = [i for i, (old, new) in enumerate(zip(known, digests, strict=True)) if old != new]
        if changed:
            self._sampled = min(changed, key=lambda i: int(feeds[i].nbytes))
        self._whole = next_whole(self._calls, self._often)
        self._digests = digests
        return digests

    def told(self, calls: int, digests: Any) -> dict[str, Any]:
        """What others are told of a call."""
        if isinstance(digests, int):
            fed = {self._arrays[self._sampled]: f"{digests:x}"}
        else:
            rows = zip(self._arrays[:MOST], digests, strict=False)
            fed = {name: f"{number:x}" for name, number in rows}
        return {"what": f"step {self._before + calls} of job {self._name!r}", "fed": fed}


class _Meeting(NamedTuple):
    """A meeting."""

    what: str

    def told(self) -> dict[str, Any]:
        """What others are told of it."""
        return {"what": self.what, "fed": {}}


# ------------------------------------------------------------------------------------ agreement


class Agreement:
    """What this process runs, held against what the others run.

    Args:
        rank: this process's.
        words: of each of `LANES`.
        tell: lets all processes say what they were doing, once they have found a difference.
    """

    def __init__(self, rank: int, words: Iterable[Words], tell: Tell) -> None:
        self._rank, self._tell = rank, tell
        self._lanes = dict(zip(LANES, words, strict=True))
        self._steps = self._lanes[STEPS]
        self._lock = threading.Lock()
        self._error: ProcessesDifferError | None = None

    def job(self, name: str, arrays: Sequence[str], often: str) -> Job:
        """A job whose calls are compared; see `Job`."""
        return Job(self._steps, name, arrays, often)

    def meet(self, what: str) -> None:
        """Says that this process comes to a meeting."""
        self._lanes[MEETINGS].post(crc32(what.encode()), (_Meeting(what),))

    def check(self) -> None:
        """Looks at what neighbouring processes run, at next to no cost.

        Raises:
            ProcessesDifferError: one of them has come to something else.
        """
        if self._steps.differ() is not None:
            self.look()

    def look(self) -> None:
        """Looks at all other processes.

        Raises:
            ProcessesDifferError: one of them has come to something else.
        """
        found = {name: lane.search() for name, lane in self._lanes.items()}
        if any(number is not None for number in found.values()):
            raise self._difference(found)

    def explain(self, error: Exception) -> None:
        """Looks whether what went wrong follows from a difference; see `look`."""
        if not isinstance(error, ProcessesDifferError):
            self.look()

    def finish(self) -> None:
        """Waits until all others have come as far, and looks at them."""
        for lane in self._lanes.values():
            lane.finish()
        self.look()

    def _difference(self, found: Mapping[str, int | None]) -> ProcessesDifferError:
        """The error, found together with all other processes; the same one for all threads."""
        with self._lock:
            if self._error is None:
                own = {name: [found[name], _told(lane)] for name, lane in self._lanes.items()}
                self._error = _error(self._rank, self._all_told(own))
            return self._error

    def _all_told(self, own: Any) -> Mapping[int, Any]:
        """What each process was doing; this one alone where the others do not say in time."""
        try:
            return dict(enumerate(self._tell(own)))
        except FlowError:
            return {self._rank: own}


def _told(words: Words) -> list[dict[str, Any]]:
    """The last events, with their numbers, and the line that this process is at now."""
    events = [event.told(*rest) for event, *rest in list(words.events)]
    first = words.count - len(events) + 1
    at = {"at": line_of(sys._getframe()) or line_of_main()}
    return [{"number": first + i, **told, **at} for i, told in enumerate(events)]


# --------------------------------------------------------------------------------------- errors


def _error(rank: int, told: Mapping[int, Any]) -> ProcessesDifferError:
    """The error for what the processes say; each finds the same."""
    lane, number = min(
        (LANES.index(name), of[name][0])
        for of in told.values()
        for name in of
        if of[name][0] is not None
    )
    said = {r: of[LANES[lane]][1] for r, of in told.items()}
    events = {r: _event(of, number) for r, of in said.items() if _has_come(of, number)}
    own = events.get(rank) or next(iter(events.values()))  # one that is behind comes to it next
    if len(_camps({r: event["what"] for r, event in events.items()})) > 1:
        return _other_events(own, events)
    fed = [event["fed"] for event in events.values()]
    names = [name for name in fed[0] if len({of.get(name) for of in fed}) > 1]
    return _other_feeds(own, events, names) if names else _unknown(own, events)


UNKNOWN: Mapping[str, Any] = {"what": "a call before the last ones", "at": "", "fed": {}}
"""The description of an event that is no longer kept."""


def _has_come(events: Sequence[Mapping[str, Any]], number: int) -> bool:
    """Whether a process has reached an event; one that is behind says nothing about it."""
    return bool(events) and events[-1]["number"] >= number


def _event(events: Sequence[Mapping[str, Any]], number: int) -> Mapping[str, Any]:
    return next((event for event in events if event["number"] == number), UNKNOWN)


def _camps(said: Mapping[int, str]) -> dict[str, list[int]]:
    """The ranks by what they say, the largest camp first."""
    found: dict[str, list[int]] = {}
    for rank in sorted(said):
        found.setdefault(said[rank], []).append(rank)
    return dict(sorted(found.items(), key=lambda camp: -len(camp[1])))


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _places(events: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    return {r: f" (at {event['at']})" if event["at"] else "" for r, event in events.items()}


def _line(event: Mapping[str, Any]) -> SourceLine | None:
    file, _, line = str(event["at"]).rpartition(":")
    return SourceLine(file, int(line)) if file and line.isdigit() else None


def _other_events(
    own: Mapping[str, Any], events: Mapping[int, Mapping[str, Any]]
) -> ProcessesDifferError:
    places = _places(events)
    camps = _camps({r: f"{event['what']}{places[r]}" for r, event in events.items()})
    return ProcessesDifferError(
        f"comparing {own['what']} with the calls of the other processes",
        at=_line(own),
        found="; ".join(f"{_ranks(ranks)} in {what}" for what, ranks in camps.items()),
        allowed="the same calls in the same order in all processes",
        hint="call jobs, and functions that read, save or load variables, as often in all "
        "processes: not under a condition that depends on the rank, on time or on chance",
    )


def _other_feeds(
    own: Mapping[str, Any], events: Mapping[int, Mapping[str, Any]], names: Sequence[str]
) -> FeedsDifferError:
    places = _places(events)
    arrays = {r: str([event["fed"].get(name) for name in names]) for r, event in events.items()}
    (_, usual), *odd = _camps(arrays).items()
    found = f"{_ranks(usual)} feed{'s' * (len(usual) == 1)} one array{places[usual[0]]}"
    for _, ranks in odd:
        found += f"; {_ranks(ranks)} feed{'s' * (len(ranks) == 1)} another{places[ranks[0]]}"
    job = str(next(iter(events.values()))["what"])
    return FeedsDifferError(
        f"feeding {', '.join(map(repr, names))} at {job} in all processes",
        at=_line(own),
        found=found,
        allowed="the same arrays in all processes, each of which uses its own part of them",
        hint="seed random numbers alike in all processes, those of threads and of forked processes "
        "too; sort what a folder lists; a process that calls the job once more or less feeds "
        "another batch; where arrays may differ, function_config.check_feeds('never') or "
        "FLOW_CHECK_FEEDS=never",
    )


def _unknown(
    own: Mapping[str, Any], events: Mapping[int, Mapping[str, Any]]
) -> ProcessesDifferError:
    others = "" if len(events) > 1 else "; the other processes have not said what they run"
    return ProcessesDifferError(
        f"comparing {own['what']} with the calls of the other processes",
        at=_line(own),
        found=f"another process that runs, or has run, something else{others}",
        allowed="the same calls in the same order in all processes",
    )
