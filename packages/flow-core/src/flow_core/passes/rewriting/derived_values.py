"""Values that are computed from variables alone, and therefore not in every step."""

from __future__ import annotations

from collections.abc import Mapping

from flow_core.ir.graph import Graph
from flow_core.plugins.specs import OpSpec


def constant_ops(graph: Graph, specs: Mapping[str, OpSpec]) -> frozenset[str]:
    """Return the names of the ops whose results are the same in every step."""
    return closure(graph, specs, frozenset())


def derived_ops(graph: Graph, specs: Mapping[str, OpSpec]) -> frozenset[str]:
    """Return the names of the ops that run only after a variable was overwritten."""
    leaves = {op.name for op in graph.of_type("variable")}
    return constants_of_variables(graph, specs) - constant_ops(graph, specs) - leaves


def constants_of_variables(graph: Graph, specs: Mapping[str, OpSpec]) -> frozenset[str]:
    """Return the names of the ops whose results change only when a variable is overwritten.

    These are variables, and ops that depend on nothing but variables and constants.  The set is
    empty for jobs on several devices, and for jobs that overwrite variables themselves, because
    their values would have to be computed in each step.
    """
    variables = frozenset(op.name for op in graph.of_type("variable"))
    ops = graph.ops.values()
    placements = {op.placement for op in ops}
    alone = len(placements) == 1 and all(placement.size == 1 for placement in placements)
    if not variables or not alone or any(specs[op.type].overwrites(op.attrs) for op in ops):
        return frozenset()
    return closure(graph, specs, variables)


def closure(graph: Graph, specs: Mapping[str, OpSpec], roots: frozenset[str]) -> frozenset[str]:
    """Return the names of ops that depend on nothing but ``roots``, with the roots."""
    found = set(roots)
    for op in graph.ops.values():
        spec = specs[op.type]
        changes = spec.effect or spec.random or spec.mutates or op.type in ("input", "variable")
        if not changes and all(v.op in found for v in op.inputs):
            found.add(op.name)
    return frozenset(found)
