"""Streams: the queue of each op, and an order of all ops by event-driven list scheduling.

Each device has a compute stream, and each group of devices that exchange data has a transfer
stream.  Ops are ordered as the streams would start them if all streams ran concurrently, according
to the cost model.  The number of micro-batches in flight at a stage of a pipeline is bounded
(`flow_core.compiler.schedule.pipeline`).

Invariant: memory and waits are planned for this order, so results are bitwise the same regardless
of the real speed of the streams.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from flow_core.comm.exchange import BOXING
from flow_core.compiler.memory.replica_dedup import NO_DEDUP, ReplicaDedup
from flow_core.compiler.schedule.op_order import circular
from flow_core.compiler.schedule.pipeline import Pipeline, find_pipeline
from flow_core.costs.events import EventLoop, InOrder, Queue, Run
from flow_core.ir.graph import Graph, Op, Value
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


@dataclass(slots=True)
class Timetable:
    """The order of a step's ops by their predicted start."""

    order: list[Op]
    until: list[int]  # for each op, the position of the last op that starts before the op ends
    total: float  # the sum of the predicted seconds of all ops
    span: float  # the predicted seconds from the first start to the last end
    streams: int = 1  # the number of compute streams
    postpones: bool = False  # whether ops that no other stage of a pipeline waits for may wait


@dataclass(slots=True)
class _Stream:
    """A stream in the simulation, which starts the ready op of lowest rank."""

    rank: Mapping[str, float]  # of each op
    unit: Mapping[str, int]  # the unit of a pipeline whose start limits an op; empty for no limit
    limit: int = 0  # the largest number of open units, or 0 for no limit
    late: Collection[str] = frozenset()  # ops that do not keep their unit open
    most: int = 0  # the largest number of units that have started and are unfinished
    ready: dict[int, list[tuple[float, str]]] = field(default_factory=dict)  # by unit: (rank, name)
    left: dict[int, int] = field(default_factory=dict)  # unfinished ops, by unit
    left_late: dict[int, int] = field(default_factory=dict)  # likewise of late ops
    open: set[int] = field(default_factory=set)  # started, with ops that keep them open
    held: set[int] = field(default_factory=set)  # started, with unfinished ops of any kind
    later: list[int] = field(default_factory=list)  # the units that have not started, in order
    patient: bool = False  # whether late ops wait for units that may start

    def put(self, name: str) -> None:
        """Add an op whose predecessors have ended."""
        ready = self.ready.setdefault(self.unit.get(name, ONCE), [])
        heapq.heappush(ready, (self.rank[name], name))

    def take(self) -> str | None:
        """Remove and return the ready op of lowest rank that the limit allows to start."""
        # Units start in order, at most ``limit`` at a time: this bounds the activations in memory.
        # Ops of started units are always allowed, since they lead to the end of these units.
        allowed = [m for m in (ONCE, *self.held) if self.ready.get(m)]
        following = self.later[0] if self.later else ONCE
        may_open = not self.limit or (len(self.open) < self.limit and len(self.held) < self.most)
        if may_open and following != ONCE and self.ready.get(following):
            allowed.append(following)
        if not allowed:
            return None
        unit = min(allowed, key=lambda m: self.ready[m][0])
        waits = self.patient and self.later and len(self.held) < self.most
        if waits and self.ready[unit][0][1] in self.late:
            return None
        if unit == following != ONCE:
            self.held.add(unit)
            if self.left[unit]:
                self.open.add(unit)
            self.later.pop(0)
        return heapq.heappop(self.ready[unit])[1]

    def done(self, name: str) -> None:
        """Note that an op has ended."""
        unit = self.unit.get(name, ONCE)
        left = self.left_late if name in self.late else self.left
        left[unit] -= 1
        if self.left[unit] == 0:
            self.open.discard(unit)
            if self.left_late[unit] == 0:
                self.held.discard(unit)

    def count(self, name: str) -> None:
        """Count an op of the stream before the simulation."""
        unit = self.unit.get(name, ONCE)
        self.left.setdefault(unit, 0)
        self.left_late.setdefault(unit, 0)
        left = self.left_late if name in self.late else self.left
        left[unit] += 1


def timetable(
    graph: Graph,
    before: Mapping[str, set[str]],
    rank: Mapping[str, float],  # the rank of each op; a stream starts the ready op of lowest rank
    cost: Callable[[Op], float],
    # Ops that take no time: views of their inputs, and ops that run once per plan.
    free: Set[str] = frozenset(),
    # Whether ops on whose results no other stage of a pipeline depends may wait if this makes the
    # step shorter; stages then hold activations of more micro-batches.
    postpone: bool = True,
    # The timetable of the same graph from whose order some of the constraints are.  Its choice of
    # whether such ops wait is kept: in an order of one kind, units of a pipeline start before
    # others end, which the limits of the other kind may forbid.
    like: Timetable | None = None,
) -> Timetable:
    """Simulate the streams to order the ops by their start."""
    seconds = {
        name: 0.0 if name in free or op.type in _LEAVES else cost(op)
        for name, op in graph.ops.items()
    }
    stream_of = {name: stream_name(op) for name, op in graph.ops.items()}
    computing = {name: s for name, s in stream_of.items() if s.endswith(COMPUTE)}
    pipeline = find_pipeline(graph, computing)
    simulation = _Simulation(graph, before, stream_of, seconds)
    found = list[Timetable]()
    if like is None or not like.postpones:
        plain = replace(pipeline, late=frozenset())
        found.append(simulation.table(simulation.greedy(plain, rank, seconds), plain))
    known = sum(seconds.values()) >= KNOWN * len(graph.ops)
    if like.postpones if like else pipeline.late and postpone and known:
        late = {name: r + len(rank) * (name in pipeline.late) for name, r in rank.items()}
        for patient in (False, True):
            found += _textbook(simulation, pipeline, late, patient)
    return min(found, key=lambda table: table.span * (1.0 if table.postpones else WORTH_WAITING))


