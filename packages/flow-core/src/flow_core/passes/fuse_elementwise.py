"""Gathers runs of elementwise ops into groups that a backend lowers as one.

A run is a stretch of elementwise ops with one result shape that are neighbours among the ops
of their device, in graph order.  All that a run reads from outside is made before its first
op, where the group takes its place: no path can leave a run and come back, groups never make a
cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.ir.graph import Attrs, Graph, Op, TensorType, Value
from flow_core.ops.system.fused import Member, encode
from flow_core.passes.base import PassContext
from flow_core.sharding.topology import Placement


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
            if not outputs:  # what a device computes that only another one has to give
                continue
            ops[fused.name] = _moved(fused, same)
            types[fused.name] = tuple(graph.type_of(v) for v in outputs)
            if run[-1].name in lines:
                lines[fused.name] = lines[run[-1].name]
            same.update({v: Value(fused.name, i) for i, v in enumerate(outputs)})
        results = tuple(same.get(v, v) for v in graph.results)
        kept = {n: types[n] for n in ops}
        lines = {n: lines[n] for n in ops if n in lines}
        return Graph(ops, kept, results, graph.effects, lines, graph.origins)

    def _runs(self, graph: Graph, context: PassContext) -> list[list[Op]]:
        """All ops as runs, in the order of the first op of each."""
        runs: list[_Run] = []
        open_runs: dict[Placement, _Run] = {}
        position = {name: i for i, name in enumerate(graph.ops)}
        for op in graph.ops.values():
            run = open_runs.get(op.placement)
            if run is not None and self._joins(run, op, graph, context, position):
                run.ops.append(op)
                run.names.add(op.name)
            else:
                run = _Run([op], {op.name}, position[op.name])
                runs.append(run)
                open_runs[op.placement] = run
        return [run.ops for run in runs]

    def _joins(
        self,
        run: _Run,
        op: Op,
        graph: Graph,
        context: PassContext,
        position: dict[str, int],
    ) -> bool:
        last = run.ops[-1]
        return (
            len(run.ops) < self.limit
            and _fusible(op, context)
            and _fusible(last, context)
            and _same_space(graph, last, op)
            and any(v.op in run.names for v in op.inputs)
            and all(v.op in run.names or position[v.op] < run.first for v in op.inputs)
        )


@dataclass(slots=True)
class _Run:
    """Ops that become one, and where the first of them stands."""

    ops: list[Op]
    names: set[str]
    first: int


def _fusible(op: Op, context: PassContext) -> bool:
    spec = context.specs[op.type]
    return spec.elementwise and not spec.effect and not spec.random and not op.control


def _same_space(graph: Graph, a: Op, b: Op) -> bool:
    ta, tb = graph.types[a.name], graph.types[b.name]
    return len(ta) == len(tb) == 1 and ta[0].shape == tb[0].shape and a.placement == b.placement


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
