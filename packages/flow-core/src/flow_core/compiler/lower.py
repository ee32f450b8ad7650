"""Lowering: a scheduled graph becomes tasks on buffers with fixed offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from flow_core.compiler.arena import Block, Layout, aligned, plan_arena
from flow_core.compiler.schedule import alias_roots, constraints, overwritten, schedule
from flow_core.compiler.sharing import NOTHING_SHARED, Sharing
from flow_core.compiler.streams import Timetable, flows, stream_name, timetable, useful_workers
from flow_core.compiler.summing import ONTO, with_sums
from flow_core.compiler.waits import Access, find_waits
from flow_core.dtypes import uint8
from flow_core.errors import KernelNotFoundError, OutOfMemoryError
from flow_core.exchange import BOXING
from flow_core.ir import NO_ATTRS, AttrValue, Graph, Op, TensorType, Value, tensor_type
from flow_core.passes.checkpointing import first_name
from flow_core.passes.gradient_accumulation import draws_by_place, logical_name
from flow_core.philox import op_seed
from flow_core.plan import (
    ArenaPlan,
    Buffer,
    Plan,
    RegisterPlan,
    Task,
    check_no_deadlock,
)
from flow_core.plugins.specs import KernelQuery, KernelSpec, OpSpec
from flow_core.sbp import Region


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
        origins: logical op of each physical one, where the names differ.
        workers: threads for the streams of several devices; None for as many as pay.
        sharing: what devices with one memory have, and do, only once.
        settings: what kernels are asked; part of the plan.
    """

    seed: int = 0
    width: int = 4
    inplace: bool = True
    reuse: bool = True
    memory_limit: Callable[[str], int | None] | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    workers: int | None = None
    sharing: Sharing = NOTHING_SHARED
    settings: Mapping[str, AttrValue] = NO_ATTRS


@dataclass(slots=True)
class _Lowering:
    """The state of one lowering."""

    graph: Graph
    kernels: Kernels
    options: CompileOptions
    order: list[Op] = field(default_factory=list)
    constant: set[str] = field(default_factory=set)
    root: dict[Value, Value] = field(default_factory=dict)
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
    state = _Lowering(graph, kernels, options)
    _protect_results(state)
    _find_constants(state)
    _put_in_order(state)
    _find_kernels(state)
    _own_memory(state)
    _hold_while_running(state)
    return _emit(state, inputs, job)


def device_of(op: Op, output: int = 0) -> str:
    """Text form of the device of a physical op's output: an exchange's go round its devices."""
    return str(op.placement.device(output % op.placement.size))


def _protect_results(state: _Lowering) -> None:
    """Results that are views of variables which change get a copy."""
    specs = state.kernels.ops
    roots = alias_roots(state.graph, specs, state.options.sharing)
    changed = {v for op in state.graph.ops.values() for v in overwritten(op, specs, roots)}
    copies = {v for v in state.graph.results if roots.get(v, v) in changed}
    if copies:
        state.graph = _with_copies(state.graph, copies)


def _put_in_order(state: _Lowering) -> None:
    """The order of the graph on one device, else the one in which streams start the ops."""
    specs = state.kernels.ops
    if len({op.placement for op in state.graph.ops.values()}) <= 1:
        state.order = schedule(state.graph, specs)
        return
    _tell_times(state)
    if state.options.inplace and _workers(state, len(state.graph)) == 1:
        # with threads, devices would wait for one another to add their parts
        sharing = with_sums(state.graph, state.options.sharing)
        if sharing.onto:
            state.options = replace(state.options, sharing=sharing)
            _tell_times(state)


def _tell_times(state: _Lowering) -> None:
    specs, sharing = state.kernels.ops, state.options.sharing
    before, rank = constraints(state.graph, specs, sharing)
    views = {v.op for v in alias_roots(state.graph, specs)}
    free = views | state.constant | sharing.merged.keys()
    state.table = timetable(state.graph, before, rank, state.options.origins, free)
    state.order = state.table.order


