"""Lowering: a scheduled graph becomes tasks on buffers with fixed offsets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from flow_core.base.dtypes import uint8
from flow_core.base.errors import GraphError, KernelNotFoundError
from flow_core.base.philox import op_seed
from flow_core.base.thread_budget import Budget, Cores, asked, find_budget
from flow_core.base.thread_pools import find_open_mp, sized_pools
from flow_core.compiler.memory.aliases import alias_roots
from flow_core.compiler.memory.arena import aligned
from flow_core.compiler.memory.arena_assignment import Buffers, Limit, There, place
from flow_core.compiler.memory.device_batching import joined_query, with_rows
from flow_core.compiler.memory.inplace_reduction import form_of, with_sums
from flow_core.compiler.memory.replica_dedup import NO_DEDUP, ReplicaDedup
from flow_core.compiler.memory.result_buffers import protected
from flow_core.compiler.schedule.hazards import Access, find_waits
from flow_core.compiler.schedule.op_order import constraints, schedule
from flow_core.compiler.schedule.streams import (
    Timetable,
    flows,
    stream_name,
    timetable,
    useful_workers,
)
from flow_core.compiler.schedule.thread_allocation import divided, kernel_threads
from flow_core.exchange import BOXING
from flow_core.ir.graph import NO_ATTRS, AttrValue, Graph, Op, TensorType, Value, tensor_type
from flow_core.passes.checkpointing import first_name
from flow_core.passes.gradient_accumulation import draws_by_place, logical_name
from flow_core.plan import Buffer, Plan, RegisterPlan, Task, check_no_deadlock
from flow_core.plugins.rows import side_by_side
from flow_core.plugins.specs import KernelQuery, KernelSpec, OpSpec
from flow_core.sharding.sbp import Region


class Kernels(Protocol):
    """Where lowering looks up specs and kernels."""

    @property
    def ops(self) -> Mapping[str, OpSpec]:
        """Op specs by type."""

    def find_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec:
        """The kernel for a query."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What the job's configuration asks of the compiler.

    Attributes:
        seed: the job's seed.
        width: steps in flight.
        inplace: whether outputs may overwrite dying inputs.
        reuse: whether memory is used again within a step.
        memory_limit: bytes that a device has for the plan, by device text; None for no limit.
        there: whether a physical variable has its memory on a device already.
        origins: logical op of each physical one, where the names differ.
        workers: threads for the streams of several devices; None for as many as pay.
        sharing: what devices with one memory have, and do, only once.
        budget: the cores of the process.
        settings: what kernels are asked; part of the plan.
        recording: those types of the plan's devices whose drivers record steps.
    """

    seed: int = 0
    width: int = 4
    inplace: bool = True
    reuse: bool = True
    memory_limit: Limit | None = None
    there: There = lambda _, __: False
    origins: Mapping[str, str] = field(default_factory=dict)
    workers: int | None = None
    sharing: ReplicaDedup = NO_DEDUP
    budget: Budget = field(default_factory=lambda: find_budget(asked(os.environ)))
    settings: Mapping[str, AttrValue] = NO_ATTRS
    recording: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Lowering:
    """The state of one lowering."""

    graph: Graph
    kernels: Kernels
    options: CompileOptions
    threads: int
    order: list[Op] = field(default_factory=list)
    constant: set[str] = field(default_factory=set)
    root: dict[Value, Value] = field(default_factory=dict)
    shift: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)
    first: dict[Value, int] = field(default_factory=dict)
    found: dict[str, KernelSpec] = field(default_factory=dict)
    workspace: dict[str, int] = field(default_factory=dict)
    table: Timetable | None = None
    until: dict[Value, int] = field(default_factory=dict)


LEAVES = ("input", "variable")


def lower(
    graph: Graph,
    kernels: Kernels,
    inputs: Sequence[str],
    job: str,
    options: CompileOptions,
) -> Plan:
    """The plan of a physical graph.

    Args:
        graph: each op on one device, after all passes.
        kernels: the registry.
        inputs: names of the ``input`` ops in the order of the job's parameters.
        job: the job's name.
        options: what the job asks for.
    """
    find_open_mp()
    graph = protected(graph, kernels.ops, options.sharing)
    threads = kernel_threads(graph, kernels.ops, options.budget, options.recording)
    state = _Lowering(graph, kernels, options, threads)
    _find_constants(state)
    _put_in_order(state)
    with sized_pools(_divided(state)):
        _find_kernels(state)
    _own_memory(state)
    _hold_while_running(state)
    return _emit(state, inputs, job)


def device_of(op: Op, output: int = 0) -> str:
    """Text form of the device of a physical op's output: an exchange's go round its devices."""
    return str(op.placement.device(output % op.placement.size))


def _put_in_order(state: _Lowering) -> None:
    """The order of the graph on one device, else the one in which streams start the ops."""
    specs = state.kernels.ops
    if len({op.placement for op in state.graph.ops.values()}) <= 1:
        state.order = schedule(state.graph, specs)
        return
    _tell_times(state)
    if state.options.inplace and _workers(state, len(state.graph)) == 1:
        # with threads, devices would wait for one another to add their parts
        sums = with_sums(state.graph, state.options.sharing, specs)
        rows = with_rows(
            state.graph, sums, specs, state.options.origins, state.kernels.find_kernel,
            state.constant,
        )  # fmt: skip
        if not (_share(state, rows) or _share(state, sums)):
            _tell_times(state)


def _share(state: _Lowering, sharing: ReplicaDedup) -> bool:
    """Orders the ops given what devices share; not where they would wait for one another."""
    before = state.options
    state.options = replace(before, sharing=sharing)
    try:
        _tell_times(state)
    except GraphError:
        state.options = before
        return False
    return True


def _tell_times(state: _Lowering) -> None:
    specs, sharing = state.kernels.ops, state.options.sharing
    before, rank = constraints(state.graph, specs, sharing)
    views = {v.op for v in alias_roots(state.graph, specs)}
    free = views | state.constant | sharing.idle()
    state.table = timetable(state.graph, before, rank, state.options.origins, free)
    state.order = state.table.order


def _hold_while_running(state: _Lowering) -> None:
    """Memory is not free before the op is over that uses it, while other streams go on."""
    if state.table is None:
        return
    for op, end in zip(state.order, state.table.until, strict=True):
        outputs = (Value(op.name, k) for k in range(len(state.graph.types[op.name])))
        for value in (*state.options.sharing.reads(state.graph, op), *outputs):
            owner = _owner(state, value)
            state.until[owner] = max(end, state.until.get(owner, end))


def _find_constants(state: _Lowering) -> None:
    """Ops that depend on nothing that changes: they run once, when the plan is loaded."""
    for op in state.graph.ops.values():
        spec = state.kernels.ops[op.type]
        changes = spec.effect or spec.random or spec.mutates or op.type in LEAVES
        if not changes and all(v.op in state.constant for v in op.inputs):
            state.constant.add(op.name)


def _query(state: _Lowering, op: Op, find: Callable[[KernelQuery], KernelSpec]) -> KernelQuery:
    if op.name in state.options.sharing.joined:
        return _joined(state, op, find)
    type_, attrs, values = form_of(state.graph, state.options.sharing, op)
    inputs = tuple(map(state.graph.type_of, values))
    outputs = state.graph.types[op.name]
    return KernelQuery(type_, attrs, inputs, outputs, find)


def _together(state: _Lowering, op: Op) -> list[Op]:
    """The ops of all devices that one does at once."""
    names = (op.name, *state.options.sharing.within[op.name])
    return [state.graph.ops[name] for name in names]


def _joined(state: _Lowering, op: Op, find: Callable[[KernelQuery], KernelSpec]) -> KernelQuery:
    which = state.options.sharing.joined[op.name]
    query = joined_query(state.graph, _together(state, op), which, find)
    if query is None:
        raise GraphError(f"joining {op.name!r}", found="rows that do not fit together")
    return query


def _find_kernels(state: _Lowering) -> None:
    """The kernel of every op; one error for all ops that have none."""
    missing: list[KernelNotFoundError] = []
    within = state.options.sharing.within.values()
    gone = {name for names in within for name in names}
    for op in state.order:
        if op.type in LEAVES or op.type == BOXING or op.name in gone:
            continue
        find = partial(state.kernels.find_kernel, device_type=op.placement.device_type)
        query = replace(_query(state, op, find), settings=state.options.settings)
        try:
            kernel = find(query)
        except KernelNotFoundError as error:
            first = missing[0] if missing else error
            _name_line(first, state.graph, op)
            missing.append(error)
            continue
        except Exception as error:
            _name_line(error, state.graph, op)
            raise
        state.found[op.name] = kernel
        if kernel.workspace is not None:
            state.workspace[op.name] = kernel.workspace(query)
    if missing:
        raise missing[0]


def _name_line(error: Exception, graph: Graph, op: Op) -> None:
    line = graph.lines.get(op.name)
    if line is not None:
        error.add_note(f"  {op.type} {op.name!r} at {line}")


def _own_memory(state: _Lowering) -> None:
    """Which value owns the bytes of each value: aliases, then in-place results."""
    specs, graph = state.kernels.ops, state.graph
    state.root = dict(alias_roots(graph, specs, state.options.sharing))
    _lay_side_by_side(state)
    end, sharing = len(state.order), state.options.sharing
    uses: dict[Value, int] = {}
    idle = sharing.idle()
    for i, op in enumerate(state.order):
        for value in sharing.reads(graph, op) if op.name not in idle else ():
            uses[_owner(state, value)] = i
    for value in graph.results:
        uses[_owner(state, value)] = end
    for i, op in enumerate(state.order):
        for k in range(len(graph.types[op.name])):
            value = Value(op.name, k)
            if value not in state.root:
                state.first[value] = i
                state.last[value] = max(uses.get(value, i), i)
        if state.options.inplace and op.name not in state.constant:
            for value, candidates in _inplace(state, op):
                _try_inplace(state, op, i, value, candidates)


def _lay_side_by_side(state: _Lowering) -> None:
    """Gives values that are the rows of one array their places in the first one's memory."""
    for first, *others in state.options.sharing.rows.values():
        shift = state.graph.type_of(first).nbytes
        for value in others:
            state.root[value], state.shift[value] = first, shift
            shift += state.graph.type_of(value).nbytes


