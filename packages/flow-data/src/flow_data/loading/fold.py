"""The pass that folds readers and dependent host ops of a device into one loader op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flow_core.exchange import BOXING
from flow_core.ir.graph import Attrs, Graph, Op, Value
from flow_core.sharding.topology import Placement
from flow_data.loading.body import LOCAL_COPIES, Member, encode
from flow_data.loading.source import READERS


@dataclass(frozen=True)
class FoldLoaders:
    """Creates one ``data_loader`` per device with a reader."""

    name: str = "fold_loaders"

    def apply(self, graph: Graph, context: Any) -> Graph:
        """Return the graph with loaders in place of their member ops."""
        if not any(op.type in READERS for op in graph.ops.values()):
            return graph
        groups = _groups(graph, context.specs)
        members = {name: place for place, ops in groups.items() for name in ops}
        loaders = {place: _Loader(graph, list(ops.values())) for place, ops in groups.items()}
        same = {v: new for loader in loaders.values() for v, new in loader.same.items()}
        ops: dict[str, Op] = {}
        types = {}
        for name, op in graph.ops.items():
            if name not in members:
                ops[name] = op.with_inputs(tuple([same.get(v, v) for v in op.inputs]))
                types[name] = graph.types[name]
            elif loaders[members[name]].op.name not in ops:
                loader = loaders[members[name]]
                ops[loader.op.name] = loader.op
                types[loader.op.name] = tuple(graph.type_of(v) for v in loader.outputs)
        results = tuple(same.get(v, v) for v in graph.results)
        lines = {n: graph.lines[n] for n in ops if n in graph.lines}
        return Graph(ops, types, results, graph.effects, lines)


def _groups(graph: Graph, specs: Any) -> dict[Placement, dict[str, Op]]:
    """Return per device the ops that depend only on readers and host ops of the device."""
    found: dict[Placement, dict[str, Op]] = {}
    for op in graph.ops.values():
        own = found.setdefault(op.placement, {})
        inside = all(v.op in own for v in op.inputs) and not op.control
        host = specs[op.type].host or is_local(op)
        if op.placement.device_type == "cpu" and inside and host:
            own[op.name] = op
    groups = {place: _useful(graph, ops, specs) for place, ops in found.items()}
    return {
        place: ops for place, ops in groups.items() if any(o.type in READERS for o in ops.values())
    }


def is_local(op: Op) -> bool:
    """Return whether an op slices or copies a value within its device."""
    return op.type == BOXING and op.placement.size == 1 and op.attrs["collective"] in LOCAL_COPIES


def _useful(graph: Graph, ops: dict[str, Op], specs: Any) -> dict[str, Op]:
    """Remove copies whose consumers are outside of the group."""
    kept = dict(ops)
    readers = graph.consumers()
    for op in reversed(ops.values()):
        outside = any(r.name not in kept for r in readers.get(op.output(), ()))
        fetched = op.output() in graph.results
        if not specs[op.type].host and (outside or fetched):
            del kept[op.name]
    return kept


class _Loader:
    """The loader op of a group, and the values that its outputs replace."""

    def __init__(self, graph: Graph, ops: list[Op]) -> None:
        position = {op.name: i for i, op in enumerate(ops)}
        self.outputs = [
            value
            for op in ops
            for k in range(len(graph.types[op.name]))
            if _crosses(graph, value := Value(op.name, k), position)
        ]
        members = [_member(graph, op, position) for op in ops]
        first = next(op for op in ops if op.type in READERS)
        outputs = tuple((position[v.op], v.index) for v in self.outputs)
        attrs = Attrs({"body": encode(members), "outputs": outputs})
        self.op = Op(first.name, "data_loader", (), attrs, first.placement)
        self.same = {v: Value(first.name, i) for i, v in enumerate(self.outputs)}


def _crosses(graph: Graph, value: Value, position: dict[str, int]) -> bool:
    if value in graph.results:
        return True
    return any(value in op.inputs for op in graph.ops.values() if op.name not in position)


def _member(graph: Graph, op: Op, position: dict[str, int]) -> Member:
    inputs = tuple((position[v.op], v.index) for v in op.inputs)
    return Member(op.name, op.type, inputs, op.attrs, graph.types[op.name])
