"""Streams: the queue of each op, and an order of all ops by event-driven list scheduling.

Each device has a compute stream, and each group of devices that exchange data has a transfer
stream.  Ops are ordered as the streams would start them if all streams ran concurrently, according
to the cost model.  As in 1F1B (one forward, one backward) schedules, the number of
micro-batches in flight is bounded: a pipeline stage starts the forward pass of another micro-batch
only while fewer micro-batches are in flight at this stage than there are stages from this one to
the last.

Invariant: memory and waits are planned for this order, so results are bitwise the same regardless
of the real speed of the streams.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from flow_core.comm.exchange import BOXING
from flow_core.compiler.memory.replica_dedup import NO_DEDUP, ReplicaDedup
from flow_core.compiler.schedule.op_order import circular
from flow_core.costs.events import EventLoop
from flow_core.ir.graph import Graph, Op, Origin, Value
from flow_core.ir.order import Dependencies
from flow_core.passes.gradient_accumulation import ONCE

COMPUTE, TRANSFER = "compute", "transfer"


def stream_name(op: Op) -> str:
    """Return the name of a physical op's stream.

    >>> from flow_core.ir.graph import NO_ATTRS
    >>> from flow_core.sharding.topology import Placement
    >>> stream_name(Op("x", "matmul", (), NO_ATTRS, Placement.parse("gpu", "0:1")))
    'gpu[0:1] compute'
    """
    if op.type != BOXING:
        return f"{op.placement} {COMPUTE}"
    whole = op.attrs.get("whole")
    return f"{whole[0] if whole else op.placement} {TRANSFER}"


def micro_batches(graph: Graph) -> dict[str, int]:
    """Return the micro-batch of each op: the last micro-batch on which the op depends."""
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
        until: for each op, the position of the last op that starts before the op ends.
        total: the sum of the predicted seconds of all ops.
        span: the predicted seconds from the first start to the last end.
        streams: the number of compute streams.
    """

    order: list[Op]
    until: list[int]
    total: float
    span: float
    streams: int = 1


@dataclass(slots=True)
class _Stream:
    """A stream in the simulation, which starts the ready op of lowest rank.

    Attributes:
        rank: the rank of each op.
        micro: the micro-batch whose start limits an op; empty for no limit.
        limit: the largest number of open micro-batches, or 0 for no limit.
        ready: the ops that may start, as (rank, name), by micro-batch.
        left: the number of unfinished ops, by micro-batch.
        open: the micro-batches that have started and are not finished.
        later: the micro-batches that have not started, in order.
    """

    rank: Mapping[str, float]
    micro: Mapping[str, int]
    limit: int = 0
    ready: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    later: list[int] = field(default_factory=list)

    def put(self, name: str) -> None:
        """Add an op whose predecessors have ended."""
        ready = self.ready.setdefault(self.micro.get(name, ONCE), [])
        heapq.heappush(ready, (self.rank[name], name))

    def take(self) -> str | None:
        """Remove and return the ready op of lowest rank that the limit allows to start."""
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

    def done(self, name: str) -> None:
        """Note that an op has ended."""
        micro = self.micro.get(name, ONCE)
        self.left[micro] -= 1
        if self.left[micro] == 0:
            self.open.discard(micro)


def timetable(
    graph: Graph,
    before: Mapping[str, set[str]],
    rank: Mapping[str, float],
    cost: Callable[[Op], float],
    free: Set[str] = frozenset(),
) -> Timetable:
    """Simulate the streams to order the ops by their start.

    Args:
        graph: the physical graph.
        before: the predecessors of each op.
        rank: the rank of each op; a stream starts the ready op of lowest rank.
        cost: returns the seconds of an op.
        free: ops that take no time: views of their inputs, and ops that run once per plan.
    """
    seconds = {
        name: 0.0 if name in free or op.type in _LEAVES else cost(op)
        for name, op in graph.ops.items()
    }
    stream_of = {name: stream_name(op) for name, op in graph.ops.items()}
    streams = _streams(graph, stream_of, rank)
    dependencies = Dependencies(before)
    queues_of = {name: (stream,) for name, stream in stream_of.items()}
    loop = EventLoop(dependencies, streams, queues_of, seconds.__getitem__, rank.__getitem__)
    run = loop.run()
    if len(run.started) != len(graph.ops):
        raise circular(graph, dependencies.blocked()[0])
    starts, ends = ([times[name] for name in run.started] for times in (run.start, run.end))
    until = [max(i, bisect_left(starts, end) - 1) for i, end in enumerate(ends)]
    total = sum(b - a for a, b in zip(starts, ends, strict=True))
    computing = sum(name.endswith(COMPUTE) for name in streams)
    return Timetable([graph.ops[name] for name in run.started], until, total, run.now, computing)


def _streams(
    graph: Graph, stream_of: Mapping[str, str], rank: Mapping[str, float]
) -> dict[str, _Stream]:
    """Return the streams, with the micro-batches whose start limits their ops."""
    micro = micro_batches(graph)
    fed = {n: m for n, m in micro.items() if graph.ops[n].type != "input"}
    limits = _limits(graph, fed, stream_of)
    # of ops that may start at the same time, transfers come first: other devices wait for them
    streams: dict[str, _Stream] = {}
    for name, stream in sorted(stream_of.items(), key=lambda item: item[1].endswith(COMPUTE)):
        gated = micro if stream.endswith(COMPUTE) else {}  # transfers have no such limit
        known = streams.setdefault(stream, _Stream(rank, gated, limits.get(stream, 0)))
        number = gated.get(name, ONCE)
        known.left[number] = known.left.get(number, 0) + 1
    for stream_ in streams.values():
        stream_.later = sorted(m for m in stream_.left if m != ONCE)
    return streams


WORTH_IT = 1.3
"""The smallest predicted speed-up for which streams get their own threads."""
LONG = 8e-5
"""The smallest mean seconds of an op for which streams get their own threads.

If ops were shorter, the threads would mostly wait for each other.
"""


def useful_workers(table: Timetable, cores: int) -> int:
    """Return the number of threads that is worthwhile for the streams of a plan.

    Args:
        table: the timetable.
        cores: the number of streams for whose kernels there are enough cores.
    """
    workers = max(1, min(cores, table.streams))
    overlap = max(table.span / table.total, 1 / workers) if table.total else 1.0
    long_enough = table.total >= LONG * len(table.order)
    return workers if overlap * WORTH_IT <= 1 and long_enough else 1


def _limits(graph: Graph, micro: Mapping[str, int], stream_of: Mapping[str, str]) -> dict[str, int]:
    """Return the largest number of micro-batches in flight for each compute stream, as in 1F1B.

    Streams that run parts of the same logical op of a micro-batch form a pipeline stage; stages are
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
    """Return the data flow between streams: for each producer and value, its consumers and slots.

    A slot is occupied from the op that produces the value to the last op that reads it; a register
    has as many slots as are occupied at the same time.

    Args:
        graph: the physical graph.
        order: the ops of the graph, in the order in which the streams start them.
        sharing: the replicas that devices share.
        once: the ops that run when the plan is loaded, before all streams.
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
    """Return the name of a value's register, which the value's copies for micro-batches share."""
    if graph.ops[value.op].type == BOXING:  # each exchange has a register of its own
        return str(value)
    return f"{graph.origin(value.op)._replace(micro_batch=None)}:{value.index}"


def _readers(graph: Graph, sharing: ReplicaDedup, once: Set[str]) -> dict[Value, list[Op]]:
    """Return, for each value, the ops that read the value or a shared replica of it."""
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
