"""The order of a step's launches: the drivers that compile them, and the events between them.

A compile group is one device, or several devices whose drivers have the same `compile_group`.  The
launches of consecutive tasks of a group are compiled by one call of its driver's ``compile``.
Within a group, launches are called in the order of the plan.  A wait between tasks of different
groups becomes an event if the earlier task may still be running when its launches return, that is,
if its driver is asynchronous.

An exchange belongs to the group of its first asynchronous device.  This group is then a visitor to
the groups that own the other memory that the exchange accesses.  A step begins with events that
make visitors wait for the owners of this memory, because copies and other jobs of the owners may
have changed it.  A step ends with events that make the owners wait for their visitors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flow_core.comm.exchange import BOXING
from flow_core.device import Driver, Event, Launch, Stream
from flow_core.plan import Plan, Task
from flow_core.runtime.failures import KernelSource, compiled, stream_of
from flow_core.sharding.topology import Device

COMPUTE = "compute"
"""Name of the stream of each device on which the launches of plans run."""


@dataclass(frozen=True, slots=True, eq=False)
class CompileGroup:
    """Devices whose launches one driver compiles."""

    device: Device  # the first device of the group
    driver: Driver  # of that device
    stream: Stream  # of that device
    asynchronous: bool  # whether launches of the group only enqueue work
    source: KernelSource

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """Return one callable that runs launches in order."""
        return compiled(self.driver, self.device, launches, self.source)


class Signal:
    """The completion of a task, which is recorded in each step, and for which other groups wait."""

    __slots__ = ("_event", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._event: Event | None = None

    def record(self) -> None:
        """Record an event after the work enqueued so far."""
        self._event = self._stream.record()

    def wait(self, group: CompileGroup) -> Launch:
        """Return a launch that makes the later launches of a group wait."""

        def on_stream() -> None:
            if self._event is not None:
                group.stream.wait_event(self._event)

        def on_host() -> None:
            if self._event is not None:
                self._event.wait()

        return on_stream if group.asynchronous else on_host


class Synchronize:
    """A launch that waits for the work of a stream."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __call__(self) -> None:
        self._stream.synchronize()


Visits = dict[tuple[CompileGroup, CompileGroup], int]
"""The position of the last task of a group that accesses another group's memory, keyed by the owner
of the memory and the accessing group."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The launch of a step that involves several compile groups.

    Attributes:
        calls: compiled launches, and records of events and waits for them, in order.
    """

    calls: tuple[Launch, ...]

    def __call__(self) -> None:
        for call in self.calls:
            call()


