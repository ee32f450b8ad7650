"""Rewriting of the bodies of loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from flow_core.ir.graph import Graph, Op, TensorType
from flow_core.ops.control.bodies import body_graph, body_literal
from flow_core.ops.control.scan import types_within
from flow_core.passes.rewriting.rewriter import Rewriter

LOOPS = ("scan", "random_scan")
BRANCHES = ("cond", "random_cond")
WITH_BODIES = (*LOOPS, *BRANCHES)
"""Types of ops with bodies."""


def body_types(op: Op, types: Sequence[TensorType]) -> Mapping[str, tuple[TensorType, ...]]:
    """Return the types of the inputs of an op's bodies, by attribute.

    Args:
        types: the types of its inputs.
    """
    if op.type in LOOPS:
        return {"body": types_within(types, op.attrs)}
    return dict.fromkeys(("then", "otherwise"), tuple(types[1:])) if op.type in BRANCHES else {}


def with_bodies(graph: Graph, rewrite: Callable[[Graph, Op], Graph]) -> Graph:
    """Return a graph whose bodies are rewritten, and then those within them.

    Args:
        rewrite: returns another graph for that of a body of an op, with the same inputs and types
            of results.
    """
    found = [op for op in graph.ops.values() if op.type in WITH_BODIES]
    if not found:
        return graph
    rewriter = Rewriter(graph)
    for op in found:
        changed = dict(_rewritten(op, graph, rewrite))
        if changed:
            again = replace(op, attrs=op.attrs.with_(**changed))
            rewriter.replace(op, again, graph.types[op.name])
    return rewriter.finish()


def _rewritten(
    op: Op, graph: Graph, rewrite: Callable[[Graph, Op], Graph]
) -> Iterator[tuple[str, object]]:
    for name, types in body_types(op, graph.input_types(op)).items():
        before = body_graph(op.attrs[name], types, op.placement)
        after = with_bodies(rewrite(before, op), rewrite)
        if after is not before:
            inputs = [o.output() for o in before.of_type("input")]
            yield name, body_literal(after.ops.values(), inputs, after.results)