def _hold_while_running(state: _Lowering) -> None:
    """Memory is not free before the op is over that uses it, while other streams go on."""
    if state.table is None:
        return
    for op, end in zip(state.order, state.table.until, strict=True):
        outputs = (Value(op.name, k) for k in range(len(state.graph.types[op.name])))
        for value in (*op.inputs, *outputs):
            owner = _owner(state, value)
            state.until[owner] = max(end, state.until.get(owner, end))


def _with_copies(graph: Graph, copies: set[Value]) -> Graph:
    ops, types, same = dict(graph.ops), dict(graph.types), {}
    for value in sorted(copies):
        source = graph.ops[value.op]
        name = f"{value.op}/copy_{value.index}"
        ops[name] = Op(name, "copy", (value,), type(source.attrs)(), source.placement)
        types[name] = (graph.type_of(value),)
        same[value] = Value(name, 0)
    results = tuple(same.get(v, v) for v in graph.results)
    return replace(graph, ops=ops, types=types, results=results)


def _find_constants(state: _Lowering) -> None:
    """Ops that depend on nothing that changes: they run once, when the plan is loaded."""
    for op in state.graph.ops.values():
        spec = state.kernels.ops[op.type]
        changes = spec.effect or spec.random or spec.mutates or op.type in LEAVES
        if not changes and all(v.op in state.constant for v in op.inputs):
            state.constant.add(op.name)


def _query(state: _Lowering, op: Op, find: Callable[[KernelQuery], KernelSpec]) -> KernelQuery:
    inputs, outputs = state.graph.input_types(op), state.graph.types[op.name]
    if op.name in state.options.sharing.onto:
        return KernelQuery(ONTO[op.type], op.attrs, (*inputs, *outputs), outputs, find)
    return KernelQuery(op.type, op.attrs, inputs, outputs, find)


def _find_kernels(state: _Lowering) -> None:
    """The kernel of every op; one error for all ops that have none."""
    missing: list[KernelNotFoundError] = []
    for op in state.order:
        if op.type in LEAVES or op.type == BOXING:
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
    end = len(state.order)
    uses: dict[Value, int] = {}
    for i, op in enumerate(state.order):
        for value in op.inputs if op.name not in state.options.sharing.merged else ():
            uses[state.root.get(value, value)] = i
    for value in graph.results:
        uses[state.root.get(value, value)] = end
    for i, op in enumerate(state.order):
        for k in range(len(graph.types[op.name])):
            value = Value(op.name, k)
            if value not in state.root:
                state.first[value] = i
                state.last[value] = max(uses.get(value, i), i)
        if state.options.inplace and op.name not in state.constant:
            for value, candidates in _inplace(state, op):
                _try_inplace(state, op, i, value, candidates)


def _inplace(state: _Lowering, op: Op) -> Iterator[tuple[Value, Sequence[int]]]:
    """Outputs that may lie in the memory of an input, and the inputs that they may overwrite.

    So may a result of an all-reduce that its devices share: in the first device's part of it.
    """
    if op.type != BOXING:
        if state.graph.types[op.name]:
            yield op.output(), _inplace_inputs(state.kernels.ops, op)
    elif op.attrs["collective"] == "all_reduce":
        p = op.placement.size
        same = state.options.sharing.same
        for first in range(0, len(op.inputs), p):
            if all(op.output(first + k) in same for k in range(1, p)):
                yield op.output(first), (first,)


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
            and state.graph.type_of(owner).nbytes == state.graph.type_of(value).nbytes
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
    while value in state.root:
        value = state.root[value]
    return value


