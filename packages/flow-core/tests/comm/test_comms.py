"""The in-process comm and a comm with one process per device pass the kit."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import processes
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.dtypes import float32
from flow_core.base.errors import PlanError
from flow_core.builtin.in_process import InProcessComm
from flow_core.builtin.null_driver import NullComm
from flow_core.comm.exchange import COMBINE, DevicePair, Exchange, check_arrays, exchanges, neutral
from flow_core.device import Comm, Launch
from flow_core.plugins.host import Host
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import Available, CommSpec, Unavailable
from flow_core.runtime.executable import Executable
from flow_core.sharding.topology import Device
from flow_core.testing import CommKit
from flow_core.testing.comm_cases import CASES

pytestmark = pytest.mark.representative(
    r"test_moves\[.*-(float32|bool)\]|test_(?!moves|is_bound_once|counts)|_(uneven|empty)\]",
    "most transfers do not depend on the type; uneven and empty parts are edge cases",
)


DEVICES = CommKit.devices


class Wires:
    """Queues between all pairs of devices, which simulate a network."""

    def __init__(self, devices: Sequence[Device]) -> None:
        pairs = [(a, b) for a in devices for b in devices if a != b]
        self._queues: dict[DevicePair, queue.Queue[Any]] = {p: queue.Queue() for p in pairs}

    def put(self, sender: Device, receiver: Device, part: Any) -> None:
        self._queues[sender, receiver].put(part.copy())

    def get(self, sender: Device, receiver: Device, shape: tuple[int, ...]) -> Any:
        part = self._queues[sender, receiver].get(timeout=processes.scaled(120))
        assert part.shape == shape, "sender and receiver disagree about the next message"
        return part


class OneDeviceComm(Comm):
    """A comm of a process with one device; it sees only its own arrays.

    It sends and receives block by block, in the order of the exchange.
    """

    name = "wires"

    def __init__(self, devices: Sequence[Device], rank: int, wires: Wires) -> None:
        self.devices, self.local = tuple(devices), (devices[rank],)
        self._wires, self._sent = wires, Counter[DevicePair]()

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Launch, ...]:
        check_arrays(exchange, self.local, inputs, outputs)
        run = self._all_reduce if exchange.collective == "all_reduce" else self._swap
        return (lambda: run(exchange, inputs, outputs),)

    def sent(self) -> Mapping[DevicePair, int]:
        return dict(self._sent)

    def _give(self, receiver: Device, part: Any) -> None:
        self._wires.put(self.local[0], receiver, part)
        self._sent[self.local[0], receiver] += part.nbytes

    def _swap(self, t: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        (me,) = self.local
        for index, operation in t.fills:
            if t.receivers[index] == me:
                outputs[index][...] = neutral(operation, t.outputs[index].dtype)
        moves = [(b, t.senders[b.source], t.receivers[b.target]) for b in t.blocks]
        for b, sender, receiver in moves:
            if sender == me != receiver:
                self._give(receiver, _box(inputs[b.source], b.start, b.size))
        for b, sender, receiver in moves:
            if receiver == me:
                new = (
                    _box(inputs[b.source], b.start, b.size)
                    if sender == me
                    else self._wires.get(sender, me, b.size)
                )
                out = _box(outputs[b.target], b.at, b.size)
                out[...] = new if b.first else COMBINE[t.combine](out, new)

    def _all_reduce(self, t: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        (me,), group = self.local, t.group
        if me not in group:
            return
        mine = group.index(me)
        for owner, segments in zip(group, t.chunks(), strict=True):
            for member, low, high in segments:
                part = inputs[member * len(group) + mine].reshape(-1)[low:high]
                if owner != me:
                    self._give(owner, part)
                    continue
                parts = [part if d == me else self._wires.get(d, me, part.shape) for d in group]
                out = outputs[member * len(group) + mine].reshape(-1)[low:high]
                out[...] = reduce(COMBINE[t.combine], parts)
        for owner, segments in zip(group, t.chunks(), strict=True):
            for member, low, high in segments:
                out = outputs[member * len(group) + mine].reshape(-1)[low:high]
                if owner == me:
                    for other in (d for d in group if d != me):
                        self._give(other, out)
                else:
                    out[...] = self._wires.get(owner, me, out.shape)


def _box(array: Any, start: tuple[int, ...], size: tuple[int, ...]) -> Any:
    return array[*(slice(a, a + n) for a, n in zip(start, size, strict=True)), ...]


def in_threads(devices: Sequence[Device], body: Callable[[Comm], None]) -> None:
    """Run a body in one thread per device, each with its own comm, as processes would."""
    wires, errors = Wires(devices), []

    def run(rank: int) -> None:
        try:
            body(OneDeviceComm(devices, rank, wires))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(r,)) for r in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class TestInProcessComm(CommKit):
    plugin = "core.comm"


class TestOneDevicePerProcess(CommKit):
    """Exchanges are sufficient for processes that see only their own arrays."""

    comm_name = "wires"
    dtypes = ("float32", "int8", "bool", "bfloat16")

    def everywhere(self, body: Callable[[Comm], None]) -> None:
        in_threads(self.devices, body)


# ----------------------------------------------------------------------------------- the registry


class Plugin:
    FLOW_PLUGIN_API = "1.0"
    __name__ = "cables"

    def __init__(self, *specs: CommSpec) -> None:
        self._specs = specs

    def flow_register_comms(self) -> Iterator[CommSpec]:
        yield from self._specs


def registry(*specs: CommSpec, emulate_gpus: int = 0) -> Registry:
    builtins = ("flow_core.builtin.comm_plugin", "flow_core.builtin.null_plugin")
    plugins = [Plugin(*specs)] if specs else []
    return Host(Settings(plugins=(), emulate_gpus=emulate_gpus), plugins, builtins).load()


def test_emulated_devices_share_a_comm_with_the_cpu() -> None:
    devices = (Device("gpu", 0, 0), Device("cpu", 0, 0))
    comm = registry(emulate_gpus=1).comm(devices)
    assert (comm.name, comm.devices) == ("in_process", devices)


def test_available_comm_with_the_highest_priority_is_selected() -> None:
    def made(devices: Sequence[Device]) -> NullComm:
        return NullComm(devices)

    good = CommSpec("good", ("cpu",), lambda: Available(2), made, 5)
    better = CommSpec("better", ("cpu",), lambda: Unavailable("not launched for it"), made, 9)
    assert isinstance(registry(good, better).comm(DEVICES), NullComm)
    assert registry(better).comm(DEVICES).name == "in_process"


def test_null_devices_send_nothing() -> None:
    devices = tuple(Device("null", 0, i) for i in range(4))
    comm = registry().comm(devices)
    assert isinstance(comm, Comm)
    (exchange,) = CASES["all_reduce"](devices, float32)
    arrays = [np.zeros(t.shape, "f4") for t in exchange.inputs]
    assert list(comm.bind(exchange, arrays, arrays)) == []
    assert comm.sent() == {}


# -------------------------------------------------------------- a plan with one process per device


def steps(count: int) -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield rng.random((18, 12), "f4"), rng.integers(0, 5, 18).astype("i4")


def train_job(rows: bool) -> Any:
    flow.clear_default_session()
    init = flow.random_normal_initializer(stddev=0.3)
    hint = {"model_distribute": flow.distribute.split(0)} if rows else {}
    config = flow.function_config()
    config.share_replicas(False)

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder((18, 12)),  # type: ignore[valid-type]
        y: tp.Numpy.Placeholder((18,), dtype=flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3"):
            h = flow.layers.dense(x, 15, kernel_initializer=init, name="h", **hint)
            h = flow.layers.dense(flow.nn.relu(h), 5, kernel_initializer=init, name="o")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, h)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    return job


@pytest.mark.parametrize("rows", [False, True])
def test_processes_running_their_parts_of_a_plan_compute_the_same(rows: bool) -> None:
    job = train_job(rows)
    session, plan = job.active_session(), job.plan()
    whole = job.executable()
    initial = {name: session.value(name) for name in session.declared}
    wanted = [job(*feeds) for feeds in steps(3)]
    held: dict[tuple[str, Device], tuple[Any, Any]] = {}
    results: list[Any] = []
    sent: Counter[DevicePair] = Counter()

    def variable(name: str, device: Device, region: Any, shape: Any) -> Any:
        window = (...,) if region is None else tuple(slice(a, b) for a, b in region)
        return held.setdefault((name, device), (window, initial[name][window].copy()))[1].reshape(
            shape
        )

    def body(comm: Comm) -> None:
        part = Executable(plan, session.registry, session.driver, variable, comm=lambda _: comm)
        assert set(part.arenas) == set(comm.local)
        for feeds in steps(3):
            (result,) = part.run(feeds)
            if result is not None:
                results.append(result)
        sent.update(part.sent())

    in_threads([arena.device for arena in plan.arenas], body)
    np.testing.assert_array_equal(results, wanted)
    for (name, _), (window, array) in held.items():
        np.testing.assert_array_equal(array, session.value(name)[window], name)
    assert sent == whole.sent()


class WatchedComm(InProcessComm):
    """A comm that observes steps."""

    def __init__(self, devices: Any) -> None:
        super().__init__(devices)
        self.log: list[str] = []
        self.failed = False

    def before_step(self) -> None:
        self.log.append("before")

    def after_step(self) -> None:
        self.log.append(f"after, {sum(self.sent().values())} bytes")
        if self.failed:
            raise PlanError("running a step", found="a broken link")


def test_comm_observes_steps_and_may_reject_their_results() -> None:
    job = train_job(False)
    session, plan = job.active_session(), job.plan()
    job.executable()
    comm = WatchedComm([arena.device for arena in plan.arenas])
    each = sum(n for exchange in exchanges(plan) for n in exchange.links().values())
    part = Executable(plan, session.registry, session.driver, session.variable, comm=lambda _: comm)
    once = sum(comm.sent().values())
    for feeds in steps(2):
        part.run(feeds)
    assert comm.log == [
        "before", f"after, {once + each} bytes", "before", f"after, {once + 2 * each} bytes"
    ]  # fmt: skip
    comm.failed = True
    with pytest.raises(PlanError, match="a broken link"):
        part.run(next(steps(1)))
