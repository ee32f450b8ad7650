"""The simulation of a step of a plan: discrete events on lanes, with a clock.

A lane runs one task at a time, in the order of the plan.  Devices with hardware of their own have a
lane per stream.  Devices that are cores of the host share the thread of their process, unless the
plan has several threads; an exchange between processes starts when all of them have reached it, and
if tasks are long, processes compute meanwhile.  Exchanges over a link with an uplink divide its
bandwidth among each other; so do tasks of processes that share the cores of a machine, if the cost
model has their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flow_core.base.errors import PlanError
from flow_core.comm.exchange import BOXING
from flow_core.costs.events import EventLoop, InOrder
from flow_core.costs.task_costs import TaskCosts
from flow_core.ir.order import Dependencies
from flow_core.plan import Task
from flow_core.sharding.topology import Device

Span = tuple[float, float]
"""The start and the end of an interval, in seconds."""


@dataclass(frozen=True, slots=True)
class Lane:
    """What a lane does during a step; the three parts add up to the time of the step.

    Attributes:
        name: the process or the device.
        computing: the seconds of tasks that compute.
        exposed: the seconds of exchanges during which the lane computes nothing.
        bubble: the seconds in which it waits.
    """

    name: str
    computing: float
    exposed: float
    bubble: float


@dataclass(frozen=True, slots=True)
class Step:
    """A simulated step.

    Attributes:
        spans: the interval of each task.
        lanes: the lanes that compute.
        path: the critical path: positions of tasks, of which each starts when the one before ends.
        seconds: the time of the step.
    """

    costs: TaskCosts
    spans: tuple[Span, ...]
    lanes: tuple[Lane, ...]
    path: tuple[int, ...]
    seconds: float


def simulate_step(
    costs: TaskCosts, processes: int = 1, slower: Mapping[int, float] | None = None
) -> Step:
    """Simulate a step of a plan.

    Args:
        processes: the number of processes, over which the devices of the host are distributed as
            programs of several processes distribute them.
        slower: factors on the times of tasks, by position.

    Raises:
        PlanError: tasks wait for each other.
    """
    plan, factors = costs.plan, slower or {}
    seconds = [costs.seconds(t) * factors.get(i, 1.0) for i, t in enumerate(plan.tasks)]
    process_of = _process_of(costs, processes)
    lanes = _lanes(costs, process_of, seconds, _on_threads(costs, processes))
    order: dict[str, list[int]] = {}
    for i, names in enumerate(lanes):
        for name in names:
            order.setdefault(name, []).append(i)
    before = {i: set(task.waits) for i, task in enumerate(plan.tasks)}
    queues = {name: InOrder(items) for name, items in order.items()}
    cores = _shared_cores(costs, process_of)
    uplinks = _shared_uplinks(costs)
    loop = EventLoop(
        Dependencies(before), queues, dict(enumerate(lanes)), seconds.__getitem__, float,
        {i: (*cores.get(i, ()), *uplinks.get(i, ())) for i in cores.keys() | uplinks.keys()},
        {name: costs.model.cores for names in cores.values() for name in names},
        plan.workers if _on_threads(costs, processes) else 0,
    )  # fmt: skip
    run = loop.run()
    if len(run.end) != len(plan.tasks):
        stuck = next(i for i in range(len(plan.tasks)) if i not in run.end)
        raise PlanError(
            f"simulating a step of job {plan.job!r}",
            found=f"task {stuck} ({plan.tasks[stuck].op}) waits for tasks that wait for it",
        )
    spans = tuple([(run.start[i], run.end[i]) for i in range(len(plan.tasks))])
    total = run.now + costs.model.step
    found = tuple(_lane(costs, name, items, spans, total) for name, items in order.items())
    path = _critical(before, order, lanes, spans)
    return Step(costs, spans, tuple(lane for lane in found if lane.computing), path, total)


def _on_threads(costs: TaskCosts, processes: int) -> bool:
    """Return whether threads of one process run the streams of all devices."""
    plan = costs.plan
    hosted = all(costs.is_hosted(arena.device) for arena in plan.arenas)
    return plan.workers > 1 and processes == 1 and hosted


OVERLAPPING = 1e-4
"""The mean seconds of a task from which on processes compute while they exchange data.

