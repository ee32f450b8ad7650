"""Streams: the queue of each op, and an order of all ops by event-driven list scheduling.

Each device has a compute stream, and each group of devices that exchange data has a transfer
stream.  Ops are ordered as the streams would start them if all ran concurrently, under a coarse
cost model.  Micro-batches are bounded as in 1F1B: a stage starts the forward pass of another
micro-batch only while fewer are in flight there than stages remain from it to the last.

Invariant: memory and waits are planned for this order, so results are the same bits whatever the
real speed of the streams.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import prod, sqrt

from flow_core.comm.exchange import BOXING
from flow_core.compiler.memory.replica_dedup import NO_DEDUP, ReplicaDedup
from flow_core.compiler.schedule.op_order import circular
from flow_core.ir.graph import Graph, Op, Origin, Value
from flow_core.ir.order import Dependencies
from flow_core.passes.gradient_accumulation import ONCE

COMPUTE, TRANSFER = "compute", "transfer"
FLOPS, BANDWIDTH, LAUNCH = 8e10, 8e9, 3e-6
"""A CPU core: float32 operations of a matrix product per second, bytes per second, and seconds
per kernel."""


def stream_name(op: Op) -> str:
    """Return the name of a physical op's stream.

    >>> from flow_core.ir.graph import NO_ATTRS
    >>> from flow_core.sharding.topology import Placement
    >>> stream_name(Op("x", "matmul", (), NO_ATTRS, Placement.parse("gpu", "0:1")))
    'gpu[0:1] compute'
    """
    return f"{op.placement} {TRANSFER if op.type == 'boxing' else COMPUTE}"


def op_seconds(graph: Graph, op: Op) -> float:
    """Estimate the time of an op on one CPU core, from its bytes and multiply-adds."""
    inputs, outputs = graph.input_types(op), graph.types[op.name]
    moved = sum(t.nbytes for t in (*inputs, *outputs))
    seconds = LAUNCH + moved / BANDWIDTH
    if is_product(op) and len(inputs) > 1 and outputs:
        sizes = [t.size for t in (*inputs[:2], outputs[0])]
        batch = prod(outputs[0].shape[:-2]) if "matmul" in op.type else 1
        seconds += 2 * sqrt(prod(sizes) / max(1, batch)) / FLOPS
    return seconds


def is_product(op: Op) -> bool:
    """Whether an op consists of matrix products, for which every library uses several cores."""
    return "matmul" in op.type or "conv" in op.type


def micro_batches(graph: Graph) -> dict[str, int]:
    """Return the micro-batch of each op: the last one that it depends on."""
    number: dict[str, int] = {}
    for op in graph.ops.values():
        number[op.name] = max((number[v.op] for v in op.inputs), default=_micro_batch(graph, op))
    return number


def _micro_batch(graph: Graph, op: Op) -> int:
    found = graph.origin(op.name).micro_batch
    return ONCE if found is None else found


@dataclass(slots=True)
class Timetable:
    """The order of a step's ops by their predicted start.

    Attributes:
        order: the ops.
        until: per op, the position of the last op that starts before it ends.
        total: the sum of the seconds of all ops.
        span: seconds from the first start to the last end.
        streams: the number of compute streams.
    """

    order: list[Op]
    until: list[int]
    total: float
    span: float
    streams: int = 1


@dataclass(slots=True)
class _Stream:
    """A stream in the simulation.

    Attributes:
        limit: the largest number of open micro-batches, 0 for no limit.
        ready: ops that may start, by micro-batch, as (rank, name).
        left: the number of unfinished ops, by micro-batch.
        open: micro-batches that have started and are not finished.
        later: micro-batches that have not started, in order.
        busy: whether an op is running.
    """

    limit: int = 0
    ready: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    later: list[int] = field(default_factory=list)
    busy: bool = False

    def put(self, micro: int, rank: float, name: str) -> None:
        heapq.heappush(self.ready.setdefault(micro, []), (rank, name))

    def take(self) -> str | None:
        """Take the ready op of lowest rank that the limit allows to start."""
        allowed = [m for m in (ONCE, *self.open) if self.ready.get(m)]
        following = self.later[0] if self.later else ONCE
        may_open = not self.limit or len(self.open) < self.limit
        if may_open and following != ONCE and self.ready.get(following):
            allowed.append(following)
        if not allowed:
            return None
        micro = min(allowed, key=lambda m: self.ready[m][0])
        if micro == following != ONCE:
            self.open.add(micro)
            self.later.pop(0)
        return heapq.heappop(self.ready[micro])[1]

    def done(self, micro: int) -> None:
        self.left[micro] -= 1
        if self.left[micro] == 0:
            self.open.discard(micro)


def timetable(
    graph: Graph,
    before: Mapping[str, set[str]],
    rank: Mapping[str, float],
    free: Set[str] = frozenset(),
) -> Timetable:
    """Simulate the streams to order the ops by their start.

    Args:
        graph: the physical graph.
        before: the predecessors of each op.
        rank: the order among ready ops of a stream.
        free: ops that take no time: views of their inputs, and ops that run once per plan.
    """
    seconds = {
        name: 0.0 if name in free or op.type in _LEAVES else op_seconds(graph, op)
        for name, op in graph.ops.items()
    }
    return _Simulation(graph, before, rank, seconds).run()


class _Simulation:
    """An event-driven simulation of all streams: time advances only when no op can start."""

    def __init__(
        self,
        graph: Graph,
        before: Mapping[str, set[str]],
        rank: Mapping[str, float],
        seconds: Mapping[str, float],
    ) -> None:
        self.graph, self.rank, self.seconds = graph, rank, seconds
        self.stream_of = {name: stream_name(op) for name, op in graph.ops.items()}
        self.micro = micro_batches(graph)
        self.streams: dict[str, _Stream] = {}
        fed = {n: m for n, m in self.micro.items() if graph.ops[n].type != "input"}
        limits = _limits(graph, fed, self.stream_of)
        for name, stream in self.stream_of.items():
            known = self.streams.setdefault(stream, _Stream(limits.get(stream, 0)))
            micro = self._gate(name)
            known.left[micro] = known.left.get(micro, 0) + 1
        for stream_ in self.streams.values():
            stream_.later = sorted(m for m in stream_.left if m != ONCE)
        self.dependencies = Dependencies(before)
        self.running: list[tuple[float, float, str]] = []
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.order: list[Op] = []

    def _gate(self, name: str) -> int:
        """Return the micro-batch that limits the start of an op; none does for transfers."""
        return self.micro[name] if self.stream_of[name].endswith(COMPUTE) else ONCE

    def run(self) -> Timetable:
        for name in self.dependencies.free():
            self._ready(name)
        now = 0.0
        while True:
            self._start(now)
            if not self.running:
                break
            now, _, name = heapq.heappop(self.running)
            self._finish(name)
            while self.running and self.running[0][0] <= now:
                self._finish(heapq.heappop(self.running)[2])
        if len(self.order) != len(self.graph.ops):
            raise circular(self.graph, self.dependencies.blocked()[0])
        until = [max(i, bisect_left(self.starts, end) - 1) for i, end in enumerate(self.ends)]
        seconds = [b - a for a, b in zip(self.starts, self.ends, strict=True)]
        computing = sum(name.endswith(COMPUTE) for name in self.streams)
        return Timetable(self.order, until, sum(seconds), now, computing)

    def _ready(self, name: str) -> None:
        self.streams[self.stream_of[name]].put(self._gate(name), self.rank[name], name)

    def _start(self, now: float) -> None:
        for stream in self.streams.values():
            name = None if stream.busy else stream.take()
            if name is not None:
                stream.busy = True
                op = self.graph.ops[name]
                end = now + self.seconds[name]
                heapq.heappush(self.running, (end, self.rank[name], name))
                self.order.append(op)
                self.starts.append(now)
                self.ends.append(end)

    def _finish(self, name: str) -> None:
        stream = self.streams[self.stream_of[name]]
        stream.busy = False
        stream.done(self._gate(name))
        for other in self.dependencies.finish(name):
            self._ready(other)


WORTH_IT = 1.3
"""The predicted speed-up from which streams get their own threads."""
LONG = 8e-5
"""The mean seconds of an op from which they do: shorter ops mostly wait for each other."""


def useful_workers(table: Timetable, cores: int) -> int:
    """Return the number of threads that pay off for the streams of a plan.

    Args:
        table: the timetable.
        cores: the number of streams with cores for their kernels.
    """
    workers = max(1, min(cores, table.streams))
    overlap = max(table.span / table.total, 1 / workers) if table.total else 1.0
    long_enough = table.total >= LONG * len(table.order)
    return workers if overlap * WORTH_IT <= 1 and long_enough else 1


def _limits(graph: Graph, micro: Mapping[str, int], stream_of: Mapping[str, str]) -> dict[str, int]:
    """Return the largest number of micro-batches in flight at each compute stream, as in 1F1B.

    Streams that run parts of the same logical op of a micro-batch form a stage; stages are
    ordered as micro-batches reach them.
    """
    stage: dict[str, str] = {}
    stream_of_op: dict[Origin, str] = {}

    def find(name: str) -> str:
        while stage[name] != name:
            name = stage[name]
        return name

    for name, number in micro.items():
        stream = stream_of[name]
        if number == ONCE or not stream.endswith(COMPUTE):
            continue
        stage.setdefault(stream, stream)
        first = stream_of_op.setdefault(graph.origin(name).unsharded, stream)
        stage[find(stream)] = find(first)
    stages = list(dict.fromkeys(map(find, stage)))
    return {stream: len(stages) - stages.index(find(stream)) for stream in stage}


_LEAVES = ("input", "variable")


def flows(
    graph: Graph,
    order: Sequence[Op],
    sharing: ReplicaDedup = NO_DEDUP,
    once: Set[str] = frozenset(),
) -> dict[tuple[str, str], tuple[set[str], int]]:
    """Return the data flow between streams: consumers and slots per producer and logical value.

    A slot is occupied from the producer of the value to its last reader; a register has as many
    slots as are occupied at once.

    Args:
        graph: the physical graph.
        order: its ops, in the order in which the streams start them.
        sharing: the replicas that devices share.
        once: ops that run when the plan is loaded, before all streams.
    """
    position = {op.name: i for i, op in enumerate(order)}
    lives: dict[tuple[str, str], list[tuple[int, int]]] = {}
    takers: dict[tuple[str, str], set[str]] = {}
    for value, readers in _readers(graph, sharing, once).items():
        producer = stream_name(graph.ops[value.op])
        others = {stream_name(op) for op in readers} - {producer}
        if not others or graph.ops[value.op].type in _LEAVES:
            continue
        key = (producer, _register_name(graph, value))
        takers.setdefault(key, set()).update(others)
        end = max(position[op.name] for op in readers)
        lives.setdefault(key, []).append((position[value.op], end))
    return {key: (takers[key], _most_at_once(spans)) for key, spans in lives.items()}


def _register_name(graph: Graph, value: Value) -> str:
    """Return the name of a value's register, which the copies of all micro-batches share."""
    if graph.ops[value.op].type == BOXING:  # each exchange has a register of its own
        return str(value)
    return f"{graph.origin(value.op)._replace(micro_batch=None)}:{value.index}"


def _readers(graph: Graph, sharing: ReplicaDedup, once: Set[str]) -> dict[Value, list[Op]]:
    """Return the ops that read each value or a shared replica of it."""
    found: dict[Value, list[Op]] = {}
    for value, readers in graph.consumers().items():
        running = [op for op in readers if op.name not in once and op.name not in sharing.merged]
        if running and value.op not in once:
            found.setdefault(sharing.same.get(value, value), []).extend(running)
    return found


def _most_at_once(spans: Sequence[tuple[int, int]]) -> int:
    changes = sorted([(a, 1) for a, _ in spans] + [(b + 1, -1) for _, b in spans])
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