def _held(state: _Lowering, owner: Value) -> TensorType:
    """What lies in the memory of a value: it, or it and what lies side by side with it."""
    parts = state.options.sharing.rows.get(owner, ())
    whole = side_by_side([state.graph.type_of(value) for value in parts]) if parts else None
    return whole or state.graph.type_of(owner)


def _inplace(state: _Lowering, op: Op) -> Iterator[tuple[Value, Sequence[int]]]:
    """Outputs that may lie in the memory of an input, and the inputs that they may overwrite.

    So may results of an all-reduce, each in what its device gives.
    """
    if op.type != BOXING:
        if state.graph.types[op.name]:
            yield op.output(), _inplace_inputs(state.kernels.ops, op)
    elif op.attrs["collective"] == "all_reduce":
        for k in range(len(op.inputs)):
            yield op.output(k), (k,)


def _try_inplace(state: _Lowering, op: Op, i: int, value: Value, candidates: Sequence[int]) -> None:
    if value not in state.first:
        return
    roots = [_owner(state, v) for v in op.inputs]
    for k in candidates:
        owner = roots[k]
        if (
            owner.op not in state.constant
            and state.graph.ops[owner.op].type != "variable"
            and state.last[owner] == i
            and roots.count(owner) == _times_read(state, op, k)
            and _held(state, owner).nbytes == _held(state, value).nbytes
            and _device(state, owner) == _device(state, value)
        ):
            state.root[value] = owner
            state.last[owner] = max(i, state.last.pop(value))
            del state.first[value]
            return