@dataclass(slots=True)
class _Buffers:
    """Buffers under construction, and the arena blocks behind some of them."""

    items: list[Buffer] = field(default_factory=list)
    blocks: list[tuple[int, Block]] = field(default_factory=list)
    of: dict[Value, int] = field(default_factory=dict)

    def add(self, buffer: Buffer) -> int:
        self.items.append(buffer)
        index = len(self.items) - 1
        if buffer.kind != "variable" and not buffer.type.dtype.is_object:
            block = Block(buffer.type.nbytes, buffer.first, buffer.last)
            self.blocks.append((index, block))
        return index


def _make_buffers(state: _Lowering) -> _Buffers:
    buffers = _Buffers()
    end = len(state.order)
    for op in state.order:
        for k, type_ in enumerate(state.graph.types[op.name]):
            value = Value(op.name, k)
            if value in state.first:
                buffers.of[value] = buffers.add(_buffer(state, op, value, type_, end))
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
    for i, op in enumerate(state.order):
        if op.type in LEAVES or _is_aliased(state, op):
            continue
        target = prologue if op.name in state.constant else tasks
        target.append(_task(state, op, i, buffers))
    fed = _fed(state.graph, inputs)
    feeds = tuple([_view(state, buffers, Value(name, 0)) for name in fed])
    fetches = tuple([_view(state, buffers, v) for v in state.graph.results])
    held = [op for op in state.order if op.type == "variable"]
    variables = {op.name: _view(state, buffers, op.output()) for op in held}
    arenas, placed = _place(state, buffers)
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
    asked = state.options.workers
    return min(streams, useful_workers(state.table) if asked is None else asked)


ACTORS = ("feed", "compute", "callback")


def step_registers(width: int) -> tuple[RegisterPlan, ...]:
    """The registers between feed, compute and callback, ``width`` steps in flight."""
    return (
        RegisterPlan("fed", "feed", ("compute",), width),
        RegisterPlan("results", "compute", ("callback",), width),
        RegisterPlan("in_flight", "callback", ("feed",), width, initial=width),
    )


def _is_aliased(state: _Lowering, op: Op) -> bool:
    if op.name in state.options.sharing.merged:
        return True
    return state.kernels.ops[op.type].alias is not None and op.output() in state.root


def _view(state: _Lowering, buffers: _Buffers, value: Value) -> int:
    """The buffer of a value; a view of another type or device gets an entry at the same offset."""
    if value in buffers.of:
        return buffers.of[value]
    owner = buffers.of[_owner(state, value)]
    type_, device = state.graph.type_of(value), _device(state, value)
    base = buffers.items[owner]
    if base.type == type_ and base.device == device:
        buffers.of[value] = owner
        return owner
    home = base.device if base.device != device else ""
    view = Buffer(str(value), f"view:{owner}", device, -1, type_, base.first, base.last, home)
    buffers.items.append(view)
    buffers.of[value] = len(buffers.items) - 1
    return buffers.of[value]


def _task(state: _Lowering, op: Op, i: int, buffers: _Buffers) -> Task:
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
    onto = op.name in sharing.onto
    summed = sharing.summed.get(op.name)
    inputs = (*op.inputs, op.output()) if onto else op.inputs
    return Task(
        op=op.name,
        type=ONTO[op.type] if onto else op.type,
        attrs=op.attrs.with_(summed=summed) if summed else op.attrs,
        inputs=tuple(_view(state, buffers, v) for v in inputs),
        outputs=tuple(
            _view(state, buffers, Value(op.name, k)) for k in range(len(state.graph.types[op.name]))
        ),
        workspace=workspace,
        device=device_of(op),
        kernel=op.attrs["collective"] if op.type == BOXING else state.found[op.name].name,
        seed=_seed(state, op),
        line=str(state.graph.lines.get(op.name, "")),
    )


def _seed(state: _Lowering, op: Op) -> int:
    """The same for all devices' parts of a logical op, and when it is computed again."""
    if not state.kernels.ops[op.type].random:
        return 0
    logical = state.options.origins.get(op.name, op.name)
    drawn = logical_name(logical) if draws_by_place(op) else logical
    return op_seed(state.options.seed, first_name(drawn))


