"""Lowering: an ordered physical graph becomes the tasks of a plan, on buffers with fixed offsets.

Each phase is a function of immutable inputs (`flow_core.compiler.lower.inputs`):

1. `order_ops` determines the order of the ops, and the replicas that devices share;
2. `choose_kernels` chooses a kernel for each op;
3. `assign_storage` determines the owner of each value's bytes, and the live ranges of the owners;
4. `lower` creates buffers, their offsets, tasks and the waits between streams.

Invariants of the plan: a task comes after the tasks whose results it reads; tasks that use the same
bytes are in the same stream or ordered by waits; no memory is reused while a task still uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flow_core.base.alignment import ALIGNMENT, aligned
from flow_core.base.dtypes import uint8
from flow_core.base.errors import GraphError, OutOfMemoryError
from flow_core.base.hazards import Access, find_waits
from flow_core.base.philox import op_seed
from flow_core.base.shapes import Shape
from flow_core.base.thread_pools import find_open_mp
from flow_core.comm.exchange import BOXING
from flow_core.compiler.lower.inputs import LEAVES, CompileOptions, Inputs, Kernels
from flow_core.compiler.lower.kernel_choice import KernelChoice, choose_kernels, divide_cores
from flow_core.compiler.lower.ordering import Order, order_ops, worker_count
from flow_core.compiler.memory.arena_assignment import Buffers, place
from flow_core.compiler.memory.inplace_reduction import lowered_form
from flow_core.compiler.memory.live_ranges import (
    Execution,
    Storage,
    assign_storage,
    device_of,
    owned_buffers,
    workspace_buffer,
)
from flow_core.compiler.memory.result_buffers import protected
from flow_core.compiler.schedule.op_costs import OpCosts
from flow_core.compiler.schedule.streams import flows, stream_name
from flow_core.compiler.schedule.thread_allocation import kernel_threads
from flow_core.ir.graph import Graph, Op, Value, tensor_type
from flow_core.passes.gradient_accumulation import draws_by_place
from flow_core.passes.rewriting.derived_values import constant_ops, derived_ops
from flow_core.plan import Buffer, Plan, RegisterPlan, Task
from flow_core.plugins.batchable import side_by_side
from flow_core.sharding.sbp import Region


def lower(
    graph: Graph, kernels: Kernels, inputs: Sequence[str], job: str, options: CompileOptions
) -> Plan:
    """Lower a physical graph to a plan.

    Args:
        graph: the physical graph after all passes, in which each op runs on one device.
    """
    find_open_mp()
    graph = protected(graph, kernels.ops, options.sharing)
    costs = OpCosts(graph, kernels.ops, options.costs, options.recording)
    threads = kernel_threads(costs, options.budget, options.classes)
    derived = frozenset() if options.recording else derived_ops(graph, kernels.ops)
    constant = constant_ops(graph, kernels.ops) | derived
    given = Inputs(graph, kernels, options, threads, constant, derived)
    order = order_ops(given)
    try:
        return _lowered(given, order, inputs, job)
    except OutOfMemoryError:
        if order.table is None or not order.table.postpones:
            raise
    less = replace(given, options=replace(options, postpone=False))
    plan = _lowered(less, order_ops(less), inputs, job)
    unlimited = replace(given, options=replace(options, memory_limit=None))
    faster = {a.device: a.nbytes for a in _lowered(unlimited, order, inputs, job).arenas}
    return replace(plan, arenas=tuple([replace(a, faster=faster[a.device]) for a in plan.arenas]))


def _lowered(given: Inputs, order: Order, inputs: Sequence[str], job: str) -> Plan:
    execution = _execution(given, order)
    storage = assign_storage(execution)
    phases = _Phases(given, order, choose_kernels(given, order), execution, storage)
    return _emit(phases, inputs, job)


def _execution(given: Inputs, order: Order) -> Execution:
    """Return what the planner of memory reads."""
    until = None if order.table is None else order.table.until
    return Execution(
        given.graph, given.specs, order.ops, until, order.sharing, given.constant, given.derived,
        given.options.inplace, given.options.reuse,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Phases:
    """The results of the phases before `lower` emits buffers and tasks."""

    given: Inputs
    order: Order
    choice: KernelChoice
    execution: Execution
    storage: Storage

    @property
    def graph(self) -> Graph:
        return self.given.graph


def _make_buffers(state: _Phases) -> Buffers:
    buffers = Buffers()
    for value, buffer in owned_buffers(state.execution, state.storage):
        buffers.owners[value] = buffers.add(buffer)
    return buffers


def _emit(state: _Phases, inputs: Sequence[str], job: str) -> Plan:
    buffers = _make_buffers(state)
    tasks: list[Task] = []
    prologue: list[Task] = []
    derived: list[Task] = []
    idle = state.order.sharing.idle()
    # Leaves and views have bytes but compute nothing, and another op computes the results of idle
    # ops: none of these needs a task.
    for i, op in enumerate(state.order.ops):
        if (
            op.type in LEAVES
            or op.name in idle
            or state.given.specs[op.type].is_view(len(op.inputs))
        ):
            continue
        once = derived if op.name in state.given.derived else prologue
        target = once if op.name in state.given.constant else tasks
        target.append(_task(state, op, i, buffers))
    fed = _fed(state.graph, inputs)
    feeds = tuple([_view(state, buffers, Value(name, 0)) for name in fed])
    fetches = tuple([_view(state, buffers, v) for v in state.graph.results])
    held = [op for op in state.order.ops if op.type == "variable"]
    variables = {op.name: _view(state, buffers, op.output()) for op in held}
    options = state.given.options
    # Every view has been requested by now: `place` assigns the offsets, and a buffer that is added
    # later would have none.
    arenas, placed = place(
        buffers,
        state.graph.lines,
        options.memory_limit,
        options.is_resident,
        lambda device: options.alignment.get(device.type, ALIGNMENT),
    )
    # Waits follow from accesses to bytes, not to values: two values may have the same offset.
    streams = list(dict.fromkeys(stream_name(state.graph.ops[t.op]) for t in tasks))
    if len(streams) > 1:
        tasks = _with_waits(state, tasks, streams, placed)
    return Plan(
        job=job,
        arenas=arenas,
        buffers=placed,
        prologue=tuple(prologue),
        derived=tuple(derived),
        tasks=tuple(tasks),
        feeds=feeds,
        fed=tuple(fed.values()),
        fed_shapes=_fed_shapes(fed.values(), len(inputs)),
        fetches=fetches,
        variables=variables,
        actors=ACTORS,
        registers=step_registers(options.width),
        streams=tuple(streams),
        flows=_flows(state) if len(streams) > 1 else (),
        workers=worker_count(state.given, state.order, len(streams)),
        cores=divide_cores(state.given, state.order, state.choice),
        settings=state.given.options.settings,
        costs=str(state.given.options.costs),
    )


def _fed(graph: Graph, inputs: Sequence[str]) -> dict[str, tuple[int, Region]]:
    """Return, for each ``input`` op, the position of its fed array and the region that it needs."""
    position = {name: i for i, name in enumerate(inputs)}
    found: dict[str, tuple[int, Region]] = {}
    for op in graph.of_type("input"):
        whole = tuple([(0, n) for n in graph.types[op.name][0].shape])
        region: Any = op.attrs.get("region", whole)
        found[op.name] = (position[str(op.attrs.get("of", op.name))], region)
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def _fed_shapes(fed: Iterable[tuple[int, Region]], count: int) -> tuple[Shape, ...]:
    """Return the shapes of fed arrays whose regions all devices together need."""
    shapes: list[Shape] = [()] * count
    for index, region in fed:
        ends = tuple([high for _, high in region])
        shapes[index] = tuple(map(max, ends, shapes[index] or ends))
    return tuple(shapes)


def _with_waits(
    state: _Phases, tasks: Sequence[Task], streams: Sequence[str], buffers: Sequence[Buffer]
) -> list[Task]:
    """Return the tasks with their streams and waits filled in."""
    number = {name: i for i, name in enumerate(streams)}
    of_task = [number[stream_name(state.graph.ops[t.op])] for t in tasks]
    accesses = [list(_accesses(state, task, buffers)) for task in tasks]
    waits = find_waits(of_task, accesses)
    return [
        replace(task, stream=stream, waits=before)
        for task, stream, before in zip(tasks, of_task, waits, strict=True)
    ]


def _accesses(state: _Phases, task: Task, buffers: Sequence[Buffer]) -> Iterator[Access]:
    mutates = state.given.specs[task.type].mutates
    for i, index in enumerate(task.inputs):
        yield _access(buffers[index], i in mutates)
    own = () if task.workspace is None else (task.workspace,)
    for index in (*task.outputs, *own):
        yield _access(buffers[index], True)


def _access(buffer: Buffer, writes: bool) -> Access:
    if buffer.kind == "variable":
        return Access((buffer.memory, buffer.name), 0, buffer.type.nbytes, writes)
    low = buffer.offset
    return Access(buffer.memory, low, low + aligned(buffer.type.nbytes), writes)


def _flows(state: _Phases) -> tuple[RegisterPlan, ...]:
    """Return the registers between streams.

    A register has as many slots as copies of its value are live at the same time.
    """
    found = flows(state.graph, state.order.ops, state.order.sharing, state.given.constant)
    return tuple(
        RegisterPlan(f"{producer}: {value}", producer, tuple(sorted(consumers)), slots)
        for (producer, value), (consumers, slots) in found.items()
    )


ACTORS = ("feed", "compute", "callback")


def step_registers(width: int) -> tuple[RegisterPlan, ...]:
    """Return the registers between the feed, compute and callback actors.

    They allow ``width`` steps in flight.
    """
    return (
        RegisterPlan("fed", "feed", ("compute",), width),
        RegisterPlan("results", "compute", ("callback",), width),
        RegisterPlan("in_flight", "callback", ("feed",), width, initial=width),
    )


def _view(state: _Phases, buffers: Buffers, value: Value) -> int:
    """Return the buffer of a value; a view with another type or device gets a buffer of its own."""
    owner, shift = state.storage.locate(value)
    return buffers.view(
        value, state.graph.type_of(value), state.storage.device(value), owner, shift
    )


def _arrays(state: _Phases, buffers: Buffers, op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the buffers that an op reads and writes; a batched op uses those of all devices."""
    count, sharing = len(state.graph.types[op.name]), state.order.sharing
    if op.name not in sharing.batched:
        _, _, inputs = lowered_form(state.graph, sharing, op)
        outputs = (Value(op.name, k) for k in range(count))
        sides = (tuple(_view(state, buffers, v) for v in side) for side in (inputs, outputs))
        return next(sides), next(sides)
    ops = sharing.executed_with(state.graph, op)
    rows = zip(zip(*(o.inputs for o in ops), strict=True), sharing.batched[op.name], strict=True)
    read = tuple(
        _whole(state, buffers, values) if is_adjacent else _view(state, buffers, values[0])
        for values, is_adjacent in rows
    )
    return read, tuple(_whole(state, buffers, [o.output(k) for o in ops]) for k in range(count))