WORTH_WAITING = 0.985
"""The largest ratio of predicted times for which gradients of weights wait for other work."""

KNOWN = 1e-5
"""The smallest mean seconds of an op for which they wait.

Costs of shorter ops are mostly those of a launch, as are those of ops whose arithmetic is unknown.
"""


def _textbook(
    simulation: _Simulation, pipeline: Pipeline, rank: Mapping[str, float], patient: bool = False
) -> list[Timetable]:
    """Return the timetable in whose order transfers and short ops take no time.

    Where ops arrive a little late, a stream waits for them, and starts no long op whose result
    nothing needs yet.  If such an order does not exist, the result is empty.
    """
    ops, seconds = simulation.graph.ops, simulation.seconds
    short = SHORT * max((s for name, s in seconds.items() if ops[name].type != BOXING), default=0)
    rounded = {n: 0.0 if s < short or ops[n].type == BOXING else s for n, s in seconds.items()}
    run = simulation.greedy(pipeline, rank, rounded, patient)
    complete = len(run.started) == len(ops)
    return [simulation.table(simulation.in_order(run, rank), pipeline)] if complete else []


SHORT = 0.05
"""The length of an op, as a part of that of the longest one, that counts as none."""


@dataclass(frozen=True, slots=True)
class _Simulation:
    """A graph whose streams are simulated."""

    graph: Graph
    before: Mapping[str, set[str]]  # the predecessors of each op
    stream_of: Mapping[str, str]  # of each op
    seconds: Mapping[str, float]  # of each op, predicted

    def greedy(
        self,
        pipeline: Pipeline,
        rank: Mapping[str, float],
        seconds: Mapping[str, float],
        patient: bool = False,
    ) -> Run[str]:
        """Let each stream start the op of lowest rank whenever it is idle."""
        queues = _streams(self.stream_of, pipeline, rank, patient)
        return self._run(queues, rank, seconds, patient)

    def in_order(self, run: Run[str], rank: Mapping[str, float]) -> Run[str]:
        """Let each stream start its ops in the order of another run, which had other times."""
        items: dict[str, list[str]] = {}
        for name in run.started:
            items.setdefault(self.stream_of[name], []).append(name)
        transfers_first = sorted(items.items(), key=lambda item: item[0].endswith(COMPUTE))
        queues = {stream: InOrder(names) for stream, names in transfers_first}
        return self._run(queues, rank, self.seconds)

    def _run(
        self,
        queues: Mapping[str, Queue[str]],
        rank: Mapping[str, float],
        seconds: Mapping[str, float],
        patient: bool = False,
    ) -> Run[str]:
        """Simulate the streams; if they are patient, they may stop before all ops have run."""
        dependencies = Dependencies(self.before)
        queues_of = {name: (stream,) for name, stream in self.stream_of.items()}
        loop = EventLoop(dependencies, queues, queues_of, seconds.__getitem__, rank.__getitem__)
        run = loop.run()
        blocked = dependencies.blocked()
        if blocked and not patient:
            raise circular(self.graph, blocked[0])
        return run

    def table(self, run: Run[str], pipeline: Pipeline) -> Timetable:
        """Return the timetable of a run with the predicted times."""
        starts, ends = ([times[name] for name in run.started] for times in (run.start, run.end))
        until = [max(i, bisect_left(starts, end) - 1) for i, end in enumerate(ends)]
        total = sum(b - a for a, b in zip(starts, ends, strict=True))
        computing = len({s for s in self.stream_of.values() if s.endswith(COMPUTE)})
        order = [self.graph.ops[name] for name in run.started]
        return Timetable(order, until, total, run.now, computing, bool(pipeline.late))


def _streams(
    stream_of: Mapping[str, str],
    pipeline: Pipeline,
    rank: Mapping[str, float],
    patient: bool = False,
) -> dict[str, _Stream]:
    """Return the streams, with the units of a pipeline whose start limits their ops."""
    # of ops that may start at the same time, transfers come first: other devices wait for them
    most = max(pipeline.limits.values(), default=0)
    streams: dict[str, _Stream] = {}
    for name, stream in sorted(stream_of.items(), key=lambda item: item[1].endswith(COMPUTE)):
        units = pipeline.units if stream.endswith(COMPUTE) else {}  # transfers have no such limit
        if stream not in streams:
            limit = pipeline.limits.get(stream, 0)
            streams[stream] = _Stream(rank, units, limit, pipeline.late, most, patient=patient)
        streams[stream].count(name)
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
        cores: the number of streams for whose kernels there are enough cores.
    """
    workers = max(1, min(cores, table.streams))
    overlap = max(table.span / table.total, 1 / workers) if table.total else 1.0
    long_enough = table.total >= LONG * len(table.order)
    return workers if overlap * WORTH_IT <= 1 and long_enough else 1


_LEAVES = ("input", "variable")


def flows(
    graph: Graph,
    order: Sequence[Op],  # the ops of the graph, in the order in which the streams start them
    sharing: ReplicaDedup = NO_DEDUP,
    once: Set[str] = frozenset(),  # the ops that run when the plan is loaded, before all streams
) -> dict[tuple[str, str], tuple[set[str], int]]:
    """Return the data flow between streams: for each producer and value, its consumers and slots.

    A slot is occupied from the op that produces the value to the last op that reads it; a register
    has as many slots as are occupied at the same time.
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
