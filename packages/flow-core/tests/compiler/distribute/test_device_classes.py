"""The plan of one device per class against the plan of all devices, which is the oracle."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.thread_budget import Budget
from flow_core.comm.exchange import BOXING, Exchange, devices_of_task, exchange_of, exchanges
from flow_core.comm.gathers import GatherPlan, gather_plans
from flow_core.compiler.request import Compiled
from flow_core.frontend.session.session import default_session
from flow_core.plan import ArenaPlan, Buffer, Plan, Task
from flow_core.sharding.topology import Device


def dense(name: str, x: Any, units: int, **split: Any) -> Any:
    init = flow.constant_initializer(0.1)
    weight = flow.get_variable(name, (x.shape[1], units), initializer=init, **split)
    return flow.math.relu(flow.matmul(x, weight))


def mlp(x: Any) -> Any:
    return flow.math.reduce_mean(dense("b", flow.nn.dropout(dense("a", x, 16), 0.5), 24))


def megatron(x: Any) -> Any:
    h = dense("a", x, 16, distribute=flow.distribute.split(1))
    return flow.math.reduce_mean(dense("b", h, 24, distribute=flow.distribute.split(0)))


def convolution(x: Any) -> Any:
    x = flow.reshape(x, (x.shape[0], 1, 4, 4))
    init = flow.constant_initializer(0.1)
    weight = flow.get_variable("w", (8, 1, 3, 3), initializer=init)
    x = flow.layers.batch_normalization(flow.nn.conv2d(x, weight, 1, "SAME"), axis=1, name="bn")
    return flow.math.reduce_mean(flow.math.relu(x))


def in_parts(*ids: str, grid: tuple[int, ...] | None = None) -> Callable[[], Any]:
    return lambda: flow.scope.placement("null", list(ids), grid)


def stages(x: Any) -> Any:
    for stage in range(2):
        with flow.scope.placement("null", f"0:{4 * stage}-{4 * stage + 3}"):
            x = dense(f"s{stage}", x, 16)
    with flow.scope.placement("null", "0:4-7"):
        return flow.math.reduce_mean(x)


def compiled(
    body: Callable[[Any], Any],
    scope: Callable[[], Any],
    rows: int,
    classes: tuple[Device, ...] | None,
    micro_batches: int = 1,
    mode: str | None = None,
    view: Callable[[], Any] = flow.scope.consistent_view,
    cores: int = 0,
) -> Compiled:
    """Compile a training job for all devices, or for the given devices and one of each class."""
    flow.clear_default_session()
    flow.config.machine_num(2)
    if cores:
        default_session().budget = Budget(cores, "the test")
    config = flow.function_config()
    config.share_replicas(False)
    config.default_logical_view(view())
    if micro_batches > 1:
        config.train.num_gradient_accumulation_steps(micro_batches)
    if mode:
        config.optimizer_placement_optimization_mode(mode)
        config.optimizer_placement_optimization_threshold(1)

    result: Any = tp.Numpy if view is flow.scope.consistent_view else tp.ListNumpy

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((rows, 16))) -> result:
        with scope():
            loss = body(x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    return job.compile() if classes is None else job.compile_classes(*classes)


ALL = tuple(Device("null", 0, i) for i in range(8))
EIGHT, TWO = in_parts("0:0-7"), in_parts("0:0-3", "1:0-3")
CASES = {
    "data": (mlp, EIGHT, 16),
    "uneven data": (mlp, EIGHT, 13),
    "fewer rows than devices": (mlp, EIGHT, 5),
    "two machines": (mlp, TWO, 18),
    "megatron": (megatron, EIGHT, 16),
    "uneven megatron": (megatron, in_parts("0:0-5"), 16),
    "grid": (megatron, in_parts("0:0-7", grid=(2, 4)), 16),
    "uneven grid": (mlp, in_parts("0:0-7", grid=(2, 4)), 13),
    "normalization": (convolution, EIGHT, 12),
    "zero": (mlp, EIGHT, 16, 1, "distributed_split"),
    "zero, uneven": (mlp, in_parts("0:0-4"), 11, 1, "distributed_split"),
    "states on one": (mlp, EIGHT, 16, 1, "non_distributed"),
    "mirrored": (mlp, in_parts("0:0-3"), 12, 1, None, flow.scope.mirrored_view),
    "accumulation": (mlp, EIGHT, 32, 2),
    "pipeline": (stages, EIGHT, 32, 4),
    "uneven pipeline": (stages, EIGHT, 24, 4),
}


def restricted(plan: Plan, kept: frozenset[Device]) -> Any:
    """Return the parts of a plan that belong to some devices, with names instead of positions."""
    buffers = [_unnumbered(plan, b) for b in plan.buffers if b.device in kept]
    tasks = [task for task in plan.tasks if _takes_part(plan, task, kept)]
    return {
        "arenas": [_arena(a) for a in plan.arenas if a.device in kept],
        "buffers": buffers,
        "prologue": [_row(plan, t, kept) for t in plan.prologue if _takes_part(plan, t, kept)],
        "tasks": [_row(plan, task, kept) for task in tasks],
        "feeds": [
            (plan.buffers[i].name, fed)
            for i, fed in zip(plan.feeds, plan.fed, strict=True)
            if plan.buffers[i].device in kept
        ],
        "fetches": [plan.buffers[i].name for i in plan.fetches],
        "variables": {n: plan.buffers[i].name for n, i in plan.variables.items()
                      if plan.buffers[i].device in kept},
        "shards": {n: s for n, s in plan.shards.items()
                   if plan.buffers[plan.variables[n]].device in kept},
        "ledger": [replace(entry, links={}) for entry in plan.ledger],
        "registers": plan.registers,
        "micro_batches": plan.micro_batches,
    }  # fmt: skip


def _unnumbered(plan: Plan, buffer: Buffer) -> Buffer:
    """Return a buffer without positions of tasks, and of the outputs of an exchange."""
    is_exchanged = "/box" in buffer.op or buffer.op.endswith("/bucket")
    return replace(buffer, first=0, last=0, output=0 if is_exchanged else buffer.output)


def _arena(arena: ArenaPlan) -> Any:
    owners = sorted((n, name.rpartition(":")[0], line) for n, name, line in arena.owners)
    return arena.device, arena.nbytes, arena.lower_bound, owners


def _devices(plan: Plan, task: Task) -> set[Device]:
    return {plan.buffers[i].device for i in (*task.inputs, *task.outputs)} or {task.device}


def _takes_part(plan: Plan, task: Task, kept: frozenset[Device]) -> bool:
    return bool(_devices(plan, task) & kept)


def _row(plan: Plan, task: Task, kept: frozenset[Device]) -> Any:
    def names(positions: tuple[int, ...]) -> list[Buffer]:
        found = [plan.buffers[i] for i in positions]
        return [_unnumbered(plan, b) for b in found if b.device in kept]

    waits = [plan.tasks[i] for i in task.waits]
    row = replace(
        task, inputs=(), outputs=(), workspace=None, waits=(), stream=0, attrs={}, device=ALL[0]
    )
    attrs = {k: v for k, v in task.attrs.items() if k not in IN_PART} if task.type == BOXING else (
        task.attrs
    )  # fmt: skip
    before = sorted(t.op for t in waits if _takes_part(plan, t, kept))
    return (
        row, names(task.inputs), names(task.outputs), dict(attrs), before,
        plan.streams[task.stream] if plan.streams else "",
        None if task.workspace is None else plan.buffers[task.workspace].offset,
    )  # fmt: skip


IN_PART = ("shapes", "blocks", "fills", "whole")
"""The attributes of an exchange that depend on the devices in the plan."""


@pytest.mark.representative(
    r"\[(fewer rows than devices|uneven megatron|zero, uneven|uneven pipeline)\]",
    "an uneven split of rows, weights, states and stages, and devices without rows",
)
@pytest.mark.parametrize("case", CASES)
def test_a_plan_of_classes_is_a_part_of_the_whole_plan(case: str) -> None:
    body, scope, rows, *more = CASES[case]
    whole = compiled(body, scope, rows, None, *more)
    part = compiled(body, scope, rows, (), *more)
    kept = part.physical.kept
    expected, found = restricted(whole.plan, kept), restricted(part.plan, kept)
    for name, value in expected.items():
        assert found[name] == value, name


@pytest.mark.representative(
    r"\[(6-uneven data|3-pipeline)\]",
    "a device with fewer rows than the first one, and one in the middle of a pipeline",
)
@pytest.mark.parametrize("case", ["uneven data", "uneven grid", "zero", "pipeline"])
@pytest.mark.parametrize("rank", [3, 6])
def test_a_plan_may_have_any_other_device(case: str, rank: int) -> None:
    body, scope, rows, *more = CASES[case]
    whole = compiled(body, scope, rows, None, *more)
    part = compiled(body, scope, rows, (ALL[rank],), *more)
    kept = part.physical.kept
    assert ALL[rank] in kept
    assert restricted(part.plan, kept) == restricted(whole.plan, kept)


@pytest.mark.representative(
    r"\[(fewer rows than devices|uneven megatron|zero, uneven|uneven pipeline)\]",
    "an uneven split of rows, weights, states and stages, and devices without rows",
)
@pytest.mark.parametrize("case", CASES)
def test_devices_of_a_class_have_equal_arenas_and_as_many_tasks(case: str) -> None:
    body, scope, rows, *more = CASES[case]
    whole, part = (compiled(body, scope, rows, only, *more) for only in (None, ()))
    sizes = {arena.device: arena.nbytes for arena in whole.plan.arenas}
    for members in part.physical.classes:
        assert len({sizes[device] for device in members if device in sizes}) <= 1
        assert len({sum(t.device == d and t.type != BOXING for t in whole.plan.tasks)
                    for d in members}) == 1  # fmt: skip


def test_all_devices_may_be_asked_for() -> None:
    whole, part = (compiled(mlp, EIGHT, 16, only) for only in (None, ALL))
    everything = frozenset(ALL)
    assert restricted(part.plan, everything) == restricted(whole.plan, everything)
    assert part.plan.ledger == whole.plan.ledger


@pytest.mark.parametrize("case", ["data", "uneven grid", "pipeline"])
def test_kernels_have_as_many_threads_as_in_a_plan_of_all_devices(case: str) -> None:
    body, scope, rows, *more = CASES[case]
    found = []
    for cores in (4, 32):
        for devices in (None, (), (ALL[3],)):
            plan = compiled(body, scope, rows << 16, devices, *more, cores=cores).plan
            found.append(plan.cores.kernels)
    assert found == [1, 1, 1, 4, 4, 4]


def test_the_number_of_tasks_does_not_depend_on_the_number_of_devices() -> None:
    few, many = (
        compiled(mlp, in_parts(*(f"{m}:0-{last}" for m in range(2))), 16 * (last + 1), ())
        for last in (3, 63)
    )
    assert len(many.plan.tasks) == len(few.plan.tasks)
    assert [len(c) for c in many.physical.classes] == [1, 127]


@pytest.mark.representative(
    r"\[(fewer rows than devices|uneven grid|zero, uneven|uneven pipeline)\]",
    "an uneven split of rows, weights, states and stages, and devices without rows",
)
@pytest.mark.parametrize("case", CASES)
def test_a_device_computes_its_part_of_an_exchange_from_layouts(case: str) -> None:
    body, scope, rows, *more = CASES[case]
    whole = compiled(body, scope, rows, None, *more).plan
    for device in [arena.device for arena in whole.arenas][::3]:
        part = compiled(body, scope, rows, (device,), *more).plan
        expected = {exchange.name: exchange for exchange in both(whole)}
        for task in (*part.prologue, *part.tasks):
            if task.type != BOXING:
                continue
            full = expected[task.op]
            assert exchange_of(task, part.buffers) in (full, without_summed(full))
            assert devices_of_task(task, part.buffers) == set(full.devices)
            own = exchange_of(task, part.buffers, {device})
            bound = own.most_bytes()
            assert exchange_of(task, part.buffers).most_bytes() == bound >= full.most_bytes()
            if task.attrs["whole"] and device in full.devices:
                assert gathers_of(own, device) == gathers_of(full, device)


def both(plan: Plan) -> Iterator[Exchange]:
    yield from exchanges(plan)
    yield from exchanges(plan, once=True)


def without_summed(exchange: Exchange) -> Exchange:
    """Return an exchange between separate memories."""
    return replace(exchange, summed=())


def gathers_of(exchange: Exchange, device: Device) -> list[Any]:
    """Return what a device sends and receives, in order, and what its outputs start with."""
    found: list[Any] = []
    for gather in gather_plans(exchange):
        parts = [
            p for p in gather.parts if device in (p.device(exchange), receiver(gather, exchange))
        ]
        if parts:
            found.append((gather.target, parts))
    filled = [row for row in exchange.fills if exchange.receivers[row[0]] == device]
    return [found, filled]


def receiver(gather: GatherPlan, exchange: Exchange) -> Device:
    return gather.target.device(exchange)