def _whole(state: _Phases, buffers: Buffers, parts: Sequence[Value]) -> int:
    """Return the buffer that spans values placed side by side."""
    owner, shift = state.storage.locate(parts[0])
    type_ = side_by_side([state.graph.type_of(value) for value in parts])
    if type_ is None:
        raise GraphError(
            f"batching {parts[0]} over devices", found="rows that do not form one array"
        )
    return buffers.view(parts[0], type_, state.storage.device(parts[0]), owner, shift)


def _task(state: _Phases, op: Op, i: int, buffers: Buffers) -> Task:
    size = state.choice.workspace.get(op.name)
    workspace = None
    if size is not None:
        kind = tensor_type((size,), uint8)
        workspace = buffers.add(workspace_buffer(state.execution, i, kind))
    sharing = state.order.sharing
    type_, attrs, _ = lowered_form(state.graph, sharing, op)
    read, made = _arrays(state, buffers, op)
    summed = sharing.presummed.get(op.name)
    return Task(
        op=op.name,
        type=type_,
        attrs=attrs.with_(summed=summed) if summed else attrs,
        inputs=read,
        outputs=made,
        workspace=workspace,
        device=device_of(op),
        kernel=op.attrs["collective"] if op.type == BOXING else state.choice.kernels[op.name].name,
        seed=_seed(state, op),
        seconds=_seconds(state, op),
        line=str(state.graph.lines.get(op.name, "")),
        unrecordable=_unrecordable(state, op),
    )


def _seconds(state: _Phases, op: Op) -> float:
    """Return the predicted time of a task, also for the ops of other devices that it executes."""
    executed = state.order.sharing.executes.get(op.name, ())
    ops = (op, *(state.graph.ops[name] for name in executed))
    return sum(map(state.given.costs.seconds, ops))


def _unrecordable(state: _Phases, op: Op) -> str:
    """Return the reason why an op cannot be recorded with its step, or "" if it can."""
    recording = state.given.options.recording
    if recording and op.placement.device_type not in recording:
        return f"runs on {device_of(op)}"
    return "" if not recording or op.type == BOXING else state.choice.kernels[op.name].unrecordable


def _seed(state: _Phases, op: Op) -> int:
    """Return the seed of an op, which is the same on all devices and when the op is recomputed."""
    if not state.given.specs[op.type].random:
        return 0
    origin = state.graph.origin(op.name)._replace(rank=None, recomputed=False)
    if op.attrs.get("draws_as"):
        origin = origin._replace(logical=str(op.attrs["draws_as"]))
    if draws_by_place(op):
        origin = origin._replace(micro_batch=None)
    return op_seed(state.given.options.seed, str(origin))
