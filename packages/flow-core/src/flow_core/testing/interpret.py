"""Evaluation of graphs with the numpy references of ops: slow, but simple enough for an oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flow_core.ir.graph import Graph, Value
from flow_core.plugins.specs import OpSpec


def evaluate(
    graph: Graph, specs: Mapping[str, OpSpec], feeds: Mapping[str, Any]
) -> dict[Value, Any]:
    """Compute all values of a graph; ``feeds`` maps the names of ops without inputs to outputs.

    The graph may be a physical graph, whose ``input`` ops may be parts of a logical ``input`` op.
    """
    values: dict[Value, Any] = {}
    for name, op in graph.ops.items():
        fed, region = op.attrs.get("of", name), op.attrs.get("region", ())
        if fed in feeds:
            results = (feeds[fed][*(slice(*bounds) for bounds in region), ...],)
        else:
            reference = specs[op.type].reference
            assert reference is not None, f"{op.type} has no reference"
            results = reference(*(values[v] for v in op.inputs), **op.attrs)
        if not isinstance(results, tuple):
            results = (results,)
        values.update({Value(name, i): np.asarray(r) for i, r in enumerate(results)})
    return values
