"""Gathers runs of elementwise ops into groups that a backend lowers as one.

A run is a stretch of neighbouring elementwise ops in graph order with one result shape and one
placement.  No outside op lies between its members, so no path can leave a run and come back:
groups never make a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flow_core.ir import Attrs, Graph, Op, TensorType, Value
from flow_core.ops.fused import Member, encode
from flow_core.passes.base import PassContext


@dataclass(frozen=True)
class FuseElementwise:
    """Makes groups of at least two connected ops and at most ``limit``."""

    limit: int = 1000
    name: str = "fuse_elementwise"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph with ``fused`` ops in place of runs."""
        readers = _reader_counts(graph)
        ops: dict[str, Op] = {}
        types = dict(graph.types)
        lines = dict(graph.lines)
        same: dict[Value, Value] = {}
        for run in self._runs(graph, context):
            if len(run) == 1:
                ops[run[0].name] = _moved(run[0], same)
                continue
            fused, outputs = _fuse(graph, run, readers)
            ops[fused.name] = _moved(fused, same)
            types[fused.name] = tuple(graph.type_of(v) for v in outputs)
            if run[-1].name in lines:
                lines[fused.name] = lines[run[-1].name]
            same.update({v: Value(fused.name, i) for i, v in enumerate(outputs)})
        results = tuple(same.get(v, v) for v in graph.results)
        kept = {n: types[n] for n in ops}
        return Graph(ops, kept, results, graph.effects, {n: lines[n] for n in ops if n in lines})

    def _runs(self, graph: Graph, context: PassContext) -> Iterator[list[Op]]:
        run: list[Op] = []
        names: set[str] = set()
        for op in graph.ops.values():
            joins = (
                bool(run)
                and len(run) < self.limit
                and _fusible(op, context)
                and _fusible(run[-1], context)
                and _same_space(graph, run[-1], op)
                and any(v.op in names for v in op.inputs)
            )
            if not joins and run:
                yield run
                run, names = [], set()
            run.append(op)
            names.add(op.name)
        if run:
            yield run


def _fusible(op: Op, context: PassContext) -> bool:
    spec = context.specs[op.type]
    return spec.elementwise and not spec.effect and not spec.random and not op.control


def _same_space(graph: Graph, a: Op, b: Op) -> bool:
    ta, tb = graph.types[a.name], graph.types[b.name]
    return (
        len(ta) == len(tb) == 1 and ta[0].shape == tb[0].shape and a.placement == b.placement
    )


def _moved(op: Op, same: dict[Value, Value]) -> Op:
    return op.with_inputs(tuple([same.get(v, v) for v in op.inputs]))


def _reader_counts(graph: Graph) -> dict[Value, int]:
    counts: dict[Value, int] = {}
    for op in graph.ops.values():
        for value in op.inputs:
            counts[value] = counts.get(value, 0) + 1
    for value in graph.results:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _fuse(graph: Graph, run: list[Op], readers: dict[Value, int]) -> tuple[Op, list[Value]]:
    """The fused op of a run, and which values its outputs stand for."""
    position = {op.name: i for i, op in enumerate(run)}
    inputs: dict[Value, int] = {}
    inside: dict[Value, int] = {}
    members: list[Member] = []
    for op in run:
        refs = []
        for value in op.inputs:
            if value.op in position:
                refs.append(position[value.op])
                inside[value] = inside.get(value, 0) + 1
            else:
                refs.append(-1 - inputs.setdefault(value, len(inputs)))
        members.append(Member(op.type, tuple(refs), op.attrs, _type(graph, op)))
    outputs = [
        op.output() for op in run if readers.get(op.output(), 0) > inside.get(op.output(), 0)
    ]
    attrs = Attrs({"body": encode(members), "outputs": tuple(position[v.op] for v in outputs)})
    last = run[-1]
    return Op(last.name, "fused", tuple(inputs), attrs, last.placement), outputs


def _type(graph: Graph, op: Op) -> TensorType:
    return graph.types[op.name][0]