It corresponds to what `flow_core.runtime.streams.OverlapIfLong` measures."""


def _process_of(costs: TaskCosts, processes: int) -> Callable[[Device], int]:
    """Return a function that returns the number of the process of a device."""
    machines = 1 + max((a.device.machine for a in costs.plan.arenas), default=0)
    each = max(1, processes // machines)

    def process(device: Device) -> int:
        if processes < machines:
            return device.machine * processes // machines
        return device.machine * each + device.index % each

    return process


def _lanes(
    costs: TaskCosts,
    process_of: Callable[[Device], int],
    seconds: Sequence[float],
    on_threads: bool,
) -> list[tuple[str, ...]]:
    """Return the lanes of each task, given its time.

    Exchanges between processes have lanes of their own if tasks are long.
    """
    plan = costs.plan
    overlap = sum(seconds) >= OVERLAPPING * len(seconds)

    def names(task: Task) -> tuple[str, ...]:
        if not costs.is_hosted(task.device) or on_threads:
            return (plan.streams[task.stream] if plan.streams else str(task.device),)
        found = dict.fromkeys(map(process_of, costs.devices(task)))
        lane = " transfers" if overlap and len(found) > 1 else ""
        return tuple(f"process {number}{lane}" for number in found)

    return [names(task) for task in plan.tasks]


def _shared_cores(
    costs: TaskCosts, process_of: Callable[[Device], int]
) -> dict[int, Sequence[str]]:
    """Return the machines on whose cores each task runs, each as often as the task has threads.

    In an exchange, a thread of each process copies and adds.
    """
    found = dict[int, Sequence[str]]()
    for i, task in enumerate(costs.plan.tasks if costs.model.cores else ()):
        if costs.is_hosted(task.device):
            threads = 1 if task.type == BOXING else costs.threads
            machines = {process_of(device): device.machine for device in costs.devices(task)}
            found[i] = [f"machine {number}" for number in machines.values()] * threads
    return found


def _shared_uplinks(costs: TaskCosts) -> dict[int, Sequence[str]]:
    """Return the uplinks that each exchange shares with others."""
    classes, found = costs.model.links.classes, dict[int, Sequence[str]]()
    if not any(link.uplink for link in classes):
        return found
    for i, task in enumerate(costs.plan.tasks):
        devices = costs.devices(task) if task.type == BOXING else ()
        names = {
            f"{link.name} {below.group(device)}"
            for below, link in pairwise(classes)
            if link.uplink and len({below.group(d) for d in devices}) > 1
            for device in devices
        }
        if names:
            found[i] = sorted(names)
    return found


def _lane(
    costs: TaskCosts, name: str, items: Sequence[int], spans: Sequence[Span], total: float
) -> Lane:
    """Return what a lane does; the exchanges of a device are those in which it takes part."""
    tasks = costs.plan.tasks
    own = [spans[i] for i in items if tasks[i].type != BOXING]
    devices = {tasks[i].device for i in items if tasks[i].type != BOXING}
    moving = [
        spans[i] for i, task in enumerate(tasks)
        if task.type == BOXING and not devices.isdisjoint(costs.devices(task))
    ]  # fmt: skip
    computing = _measure(own)
    exposed = _measure([*own, *moving]) - computing
    return Lane(name, computing, exposed, total - computing - exposed)


def _measure(spans: Sequence[Span]) -> float:
    """Return the total length of the union of intervals.

    >>> _measure([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _critical(
    before: Mapping[int, set[int]],
    order: Mapping[str, Sequence[int]],
    lanes: Sequence[Sequence[str]],
    spans: Sequence[Span],
) -> tuple[int, ...]:
    """Return the tasks of which each starts as late as it does because of the one before."""
    previous: dict[int, list[int]] = {}
    for items in order.values():
        for a, b in pairwise(items):
            previous.setdefault(b, []).append(a)
    if not spans:
        return ()
    at = max(range(len(spans)), key=lambda i: (spans[i][1], i))
    path = [at]
    while True:
        causes = [*before[at], *previous.get(at, ())]
        if not causes:
            return tuple(reversed(path))
        at = max(causes, key=lambda i: (spans[i][1], i))
        path.append(at)
