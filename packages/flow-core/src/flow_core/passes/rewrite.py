"""Replacing values by equal values throughout a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flow_core.ir import Graph, Op, Value, rebuild


def substitute(graph: Graph, same: Mapping[Value, Value], dropped: set[str]) -> Graph:
    """The graph with values replaced and the dropped ops taken out."""
    ops = [redirect(op, same, dropped) for op in graph.ops.values() if op.name not in dropped]
    results = tuple(same.get(v, v) for v in graph.results)
    return rebuild(graph, ops, results=results)


def redirect(op: Op, same: Mapping[Value, Value], dropped: set[str]) -> Op:
    """An op whose replaced inputs are exchanged."""
    if any(v in same for v in op.inputs):
        op = op.with_inputs(tuple([same.get(v, v) for v in op.inputs]))
    if op.control and any(c in dropped for c in op.control):
        op = replace(op, control=tuple(c for c in op.control if c not in dropped))
    return op
