"""Bucketing of all-reduces: start all-reduces early, and join small ones.

Lowering inserts each boxing right before the first op that reads its result; for gradients, this
is after the whole backward pass.  This pass moves an all-reduce up to directly after the last op
that produces one of its inputs.  It then merges the following all-reduces with the same devices,
element type and operation into it, up to a size limit, and only if the merge makes no op wait for
an all-reduce that it did not wait for before.  Other collectives are treated in the same way if
the configuration names them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from flow_core.comm.exchange import BOXING
from flow_core.ir.graph import Graph, Op, Value
from flow_core.passes.base import PassContext
from flow_core.passes.options import option
from flow_core.passes.rewriting.rewriter import Rewriter
from flow_core.sharding.topology import Device

MEGABYTE = 1 << 20

FUSIBLE = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast")
"""The collectives that can be joined."""


@dataclass(frozen=True)
class BucketAllReduces:
    """A pass that joins exchanges into buckets.

    The job's settings and those of the session set its options.
    """

    threshold_mb: float = option(16.0, "the largest number of megabytes per device in a bucket")
    max_ops: int = option(64, "the largest number of exchanges in a bucket")
    collectives: tuple[str, ...] = option(("all_reduce",), "the collectives that are joined")
    name: str = "bucket_all_reduces"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with all-reduces at their earliest position, joined where possible."""
        if any(name != "all_reduce" for name in self.collectives):
            graph = _leaves_first(graph)
        rewriter = Rewriter(graph)
        found = list(_movable(rewriter, {"all_reduce", *self.collectives}))
        if not found:
            return graph
        limit = self.threshold_mb * MEGABYTE
        buckets: list[_Bucket] = []
        newest: dict[object, _Bucket] = {}
        for member in sorted(found, key=lambda m: m.ready):
            bucket = newest.get(member.key)
            alone = member.op.attrs["collective"] not in self.collectives
            if alone or bucket is None or not bucket.takes(member, limit, self.max_ops):
                bucket = newest[member.key] = _Bucket()
                buckets.append(bucket)
            bucket.add(member)
        return _rewritten(rewriter, buckets)


@dataclass(frozen=True, slots=True)
class _Member:
    """An exchange that can move."""

    op: Op  # the exchange
    ready: int  # position of the last op that produces one of the exchange's inputs
    needed: int  # position of the first op that reads the exchange's result
    nbytes: int  # number of bytes per device
    key: tuple[object, ...]  # the properties that must be equal for all members of a bucket


@dataclass(slots=True)
class _Bucket:
    """Exchanges that become one op, directly after the op at position ``ready``."""

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
    """Return the graph with all variables and inputs first.

    Ops that read nothing else can then move to the start of the graph.
    """
    leaves = {n: op for n, op in graph.ops.items() if op.type in ("input", "variable")}
    return replace(graph, ops={**leaves, **graph.ops})


def _movable(rewriter: Rewriter, collectives: Collection[str]) -> Iterator[_Member]:
    graph, position = rewriter.graph, rewriter.position
    waited_for = {name for op in graph.ops.values() for name in op.control}
    # An exchange with order edges must not move, because the edges fix its position.
    moving = {
        op.name: op
        for op in graph.of_type(BOXING)
        if op.attrs["collective"] in collectives
        and op.inputs
        and not op.control
        and op.name not in waited_for
    }
    for op in moving.values():
        own_position, outputs = position[op.name], range(len(graph.types[op.name]))
        readers = [r.name for k in outputs for r in rewriter.readers(op.output(k))]
        # a reader that is itself an exchange can move up to the position of this op, no further
        waits = [own_position if name in moving else position[name] for name in readers]
        needed = min(waits, default=len(graph))
        ready = max(position[v.op] for v in op.inputs)
        whole = op.attrs.get("whole", ())
        types = (*graph.input_types(op), *graph.types[op.name])
        nbytes = whole[2][0][1] if whole else max(t.nbytes for t in types)
        senders = tuple([_device(graph, v) for v in op.inputs])
        same = [op.attrs[k] for k in ("collective", "dtype", "combine")]
        key = (op.placement, senders, whole[:2], *same)
        yield _Member(op, ready, needed, nbytes, key)


def _device(graph: Graph, value: Value) -> Device:
    placement = graph.ops[value.op].placement
    return placement.device(value.index % placement.size)


def _rewritten(rewriter: Rewriter, buckets: list[_Bucket]) -> Graph:
    ops = list(rewriter.graph.ops.values())
    for bucket in buckets:
        rewriter.after(ops[bucket.ready])
        members = [member.op for member in bucket.members]
        if len(members) == 1:
            rewriter.move(members[0])
        else:
            _join(rewriter, members)
    return rewriter.finish()


def _join(rewriter: Rewriter, ops: list[Op]) -> None:
    """Replace several exchanges by a single one."""
    first, graph = ops[0], rewriter.graph
    outputs = [op.output(k) for op in ops for k in range(len(graph.types[op.name]))]
    attrs = first.attrs.with_(
        members=tuple(op.name for op in ops),
        shapes=tuple(shape for op in ops for shape in op.attrs["shapes"]),
        blocks=tuple(_shifted_blocks(ops)),
        fills=tuple(_shifted_fills(ops)),
    )
    if first.attrs.get("whole"):
        rows = (tuple([row for op in ops for row in op.attrs["whole"][k]]) for k in (2, 3))
        attrs = attrs.with_(whole=(*first.attrs["whole"][:2], *rows))
    inputs = tuple(v for op in ops for v in op.inputs)
    bucket = Op(f"{first.name}/bucket", BOXING, inputs, attrs, first.placement)
    types, line = tuple(map(graph.type_of, outputs)), graph.lines.get(ops[-1].name)
    rewriter.add(bucket, types, line=line)
    for op in ops:
        rewriter.drop(op)
    for index, value in enumerate(outputs):
        rewriter.replace_value(value, bucket.output(index))


def _shifted_blocks(ops: list[Op]) -> Iterator[tuple[object, ...]]:
    """Yield the blocks of several exchanges, renumbered for concatenated inputs and outputs."""
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