def _times_read(state: _Lowering, op: Op, k: int) -> int:
    """How often an op reads the memory of an input at least: what is summed is one for all."""
    p = op.placement.size
    return p if k // p in state.options.sharing.summed.get(op.name, ()) else 1


def _device(state: _Lowering, value: Value) -> str:
    return device_of(state.graph.ops[value.op], value.index)


def _inplace_inputs(specs: Mapping[str, OpSpec], op: Op) -> Sequence[int]:
    """The inputs that output 0 may overwrite.

    A group writes late what would spoil an input that it still needs; only the member that
    makes output 0 must itself be able to overwrite its first input.
    """
    if op.type != "fused":
        return specs[op.type].inplace
    maker, refs, *_ = op.attrs["body"][op.attrs["outputs"][0]]
    kept = -1 - refs[0] if 0 not in specs[maker].inplace else None
    return [k for k in range(len(op.inputs)) if k != kept]


def _owner(state: _Lowering, value: Value) -> Value:
    return _place_of(state, value)[0]


def _place_of(state: _Lowering, value: Value) -> tuple[Value, int]:
    """Whose bytes a value's are, and how many bytes after the first of them."""
    shift = 0
    while value in state.root:
        shift += state.shift.get(value, 0)
        value = state.root[value]
    return value, shift


def _make_buffers(state: _Lowering) -> Buffers:
    buffers = Buffers()
    end = len(state.order)
    for op in state.order:
        for k in range(len(state.graph.types[op.name])):
            value = Value(op.name, k)
            if value in state.first:
                type_ = _held(state, value)
                buffers.owners[value] = buffers.add(_buffer(state, op, value, type_, end))
    return buffers


