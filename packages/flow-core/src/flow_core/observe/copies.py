"""A model of variables of which each device in the mirrored view overwrites its own copy.

Examples are the statistics of a normalization in the mirrored view, which each device updates
independently.  When such a graph runs on one device, each copy becomes a separate variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from flow_core.ir.graph import Graph, Op, TensorType, Value
from flow_core.ops.data_movement.mirrored import parts_per_device
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.sbp import Partial
from flow_core.sharding.topology import Device

CAST = "cast_to_mirrored"


@dataclass(frozen=True, slots=True)
class Copy:
    """A device's own copy of a variable."""

    variable: str
    device: Device  # that holds the copy
    # Name of the separate variable that represents the copy when one device runs the graph.
    name: str
    window: tuple[slice, ...]  # the part of the variable that the copy holds


def overwritten_copies(graph: Graph, specs: Mapping[str, OpSpec]) -> dict[Value, Copy]:
    """Return the copies of all variables that mirrored devices of a logical graph overwrite."""
    changed = {
        graph.ops[value.op].inputs[0].op
        for op in graph.ops.values()
        for value in (op.inputs[i] for i in specs[op.type].mutates if i < len(op.inputs))
        if graph.ops[value.op].type == CAST
    }
    casts = [op for op in graph.of_type(CAST) if op.inputs[0].op in changed]
    return {value: copy for op in casts for value, copy in _copies(graph, op)}


def _copies(graph: Graph, op: Op) -> Iterator[tuple[Value, Copy]]:
    variable, shape = op.inputs[0].op, graph.type_of(op.inputs[0]).shape
    windows = parts_per_device(shape, op.attrs["sbp"], op.attrs["hierarchy"], Partial)
    for rank, (_, window) in enumerate(windows):
        device = op.placement.device(rank)
        yield op.output(rank), Copy(variable, device, f"{variable} of {device}", window)


def with_copies(graph: Graph, copies: Mapping[Value, Copy]) -> Graph:
    """Return a graph for one device in which each copy is a separate variable."""
    if not copies:
        return graph
    ops: dict[str, Op] = {}
    types: dict[str, tuple[TensorType, ...]] = {}
    for value, copy in copies.items():
        original, type_ = graph.ops[copy.variable], graph.type_of(value)
        attrs = original.attrs.with_(shape=type_.shape)
        ops[copy.name] = replace(original, name=copy.name, attrs=attrs)
        types[copy.name] = (type_,)
    casts = {value.op for value in copies}
    for name, op in graph.ops.items():
        if name not in casts:
            moved = [Value(copies[v].name, 0) if v in copies else v for v in op.inputs]
            control = tuple(c for c in op.control if c not in casts)
            ops[name] = replace(op, inputs=tuple(moved), control=control)
            types[name] = graph.types[name]
    return replace(graph, ops=ops, types=types)
