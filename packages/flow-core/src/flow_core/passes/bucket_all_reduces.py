"""All-reduces start as soon as what they read exists, small ones together in buckets.

Boxing stands where the first reader needs it, which for gradients is behind the whole backward
pass.  Here an all-reduce moves up to the last op that makes its inputs, and those of the same
devices, type and operation that follow are joined to it, up to a size, as long as nobody has
to wait for the bucket who need not have waited for its members.  Other collectives are treated
alike where a program asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from flow_core.exchange import BOXING
from flow_core.ir.graph import Graph, Op, TensorType, Value
from flow_core.passes.base import PassContext
from flow_core.sharding.topology import Device

MEGABYTE = 1 << 20

FUSIBLE = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast")
"""The collectives of which several may go together."""


@dataclass(frozen=True)
class BucketAllReduces:
    """Joins exchanges of at most ``max_ops`` members and ``threshold_mb`` megabytes per device.

    Only those of the ``collectives`` named are joined.  The job's options "bucket_mb",
    "bucket_ops" and "bucket_collectives" come first.
    """

    threshold_mb: float = 16.0
    max_ops: int = 64
    collectives: tuple[str, ...] = ("all_reduce",)
    name: str = "bucket_all_reduces"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph with all-reduces at their earliest place, joined where that is allowed."""
        joined = context.options.get("bucket_collectives", self.collectives)
        if any(name != "all_reduce" for name in joined):
            graph = _leaves_first(graph)
        found = list(_movable(graph, {"all_reduce", *joined}))
        if not found:
            return graph
        limit = float(context.options.get("bucket_mb", self.threshold_mb)) * MEGABYTE
        most = int(context.options.get("bucket_ops", self.max_ops))
        buckets: list[_Bucket] = []
        newest: dict[object, _Bucket] = {}
        for member in sorted(found, key=lambda m: m.ready):
            bucket = newest.get(member.key)
            alone = member.op.attrs["collective"] not in joined
            if alone or bucket is None or not bucket.takes(member, limit, most):
                bucket = newest[member.key] = _Bucket()
                buckets.append(bucket)
            bucket.add(member)
        return _rebuilt(graph, buckets)


@dataclass(frozen=True, slots=True)
class _Member:
    """An exchange that may move.

    Attributes:
        op: the op.
        ready: position of the last op that makes its inputs.
        needed: position of the first op that must come after it.
        nbytes: bytes per device.
        key: what members of a bucket have in common.
    """

    op: Op
    ready: int
    needed: int
    nbytes: int
    key: tuple[object, ...]


@dataclass(slots=True)
class _Bucket:
    """Members that become one op, after position ``ready``."""

    members: list[_Member] = field(default_factory=list)
    nbytes: int = 0
    ready: int = -1

    def takes(self, member: _Member, limit: float, most: int) -> bool:
        return (
            len(self.members) < most
            and self.nbytes + member.nbytes <= limit
            and all(member.ready < m.needed for m in self.members)
        )

    def add(self, member: _Member) -> None:
        self.members.append(member)
        self.nbytes += member.nbytes
        self.ready = max(self.ready, member.ready)


def _leaves_first(graph: Graph) -> Graph:
    """The graph with variables and inputs at its start: what reads only them is ready there."""
    leaves = {n: op for n, op in graph.ops.items() if op.type in ("input", "variable")}
    return replace(graph, ops={**leaves, **graph.ops})


def _movable(graph: Graph, collectives: Collection[str]) -> Iterator[_Member]:
    position = {name: i for i, name in enumerate(graph.ops)}
    waited_for = {name for op in graph.ops.values() for name in op.control}
    consumers = graph.consumers()
    moving = {
        op.name: op
        for op in graph.of_type(BOXING)
        if op.attrs["collective"] in collectives
        and op.inputs
        and not op.control
        and op.name not in waited_for
    }
    for op in moving.values():
        here, outputs = position[op.name], range(len(graph.types[op.name]))
        readers = [r.name for k in outputs for r in consumers.get(op.output(k), ())]
        # another exchange that reads this one moves up to here, and no further
        waits = [here if name in moving else position[name] for name in readers]
        needed = min(waits, default=len(graph))
        ready = max(position[v.op] for v in op.inputs)
        nbytes = max(t.nbytes for t in (*graph.input_types(op), *graph.types[op.name]))
        senders = tuple([_device(graph, v) for v in op.inputs])
        key = (op.placement, senders, *[op.attrs[k] for k in ("collective", "dtype", "combine")])
        yield _Member(op, ready, needed, nbytes, key)


def _device(graph: Graph, value: Value) -> Device:
    placement = graph.ops[value.op].placement
    return placement.device(value.index % placement.size)


def _rebuilt(graph: Graph, buckets: list[_Bucket]) -> Graph:
    same: dict[Value, Value] = {}
    after: dict[int, list[Op]] = {}
    gone: set[str] = set()
    types, lines = dict(graph.types), dict(graph.lines)
    for bucket in buckets:
        ops = [member.op for member in bucket.members]
        op = ops[0] if len(ops) == 1 else _joined(ops, types, same)
        if ops[-1].name in lines:
            lines[op.name] = lines[ops[-1].name]
        gone.update(o.name for o in ops)
        after.setdefault(bucket.ready, []).append(op)
    placed = list(_placed(graph, after, gone))
    renamed = {op.name: op.with_inputs(_renamed(op.inputs, same)) for op in placed}
    return Graph(
        renamed,
        {name: types[name] for name in renamed},
        _renamed(graph.results, same),
        graph.effects,
        {name: lines[name] for name in renamed if name in lines},
        graph.origins,
    )


def _renamed(values: tuple[Value, ...], same: Mapping[Value, Value]) -> tuple[Value, ...]:
    return tuple([same.get(v, v) for v in values])


def _placed(graph: Graph, after: Mapping[int, list[Op]], gone: set[str]) -> Iterator[Op]:
    for index, op in enumerate(graph.ops.values()):
        if op.name not in gone:
            yield op
        yield from after.get(index, ())


def _joined(
    ops: list[Op], types: dict[str, tuple[TensorType, ...]], same: dict[Value, Value]
) -> Op:
    """One exchange for several; notes its types, and which values its outputs stand for."""
    first = ops[0]
    name = f"{first.name}/bucket"
    outputs = [op.output(k) for op in ops for k in range(len(types[op.name]))]
    same.update({value: Value(name, i) for i, value in enumerate(outputs)})
    types[name] = tuple(types[v.op][v.index] for v in outputs)
    attrs = first.attrs.with_(
        members=tuple(op.name for op in ops),
        shapes=tuple(shape for op in ops for shape in op.attrs["shapes"]),
        blocks=tuple(_shifted_blocks(ops)),
        fills=tuple(_shifted_fills(ops)),
    )
    inputs = tuple(v for op in ops for v in op.inputs)
    return Op(name, BOXING, inputs, attrs, first.placement)


def _shifted_blocks(ops: list[Op]) -> Iterator[tuple[object, ...]]:
    """The blocks of several exchanges, whose inputs and outputs follow one another."""
    inputs = outputs = 0
    for op in ops:
        for source, start, target, *rest in op.attrs["blocks"]:
            yield (source + inputs, start, target + outputs, *rest)
        inputs, outputs = inputs + len(op.inputs), outputs + len(op.attrs["shapes"])


def _shifted_fills(ops: list[Op]) -> Iterator[tuple[int, str]]:
    outputs = 0
    for op in ops:
        yield from ((target + outputs, operation) for target, operation in op.attrs["fills"])
        outputs += len(op.attrs["shapes"])