def _buffer(state: _Lowering, op: Op, value: Value, type_: TensorType, end: int) -> Buffer:
    kind = "constant" if op.name in state.constant else _KINDS.get(op.type, "temp")
    pinned = kind in ("constant", "variable") or not state.options.reuse
    over = max(state.last[value], state.until.get(value, 0))
    first, last = (0, end) if pinned else (state.first[value], over)
    first = 0 if kind == "feed" else first  # copied in before the first task
    return Buffer(str(value), kind, device_of(op, value.index), -1, type_, first, last)


_KINDS = {"input": "feed", "variable": "variable"}


def _emit(state: _Lowering, inputs: Sequence[str], job: str) -> Plan:
    buffers = _make_buffers(state)
    tasks: list[Task] = []
    prologue: list[Task] = []
    idle = state.options.sharing.idle()
    for i, op in enumerate(state.order):
        if op.type in LEAVES or op.name in idle or _is_aliased(state, op):
            continue
        target = prologue if op.name in state.constant else tasks
        target.append(_task(state, op, i, buffers))
    fed = _fed(state.graph, inputs)
    feeds = tuple([_view(state, buffers, Value(name, 0)) for name in fed])
    fetches = tuple([_view(state, buffers, v) for v in state.graph.results])
    held = [op for op in state.order if op.type == "variable"]
    variables = {op.name: _view(state, buffers, op.output()) for op in held}
    options = state.options
    arenas, placed = place(buffers, state.graph.lines, options.memory_limit, options.there)
    registers = step_registers(state.options.width)
    check_no_deadlock(registers)
    streams = list(dict.fromkeys(stream_name(state.graph.ops[t.op]) for t in tasks))
    if len(streams) > 1:
        tasks = _with_waits(state, tasks, streams, placed)
    return Plan(
        job=job,
        arenas=arenas,
        buffers=placed,
        prologue=tuple(prologue),
        tasks=tuple(tasks),
        feeds=feeds,
        fed=tuple(fed.values()),
        fetches=fetches,
        variables=variables,
        actors=ACTORS,
        registers=registers,
        streams=tuple(streams),
        flows=_flows(state) if len(streams) > 1 else (),
        workers=_workers(state, len(streams)),
        cores=_divided(state),
        settings=state.options.settings,
    )


def _fed(graph: Graph, inputs: Sequence[str]) -> dict[str, tuple[int, Region]]:
    """Per ``input`` op, which of the fed arrays it takes a part of, and the region of that."""
    position = {name: i for i, name in enumerate(inputs)}
    found: dict[str, tuple[int, Region]] = {}
    for op in graph.of_type("input"):
        whole = tuple([(0, n) for n in graph.types[op.name][0].shape])
        region: Any = op.attrs.get("region", whole)
        found[op.name] = (position[str(op.attrs.get("of", op.name))], region)
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def _with_waits(
    state: _Lowering, tasks: Sequence[Task], streams: Sequence[str], buffers: Sequence[Buffer]
) -> list[Task]:
    """The tasks, told which stream they are of and what they wait for."""
    number = {name: i for i, name in enumerate(streams)}
    of_task = [number[stream_name(state.graph.ops[t.op])] for t in tasks]
    accesses = [list(_accesses(state, task, buffers)) for task in tasks]
    waits = find_waits(of_task, accesses)
    return [
        replace(task, stream=stream, waits=before)
        for task, stream, before in zip(tasks, of_task, waits, strict=True)
    ]


def _accesses(state: _Lowering, task: Task, buffers: Sequence[Buffer]) -> Iterator[Access]:
    mutates = state.kernels.ops[task.type].mutates
    for i, index in enumerate(task.inputs):
        yield _access(buffers[index], i in mutates)
    own = () if task.workspace is None else (task.workspace,)
    for index in (*task.outputs, *own):
        yield _access(buffers[index], True)


def _access(buffer: Buffer, writes: bool) -> Access:
    if buffer.kind == "variable":
        space = f"{buffer.memory} variable {buffer.name}"
        return Access(space, 0, buffer.type.nbytes, writes)
    low = buffer.offset
    return Access(buffer.memory, low, low + aligned(buffer.type.nbytes), writes)


def _flows(state: _Lowering) -> tuple[RegisterPlan, ...]:
    """The registers between streams: a slot per copy of a value that is alive at once."""
    found = flows(state.graph, state.order, state.options.sharing, state.constant)
    return tuple(
        RegisterPlan(f"{producer}: {value}", producer, tuple(sorted(consumers)), slots)
        for (producer, value), (consumers, slots) in found.items()
    )


