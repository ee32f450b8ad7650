"""Loops without unread results, and without ops that give the same at all positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flow_core.ir.graph import Attrs, Graph, Op, Value
from flow_core.ops.control.bodies import body_graph, body_literal, needed_ops
from flow_core.ops.control.scan import scan_type, types_within
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.bodies import LOOPS, with_bodies
from flow_core.passes.rewriting.rewriter import Rewriter


@dataclass(frozen=True)
class SimplifyLoops:
    """A pass that drops stacked results that no op reads, such as the states that only a gradient
    would read, and moves ops that do not depend on the position before the loop, such as casts of
    weights.
    """

    name: str = "simplify_loops"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with simpler loops, also within bodies."""
        outer = _simplified(graph, context)
        return with_bodies(outer, lambda body, _: _simplified(body, context))


def _simplified(graph: Graph, context: PassContext) -> Graph:
    loops = [op for op in graph.ops.values() if op.type in LOOPS and not op.sbp]
    if not loops:
        return graph
    rewriter = Rewriter(graph)
    for op in loops:
        _simplify(rewriter, op, context)
    return rewriter.finish()


def _simplify(rewriter: Rewriter, op: Op, context: PassContext) -> None:
    graph, carries = rewriter.graph, op.attrs["carries"]
    body = body_graph(op.attrs["body"], types_within(graph.input_types(op), op.attrs), op.placement)
    inputs = [o.output() for o in body.of_type("input")]
    varying = inputs[: carries + op.attrs["sequences"]]
    # A carry is read at the next position even if the program does not use its last value.
    kept = [k for k in range(len(body.results)) if k < carries or rewriter.is_used(op.output(k))]
    results = [body.results[k] for k in kept]
    needed = needed_ops(body.ops.values(), inputs, results)
    moved = _invariant(needed, varying, context)
    if not moved and len(kept) == len(body.results):
        return
    outside = dict(zip(inputs[len(varying) :], op.inputs[len(varying) :], strict=True))
    for inner in moved:
        outside |= _move(rewriter, op, inner, body, outside)
    rest = [inner for inner in needed if inner not in moved]
    read = dict.fromkeys([*(v for inner in rest for v in inner.inputs), *results])
    own = [value for value in read if value in outside]
    literal = body_literal(rest, [*varying, *own], results)
    draws_as = op.attrs["draws_as"] or graph.origin(op.name).logical
    attrs = Attrs({**op.attrs, "body": literal, "draws_as": draws_as})
    simpler = replace(
        op, name=rewriter.unique_name(f"{op.name}/simplified"), type=scan_type(literal),
        inputs=(*op.inputs[: len(varying)], *(outside[value] for value in own)), attrs=attrs,
    )  # fmt: skip
    types = tuple(graph.types[op.name][k] for k in kept)
    line, origin = graph.lines.get(op.name), graph.origin(op.name)
    rewriter.before(op).add(simpler, types, line=line, origin=origin)
    for index, k in enumerate(kept):
        rewriter.replace_value(op.output(k), simpler.output(index))
    rewriter.drop(op, simpler.name)


def _invariant(ops: Sequence[Op], varying: Sequence[Value], context: PassContext) -> Sequence[Op]:
    """Return the ops of a body that give the same at all positions."""
    names, found = {value.op for value in varying}, list[Op]()
    for op in ops:
        if context.specs[op.type].random or any(v.op in names for v in op.inputs):
            names.add(op.name)
        else:
            found.append(op)
    return found


def _move(
    rewriter: Rewriter, loop: Op, inner: Op, body: Graph, outside: dict[Value, Value]
) -> dict[Value, Value]:
    """Add an op of a body before the loop; return its outputs by those in the body."""
    name, types = rewriter.unique_name(f"{loop.name}/{inner.name}"), body.types[inner.name]
    moved = replace(inner, name=name, inputs=tuple(outside[v] for v in inner.inputs))
    rewriter.before(loop).add(moved, types, line=rewriter.graph.lines.get(loop.name))
    return {inner.output(i): moved.output(i) for i in range(len(types))}
