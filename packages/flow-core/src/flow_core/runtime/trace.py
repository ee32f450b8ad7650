"""A trace of all steps of a program, for Perfetto: one track per process and stream.

Arrows lead from each task to the tasks of other streams that read its results, and from the
processes that send the data of an exchange to those that receive it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from flow_core.base.arrays import Array
from flow_core.base.errors import ConfigError
from flow_core.base.formats.trace_file import (
    MICRO,
    Event,
    arrow_event,
    name_event,
    rank_file,
    span_event,
    write,
)
from flow_core.base.shutdown import call_at_shutdown
from flow_core.comm.exchange import BOXING, exchange_of
from flow_core.device import World
from flow_core.plan import Plan
from flow_core.runtime.timed import TaskTime, TimedExecutable

MOST_EVENTS = 1_000_000
"""The largest number of events that a process keeps; later steps are left out of its trace."""


class Trace:
    """The events of this process, written to a file when the program ends.

    Args:
        path: the file of the whole program's trace.
        rank: rank of this process, None for a program of one process.
    """

    def __init__(self, path: Path, rank: int | None) -> None:
        self._path = path
        self._rank = rank
        self._events: list[Event] = []
        self._tracks: dict[str, int] = {}
        self._lock = threading.Lock()
        self._epoch = time.time() - time.perf_counter()
        self._left_out = 0

    @property
    def process(self) -> int:
        """Number of this process in the trace: its rank."""
        return self._rank or 0

    def add(self, events: Sequence[Event]) -> None:
        """Add the events of a step, unless there are too many already."""
        with self._lock:
            if len(self._events) + len(events) > MOST_EVENTS:
                self._left_out += 1
            else:
                self._events.extend(events)

    def micros(self, seconds: float) -> float:
        """Convert a time of `time.perf_counter` to microseconds of the wall clock."""
        return round((seconds + self._epoch) * MICRO, 3)

    def track(self, name: str) -> int:
        with self._lock:
            return self._tracks.setdefault(name, len(self._tracks))

    def write(self) -> None:
        """Write the file of this process; a file that cannot be written is reported."""
        path = rank_file(self._path, self._rank)
        try:
            write(path, [*self._names(), *self._events])
        except OSError as error:  # such as a full disk; the program has ended
            sys.stderr.write(f"trace: not written: {error}\n")
            return
        text = f"trace: {len(self._events):,} events in {path}"
        if self._left_out:
            text += f"; {self._left_out:,} later steps left out, beyond {MOST_EVENTS:,} events"
        sys.stderr.write(text + "\n")

    def _names(self) -> Iterator[Event]:
        process = "job steps" if self._rank is None else f"rank {self._rank}"
        yield name_event("process_name", self.process, 0, process)
        used = {event["tid"] for event in self._events}
        for name, number in self._tracks.items():
            if number in used:
                yield name_event("thread_name", self.process, number, name)


@lru_cache
def _trace(path: str, rank: int | None) -> Trace:
    """Return the trace of this process; raise `ConfigError` if the file cannot be written."""
    try:
        rank_file(Path(path), rank).open("ab").close()
    except OSError as error:
        raise ConfigError.at_caller(
            "tracing the steps of a job",
            found=f"FLOW_TRACE={path!r}: {error.strerror or error}",
            allowed="a file in an existing folder, in which this process may write",
        ) from None
    found = Trace(Path(path), rank)
    call_at_shutdown(found.write)
    return found


class TracedExecutable(TimedExecutable):
    """A loaded plan whose steps are recorded in the program's trace."""

    def __init__(self, plan: Plan, *args: Any, file: str, **kwargs: Any) -> None:
        super().__init__(plan, *args, **kwargs)
        rank = None if self._world is None else self._world.rank
        self._trace = _trace(file, rank)
        self._tracks = [self._trace.track(name) for name in track_names(plan)]
        self._steps = self._trace.track("steps")
        self._arrows = tuple(arrows(plan))
        self._crossings = dict(crossings(plan, self._world)) if self._world else {}

    def run(self, feeds: Sequence[Array]) -> tuple[Array, ...]:
        """Run one step, and add its events to the trace."""
        step, began = int(self.step), time.perf_counter()
        try:
            return super().run(feeds)
        finally:
            whole = TaskTime(step, -1, began, time.perf_counter())
            self._trace.add(list(self._step_events(whole, self.take_times())))

    def _step_events(self, whole: TaskTime, times: Sequence[TaskTime]) -> Iterator[Event]:
        job = {"job": self.plan.job, "step": whole.step}
        yield self._span(f"step {whole.step} of {self.plan.job}", self._steps, whole, job)
        by_task = {time.task: time for time in times}
        for position, found in by_task.items():
            task = self.plan.tasks[position]
            args = {**job, "type": task.type, "kernel": task.kernel, "device": str(task.device)}
            args |= {"line": task.line} if task.line else {}
            yield self._span(task.op, self._tracks[position], found, args)
        for a, b in self._arrows:
            if a in by_task and b in by_task:
                key = f"{self._trace.process}/{self.plan.job}/{whole.step}/{a}/{b}"
                yield self._arrow("s", key, by_task[a], 0.9)
                yield self._arrow("f", key, by_task[b], 0.1)
        yield from self._crossing_events(whole.step, by_task)

    def _crossing_events(self, step: int, by_task: Mapping[int, TaskTime]) -> Iterator[Event]:
        """Yield the ends of arrows between this process and others."""
        mine = self._trace.process
        for position, pairs in self._crossings.items():
            for a, b in pairs if position in by_task else ():
                key = f"{self.plan.job}/{step}/{position}/{a}-{b}"
                phase, inside = ("s", 0.1) if a == mine else ("f", 0.9)
                yield self._arrow(phase, key, by_task[position], inside)

    def _span(self, name: str, track: int, found: TaskTime, args: Mapping[str, Any]) -> Event:
        start = self._trace.micros(found.start)
        return span_event(name, self._trace.process, track, start, found.seconds, args)

    def _arrow(self, phase: str, key: str, found: TaskTime, inside: float) -> Event:
        """Return the start or end of an arrow, at a fraction of the duration of a task."""
        at = self._trace.micros(found.start + found.seconds * inside)
        return arrow_event(phase, key, self._trace.process, self._tracks[found.task], at)


def track_names(plan: Plan) -> list[str]:
    """Return the name of the track of each task: its stream or, without streams, its device."""
    return [plan.streams[task.stream] if plan.streams else str(task.device) for task in plan.tasks]


def arrows(plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield pairs of tasks on different tracks, of which the second reads a result of the first."""
    tracks = track_names(plan)
    writer: dict[int, int] = {}
    for position, task in enumerate(plan.tasks):
        sources = {writer[i] for i in task.inputs if i in writer}
        yield from ((a, position) for a in sorted(sources) if tracks[a] != tracks[position])
        writer.update(dict.fromkeys(task.outputs, position))


def crossings(plan: Plan, world: World) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    """Yield each exchange of this process with others: its position, and (from, to) ranks."""
    for position, task in enumerate(plan.tasks):
        if task.type == BOXING:
            links = exchange_of(task, plan.buffers).links()
            pairs = sorted({(world.owner(a), world.owner(b)) for a, b in links})
            mine = tuple((a, b) for a, b in pairs if a != b and world.rank in (a, b))
            if mine:
                yield position, mine