def _place(state: _Lowering, buffers: _Buffers) -> tuple[tuple[ArenaPlan, ...], tuple[Buffer, ...]]:
    """The arena of each device, and all buffers with their offsets."""
    by_device: dict[str, list[tuple[int, Block]]] = {}
    for index, block in buffers.blocks:
        by_device.setdefault(buffers.items[index].device, []).append((index, block))
    for buffer in buffers.items:
        by_device.setdefault(buffer.device, [])
    if not by_device:  # a job that does nothing
        by_device["cpu:0:0"] = []
    arenas: list[ArenaPlan] = []
    known: dict[tuple[Block, ...], Layout] = {}
    offsets: dict[int, int] = {}
    types = list(dict.fromkeys(device.split(":")[0] for device in by_device))
    for device in sorted(by_device, key=partial(_position, types)):
        blocks = by_device[device]
        layout = _layout([block for _, block in blocks], known)
        offsets.update(zip([i for i, _ in blocks], layout.offsets, strict=True))
        owners = _owners(state, buffers, blocks, layout.peak)
        arena = ArenaPlan(device, layout.nbytes, layout.lower_bound, layout.peak, owners)
        _check_memory(state, arena)
        arenas.append(arena)
    return tuple(arenas), _placed(buffers, offsets)


def _position(types: Sequence[str], device: str) -> tuple[int, int, int]:
    """Where the arena of a device comes among all: those of one type by their numbers."""
    kind, machine, index = device.split(":")
    return types.index(kind), int(machine), int(index)


def _layout(blocks: Sequence[Block], known: dict[tuple[Block, ...], Layout]) -> Layout:
    """The layout of a device: that of another one which needs the same in the same order."""
    times = sorted({time for b in blocks for time in (b.first, b.last)})
    rank = {time: i for i, time in enumerate(times)}
    alike = tuple(Block(b.nbytes, rank[b.first], rank[b.last]) for b in blocks)
    if alike not in known:
        known[alike] = plan_arena(alike)
    layout = known[alike]
    return replace(layout, peak=times[layout.peak] if times else 0)


def _placed(buffers: _Buffers, offsets: Mapping[int, int]) -> tuple[Buffer, ...]:
    placed: list[Buffer] = []
    for index, buffer in enumerate(buffers.items):
        source = int(buffer.kind[5:]) if buffer.kind.startswith("view:") else index
        kind = buffers.items[source].kind
        name = buffers.items[source].name if kind == "variable" else buffer.name
        placed.append(replace(buffer, kind=kind, offset=offsets.get(source, -1), name=name))
    return tuple(placed)


def _owners(
    state: _Lowering, buffers: _Buffers, blocks: Sequence[tuple[int, Block]], peak: int
) -> tuple[tuple[int, str, str], ...]:
    rows = []
    for index, block in blocks:
        if block.first <= peak <= block.last:
            name = buffers.items[index].name
            op = name.rsplit(":", 1)[0].removesuffix("/workspace")
            rows.append((aligned(block.nbytes), name, str(state.graph.lines.get(op, ""))))
    return tuple(sorted(rows, reverse=True)[:20])


def _check_memory(state: _Lowering, arena: ArenaPlan) -> None:
    ask = state.options.memory_limit
    limit: Any = ask(arena.device) if ask else None
    if limit is not None and arena.nbytes > limit:
        rows = "\n".join(f"    {n:>14,} bytes  {name}  {line}" for n, name, line in arena.owners)
        raise OutOfMemoryError(
            f"planning the memory of {arena.device}",
            found=f"{arena.nbytes:,} bytes, the largest at the peak:\n{rows}",
            allowed=f"{limit:,} bytes",
            hint="make the batch smaller, place ops on more devices, compute activations again "
            "(flow.experimental.scope.config(checkpointing=True)), or let each device keep a part "
            "of the optimizer's states (function_config.optimizer_placement_optimization_mode)",
        )
