"""Aliases: outputs that are views of inputs, and replicas that devices share."""

from __future__ import annotations

from collections.abc import Mapping

from flow_core.compiler.memory.replica_dedup import NO_DEDUP, ReplicaDedup
from flow_core.ir.graph import Graph, Op, Value
from flow_core.plugins.specs import OpSpec


def alias_roots(
    graph: Graph, specs: Mapping[str, OpSpec], sharing: ReplicaDedup = NO_DEDUP
) -> dict[Value, Value]:
    """Return the owner of the bytes of each output that is a view or a shared replica."""
    roots: dict[Value, Value] = {}
    for op in graph.ops.values():
        alias = specs[op.type].alias
        if alias is not None and specs[op.type].is_view(len(op.inputs)):
            source = op.inputs[alias]
            roots[op.output()] = roots.get(source, source)
        for index in range(len(graph.types[op.name])) if sharing.same else ():
            source_ = sharing.same.get(Value(op.name, index))
            if source_ is not None:
                roots[Value(op.name, index)] = roots.get(source_, source_)
    return roots


def overwritten(op: Op, specs: Mapping[str, OpSpec], roots: Mapping[Value, Value]) -> list[Value]:
    """Return the values whose bytes an op overwrites."""
    found = [op.inputs[i] for i in specs[op.type].overwrites(op.attrs) if i < len(op.inputs)]
    return [roots.get(value, value) for value in found]