class LaunchOrder:
    """Compiles the launches of a plan's tasks.

    Attributes:
        streams: the compute stream of each local device.
        asynchronous: whether any of the drivers is asynchronous.
    """

    def __init__(
        self,
        plan: Plan,
        local: Sequence[Device],  # the devices of this process, in the order of the plan
        driver: Callable[[Device], Driver],
        source: KernelSource,
    ) -> None:
        self._plan = plan
        self.streams = {d: stream_of(driver(d), d, COMPUTE, source) for d in local}
        known: dict[object, CompileGroup] = {}
        self._groups: dict[Device, CompileGroup] = {}
        for device, stream in self.streams.items():
            own = driver(device)
            group = CompileGroup(device, own, stream, own.asynchronous, source)
            key = device if own.compile_group is None else own.compile_group
            self._groups[device] = known.setdefault(key, group)
        first = plan.arenas[0].device
        if not known:
            stream = stream_of(driver(first), first, COMPUTE, source)
            known[first] = CompileGroup(first, driver(first), stream, False, source)
        self._first = next(iter(known.values()))
        self.asynchronous = any(group.asynchronous for group in known.values())

    def compile(self, tasks: Sequence[Task], launches: Sequence[Sequence[Launch]]) -> Launch:
        """Return one callable that runs the launches of each task, in the order of the plan.

        Args:
            tasks: the tasks.  If a driver is asynchronous, the tasks' waits are positions in this
                sequence.
            launches: the launches of each task; none for tasks of other processes.
        """
        groups = self._groups_of(tasks)
        if len(set(groups)) <= 1:
            group = groups[0] if groups else self._first
            return group.compile([launch for row in launches for launch in row])
        if not self.asynchronous:
            return Calls(tuple(_runs(groups, launches, [()] * len(tasks), {})))
        visits = self._visits(tasks, groups)
        waits, ends = self._waits(tasks, groups, visits)
        awaited = {i for row in waits for i in row} | {i for _, i in ends}
        signals = {i: Signal(groups[i].stream) for i in awaited}
        begin = tuple(_begin(visits))
        end = tuple([signals[i].wait(owner) for owner, i in ends])
        return Calls((*begin, *_runs(groups, launches, waits, signals), *end))

    def synchronized(self, task: Task, launches: Sequence[Launch]) -> Sequence[Launch]:
        """Return a task's launches, followed by waits for their work on asynchronous devices."""
        devices = dict.fromkeys(d for d in self._devices(task) if d in self._groups)
        waits = [Synchronize(self.streams[d]) for d in devices if self._groups[d].asynchronous]
        return (*launches, *waits) if launches else launches

    def _groups_of(self, tasks: Sequence[Task]) -> list[CompileGroup]:
        """Return the group of each task; tasks of other processes join the task before them."""
        found: list[CompileGroup] = []
        for task in tasks:
            own = [self._groups[d] for d in self._devices(task) if d in self._groups]
            waiting = [group for group in own if group.asynchronous]
            found.append((waiting or own or found[-1:] or [self._first])[0])
        return found

    def _devices(self, task: Task) -> list[Device]:
        """Return the devices that run a task: all participants of an exchange."""
        if task.type != BOXING:
            return [task.device]
        buffers = self._plan.buffers
        return [task.device, *[buffers[i].device for i in (*task.inputs, *task.outputs)]]

    def _visits(self, tasks: Sequence[Task], groups: Sequence[CompileGroup]) -> Visits:
        """Return the last access of each group to the memory of each other group."""
        found: Visits = {}
        for position, (task, group) in enumerate(zip(tasks, groups, strict=True)):
            own = () if task.workspace is None else (task.workspace,)
            for i in (*task.inputs, *task.outputs, *own):
                owner = self._groups.get(self._plan.buffers[i].memory, group)
                if owner is not group:
                    found[owner, group] = position
        return found

    def _waits(
        self, tasks: Sequence[Task], groups: Sequence[CompileGroup], visits: Visits
    ) -> tuple[list[tuple[int, ...]], list[tuple[CompileGroup, int]]]:
        """Return the events that each task waits for, and those that owners of memory wait for.

        The owners wait at the end of the step, so that copies of results, and later steps, run
        after all accesses to the memory.  An event is omitted if an earlier wait of the same group
        implies it.
        """
        known: dict[tuple[CompileGroup, CompileGroup], int] = {}

        def is_new(group: CompileGroup, other: int) -> bool:
            by = groups[other]
            if by is group or not by.asynchronous or known.get((group, by), -1) >= other:
                return False
            known[group, by] = other
            return True

        rows: list[tuple[int, ...]] = []
        last: dict[int, int] = {}
        for position, (task, group) in enumerate(zip(tasks, groups, strict=True)):
            before = {*task.waits, *[last[s] for s in (task.stream,) if s in last]}
            last[task.stream] = position
            rows.append(tuple([i for i in sorted(before, reverse=True) if is_new(group, i)]))
        return rows, [(owner, i) for (owner, _), i in visits.items() if is_new(owner, i)]


def _begin(visits: Visits) -> Iterator[Launch]:
    """Yield launches that make visitors wait for earlier copies and steps of memory owners."""
    for owner, group in visits:
        if owner.asynchronous:
            signal = Signal(owner.stream)
            yield from (signal.record, signal.wait(group))


def _runs(
    groups: Sequence[CompileGroup],
    launches: Sequence[Sequence[Launch]],
    waits: Sequence[Collection[int]],
    signals: Mapping[int, Signal],
) -> Iterator[Launch]:
    """Yield the compiled launches of consecutive tasks of a group, and event records and waits."""
    run: list[Launch] = []
    for position, group in enumerate(groups):
        yield from (signals[i].wait(group) for i in waits[position])
        run.extend(launches[position])
        following = position + 1
        ends = following == len(groups) or groups[following] is not group or waits[following]
        if run and (ends or position in signals):
            yield group.compile(tuple(run))
            run = []
        if position in signals:
            yield signals[position].record