def _workers(state: _Lowering, streams: int) -> int:
    if state.table is None or streams < 2:
        return 1
    wish = state.options.workers
    budget = state.options.budget
    useful = useful_workers(state.table, budget.count // state.threads)
    return min(streams, useful if wish is None else wish)


def _divided(state: _Lowering) -> Cores:
    """Who has how many of the cores."""
    running = [op for op in state.order if op.type not in LEAVES and op.name not in state.constant]
    computing = {stream_name(op) for op in running if op.type != BOXING}
    return divided(
        state.graph,
        running,
        state.found,
        state.kernels.ops,
        state.options.budget,
        _workers(state, len(computing)),
        state.threads,
    )


ACTORS = ("feed", "compute", "callback")


def step_registers(width: int) -> tuple[RegisterPlan, ...]:
    """The registers between feed, compute and callback, ``width`` steps in flight."""
    return (
        RegisterPlan("fed", "feed", ("compute",), width),
        RegisterPlan("results", "compute", ("callback",), width),
        RegisterPlan("in_flight", "callback", ("feed",), width, initial=width),
    )


def _is_aliased(state: _Lowering, op: Op) -> bool:
    return state.kernels.ops[op.type].alias is not None and op.output() in state.root


def _view(state: _Lowering, buffers: Buffers, value: Value) -> int:
    """The buffer of a value; a view of another type or device gets an entry of its own."""
    owner, shift = _place_of(state, value)
    return buffers.view(value, state.graph.type_of(value), _device(state, value), owner, shift)


def _arrays(state: _Lowering, buffers: Buffers, op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The buffers that an op reads and makes: those of all devices side by side, or its own."""
    count, sharing = len(state.graph.types[op.name]), state.options.sharing
    if op.name not in sharing.joined:
        _, _, inputs = form_of(state.graph, sharing, op)
        outputs = (Value(op.name, k) for k in range(count))
        seen = (tuple(_view(state, buffers, v) for v in side) for side in (inputs, outputs))
        return next(seen), next(seen)
    ops = _together(state, op)
    rows = zip(zip(*(o.inputs for o in ops), strict=True), sharing.joined[op.name], strict=True)
    read = tuple(
        _whole(state, buffers, values) if apart else _view(state, buffers, values[0])
        for values, apart in rows
    )
    return read, tuple(_whole(state, buffers, [o.output(k) for o in ops]) for k in range(count))


def _whole(state: _Lowering, buffers: Buffers, parts: Sequence[Value]) -> int:
    """The buffer of values that lie side by side."""
    owner, shift = _place_of(state, parts[0])
    type_ = side_by_side([state.graph.type_of(value) for value in parts])
    if type_ is None:
        raise GraphError(f"joining {parts[0]}", found="rows that do not fit together")
    return buffers.view(parts[0], type_, _device(state, parts[0]), owner, shift)


def _task(state: _Lowering, op: Op, i: int, buffers: Buffers) -> Task:
    size = state.workspace.get(op.name)
    workspace = None
    if size is not None:
        kind = tensor_type((size,), uint8)
        over = i if state.table is None else state.table.until[i]
        first, last = (0, 0) if op.name in state.constant else (i, over)
        workspace = buffers.add(
            Buffer(f"{op.name}/workspace", "workspace", device_of(op), -1, kind, first, last)
        )
    sharing = state.options.sharing
    type_, attrs, _ = form_of(state.graph, sharing, op)
    read, made = _arrays(state, buffers, op)
    summed = sharing.summed.get(op.name)
    return Task(
        op=op.name,
        type=type_,
        attrs=attrs.with_(summed=summed) if summed else attrs,
        inputs=read,
        outputs=made,
        workspace=workspace,
        device=device_of(op),
        kernel=op.attrs["collective"] if op.type == BOXING else state.found[op.name].name,
        seed=_seed(state, op),
        line=str(state.graph.lines.get(op.name, "")),
        cuts=_cuts(state, op),
    )


def _cuts(state: _Lowering, op: Op) -> str:
    """Why an op cuts the record of a step, on devices that have one."""
    recording = state.options.recording
    if recording and op.placement.device_type not in recording:
        return f"runs on {device_of(op)}"
    return "" if not recording or op.type == BOXING else state.found[op.name].cuts


def _seed(state: _Lowering, op: Op) -> int:
    """The same for all devices' parts of a logical op, and when it is computed again."""
    if not state.kernels.ops[op.type].random:
        return 0
    logical = state.options.origins.get(op.name, op.name)
    drawn = logical_name(logical) if draws_by_place(op) else logical
    return op_seed(state.options.seed, first_name(drawn))
