"""Fusion of runs of elementwise ops into groups that a backend lowers as one kernel.

A run is a sequence of elementwise ops with the same result shape that are adjacent, in graph order,
among the ops of their device.  All external inputs of a run are produced before its first op, and
the group is inserted at the position of that op.  Therefore no path leaves a run and re-enters it,
and groups form no cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flow_core.ir.graph import Graph, Op, TensorType, Value
from flow_core.ops.system.fused import Member, encode
from flow_core.passes.base import PassContext
from flow_core.passes.options import option
from flow_core.passes.rewriting.bodies import with_bodies
from flow_core.passes.rewriting.rewriter import Rewriter, like_op
from flow_core.sharding.topology import Placement


@dataclass(frozen=True)
class FuseElementwise:
    """A pass that forms groups of at least two connected ops."""

    limit: int = option(1000, "the largest number of ops in a group")
    check_finite: str = option(
        "off", 'how results are checked for NaN and infinity; groups only if "off"', "check_finite"
    )
    name: str = "fuse_elementwise"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with ``fused`` ops in place of runs."""
        if self.check_finite != "off":  # a check names the op whose result it finds
            return graph
        return with_bodies(self._fused(graph, context), lambda body, _: self._fused(body, context))

    def _fused(self, graph: Graph, context: PassContext) -> Graph:
        rewriter = Rewriter(graph)
        for run in self._runs(rewriter, context):
            _fuse(rewriter, run, context)
        return rewriter.finish()

    def _runs(self, rewriter: Rewriter, context: PassContext) -> list[list[Op]]:
        """Partition all ops into runs, ordered by the first op of each run."""
        graph, position = rewriter.graph, rewriter.position
        runs: list[_Run] = []
        open_runs: dict[Placement, _Run] = {}
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
        self, run: _Run, op: Op, graph: Graph, context: PassContext, position: Mapping[str, int]
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
    """The ops to fuse, their names, and the position of the first op."""

    ops: list[Op]
    names: set[str]
    first: int


def _fusible(op: Op, context: PassContext) -> bool:
    spec = context.specs[op.type]
    return spec.elementwise and not spec.effect and not spec.random and not op.control


def _same_space(graph: Graph, a: Op, b: Op) -> bool:
    ta, tb = graph.types[a.name], graph.types[b.name]
    return len(ta) == len(tb) == 1 and ta[0].shape == tb[0].shape and a.placement == b.placement


def _outputs(rewriter: Rewriter, run: list[Op]) -> list[Value]:
    """Return the values of a run that the job returns or that other ops read."""
    inside = {op.name for op in run}
    return [
        op.output()
        for op in run
        if rewriter.is_result(op.output())
        or any(r.name not in inside for r in rewriter.readers(op.output()))
    ]


def _fuse(rewriter: Rewriter, run: list[Op], context: PassContext) -> None:
    """Replace a run by one fused op; if no kernel accepts that op, do this for each half."""
    if len(run) < 2:
        return
    outputs = _outputs(rewriter, run)
    types = tuple(map(rewriter.graph.type_of, outputs))
    if not outputs:  # unread: the device receives the result of these ops from another device
        for op in run:
            rewriter.drop(op)
        return
    fused, read = _fused(rewriter.graph, run, outputs)
    if context.has_kernel(fused, tuple(map(rewriter.graph.type_of, read)), types):
        _replace(rewriter, run, outputs, fused, types)
        return
    middle = len(run) // 2
    _fuse(rewriter, run[:middle], context)
    _fuse(rewriter, run[middle:], context)


def _replace(
    rewriter: Rewriter,
    run: list[Op],
    outputs: list[Value],
    fused: Op,
    types: tuple[TensorType, ...],
) -> None:
    """Replace a run by a fused op, whose outputs have the given types and replace ``outputs``."""
    first, *_, last = run
    for op in run[:-1]:
        rewriter.drop(op, last.name)
    rewriter.replace(last, fused, types)
    rewriter.record_merged(fused, run)
    rewriter.before(first).move(fused)
    for index, value in enumerate(outputs):
        rewriter.replace_value(value, fused.output(index))


def _fused(graph: Graph, run: list[Op], outputs: list[Value]) -> tuple[Op, tuple[Value, ...]]:
    """Return the fused op of a run, and the op's inputs as values of the original graph."""
    position = {op.name: i for i, op in enumerate(run)}
    inputs: dict[Value, int] = {}
    members: list[Member] = []
    for op in run:
        refs = [
            position[v.op] if v.op in position else -1 - inputs.setdefault(v, len(inputs))
            for v in op.inputs
        ]
        members.append(Member(op.type, tuple(refs), op.attrs, graph.types[op.name][0]))
    attrs = {"body": encode(members), "outputs": tuple(position[v.op] for v in outputs)}
    return like_op(run[-1], "fused", attrs, inputs), tuple(inputs)
