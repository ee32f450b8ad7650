"""Launches of several drivers: the driver that compiles them, and the order of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from flow_core.base.config import Settings
from flow_core.base.dtypes import float64
from flow_core.base.hazards import Access, find_waits
from flow_core.builtin.numpy_driver import NumpyDriver
from flow_core.comm.exchange import BOXING
from flow_core.device import Driver, Event, Launch
from flow_core.ir.graph import tensor_type
from flow_core.plan import ArenaPlan, Buffer, Plan, Task
from flow_core.plugins.host import load_plugins
from flow_core.runtime.launch_order import Calls, LaunchOrder
from flow_core.sharding.topology import Device
from flow_core.testing.queued_device import QueuedDriver, QueuedStream

CPUS = [Device("cpu", 0, i) for i in range(2)]
QUEUED = [Device("queued", 0, i) for i in range(2)]
REGISTRY = load_plugins(Settings(plugins=()))
TYPE = tensor_type((4,), float64)


class CountingDriver(NumpyDriver):
    """A driver with a compile group of its own that keeps what it compiles."""

    compile_group = "counting"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.compiled: list[int] = []

    def compile(self, launches: Sequence[Launch]) -> Launch:
        self.compiled.append(len(launches))
        return super().compile(launches)


def task(device: Device, reads: Sequence[int], writes: int, type_: str = "t") -> Task:
    return Task("t", type_, {}, tuple(reads), (writes,), None, device, "t")


def plan_of(devices: Sequence[Device], buffers: Sequence[Device], tasks: Sequence[Task]) -> Plan:
    made = [Buffer(f"b{i}", 0, "temp", d, 64 * i, TYPE) for i, d in enumerate(buffers)]
    arenas = tuple(ArenaPlan(d, 0, 0) for d in devices)
    return Plan("job", arenas, tuple(made), (), tuple(tasks), (), (), {})


def test_one_group_is_one_compile() -> None:
    """Devices of one compile group keep the launches of a step in one call, in order."""
    drivers = {device: CountingDriver(device) for device in CPUS}
    tasks = [task(CPUS[i % 2], (), i) for i in range(6)]
    plan = plan_of(CPUS, [t.device for t in tasks], tasks)
    seen: list[int] = []
    launches = [(partial(seen.append, i),) for i in range(6)]
    step = LaunchOrder(plan, CPUS, drivers.__getitem__, REGISTRY).compile(tasks, launches)
    step()
    assert seen == [*range(6)]
    assert [d.compiled for d in drivers.values()] == [[6], []]
    assert not isinstance(step, Calls)


def test_each_driver_compiles_its_launches() -> None:
    other = Device("other", 0, 0)
    drivers: dict[Device, Any] = {CPUS[0]: NumpyDriver(CPUS[0]), other: CountingDriver(other)}
    devices = [CPUS[0], other, other, CPUS[0], other]
    tasks = [task(device, (), i) for i, device in enumerate(devices)]
    plan = plan_of(list(drivers), devices, tasks)
    seen: list[int] = []
    launches = [(partial(seen.append, i),) for i in range(5)]
    step = LaunchOrder(plan, list(drivers), drivers.__getitem__, REGISTRY).compile(tasks, launches)
    step()
    assert seen == [*range(5)]
    assert drivers[other].compiled == [2, 1]
    assert isinstance(step, Calls)
    assert len(step.calls) == 4, "synchronous drivers need no events"


class Case:
    """Random tasks on a CPU and two queued devices, some of which access others' memory."""

    def __init__(self, seed: int, stream: type[QueuedStream] = QueuedStream) -> None:
        rng = np.random.default_rng(seed)
        self.devices = [CPUS[0], *QUEUED]
        self.buffers = [self.devices[i % 3] for i in range(6)]
        self.tasks = list(self._with_waits([self._task(rng) for _ in range(12)]))
        self.drivers: dict[Device, Driver] = {CPUS[0]: NumpyDriver(CPUS[0])}
        for device, delay in zip(QUEUED, rng.permutation([0.0005, 0.004]), strict=True):
            self.drivers[device] = QueuedDriver(device, float(delay), stream)

    def _task(self, rng: Any) -> Task:
        """Return a task of one device, or one that moves data between devices, as exchanges."""
        device = self.devices[rng.integers(3)]
        own = [i for i, d in enumerate(self.buffers) if d == device]
        if rng.random() < 0.6:
            return task(device, rng.choice(own, 1).tolist(), int(rng.choice(own)))
        source, target = rng.choice(6, 2, replace=False).tolist()
        return task(self.buffers[source], [source], target, BOXING)

    def _with_waits(self, tasks: list[Task]) -> Iterator[Task]:
        """Yield the tasks with the waits that the compiler would give them."""
        streams = [4 if t.type == BOXING else self.devices.index(t.device) for t in tasks]
        rows = [
            [*(Access(i, 0, 1, False) for i in t.inputs), Access(t.outputs[0], 0, 1, True)]
            for t in tasks
        ]
        waits = find_waits(streams, rows)
        for t, stream, before in zip(tasks, streams, waits, strict=True):
            yield Task(**{**_fields(t), "stream": stream, "waits": before})

    def expected(self, steps: int) -> list[list[float]]:
        values = [np.zeros(4) for _ in self.buffers]
        for step in range(steps):
            self._feed(values, step)
            for position, t in enumerate(self.tasks):
                _run(values, t, position)
        return [x.tolist() for x in values]

    def found(self, steps: int) -> list[list[float]]:
        """Run steps: feeds are copied as work of the memory's owner, and so are results."""
        values = [np.zeros(4) for _ in self.buffers]
        plan = plan_of(self.devices, self.buffers, self.tasks)
        order = LaunchOrder(plan, self.devices, self.drivers.__getitem__, REGISTRY)
        launches = [
            (self._launch(order, t, partial(_run, values, t, position)),)
            for position, t in enumerate(self.tasks)
        ]
        step = order.compile(self.tasks, launches)
        for number in range(steps):
            for device in self.devices:
                owned = [i for i, d in enumerate(self.buffers) if d == device]
                copy = partial(self._feed, values, number, owned)
                self._enqueue(order, device, copy)
            step()
        results: list[list[float]] = [[] for _ in values]
        for i, device in enumerate(self.buffers):
            self._enqueue(order, device, lambda i=i: results[i].extend(values[i]))
        for stream in order.streams.values():
            stream.synchronize()
        return results

    def _feed(self, values: list[Any], step: int, which: Sequence[int] = range(6)) -> None:
        for i in which:
            if i % 2:
                values[i][:] = step + i

    def _launch(self, order: LaunchOrder, t: Task, work: Launch) -> Launch:
        """Enqueue on the first queued device that takes part, as the runtime assigns tasks."""
        where = [t.device]
        if t.type == BOXING:
            where += [self.buffers[i] for i in (*t.inputs, *t.outputs)]
        device = next((d for d in where if d.type == "queued"), where[0])
        return partial(self._enqueue, order, device, work)

    def _enqueue(self, order: LaunchOrder, device: Device, work: Launch) -> None:
        stream: Any = order.streams[device]
        stream.enqueue(work) if device.type == "queued" else work()


def _fields(t: Task) -> dict[str, Any]:
    return {name: getattr(t, name) for name in Task.__dataclass_fields__}


def _run(values: list[Any], t: Task, position: int) -> None:
    (source,), (target,) = t.inputs, t.outputs
    values[target][:] = values[target] * 0.5 + values[source] + position


@pytest.mark.parametrize("seed", range(25))
def test_events_keep_the_order_of_the_plan(seed: int) -> None:
    """Asynchronous work of several steps, feeds and results included, is as in sequence."""
    assert Case(seed).found(3) == Case(seed).expected(3)


class NoWait(QueuedStream):
    def wait_event(self, event: Event) -> None:
        pass


@pytest.mark.slow
def test_forgotten_events_change_results() -> None:
    """The cases above would notice missing waits."""
    wrong = sum(Case(seed, NoWait).found(3) != Case(seed).expected(3) for seed in range(25))
    assert wrong >= 10
