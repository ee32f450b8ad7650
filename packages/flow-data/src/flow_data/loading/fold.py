"""Fold the readers of a device, and the host ops that depend only on these, into one loader op."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from flow_core.authoring.backends import BOXING
from flow_core.authoring.pass_api import Rewriter
from flow_core.authoring.specs import Attrs, Graph, Op, Placement, Value
from flow_data.loading.body import LOCAL_COPIES, Member, encode
from flow_data.loading.source import READERS


@dataclass(frozen=True)
class FoldLoaders:
    """The pass that creates one ``data_loader`` per device that has a reader."""

    name: str = "fold_loaders"

    def apply(self, graph: Graph, context: Any) -> Graph:
        """Return the graph with loaders in place of the ops that the loaders run."""
        if not any(op.type in READERS for op in graph.ops.values()):
            return graph
        rewriter = Rewriter(graph)
        for ops in _groups(rewriter, context.specs).values():
            _replace(rewriter, list(ops.values()))
        return rewriter.finish()


def _groups(rewriter: Rewriter, specs: Any) -> dict[Placement, dict[str, Op]]:
    """Return, for each device, the ops that depend only on readers and host ops of the device."""
    found: dict[Placement, dict[str, Op]] = {}
    for op in rewriter.graph.ops.values():
        own = found.setdefault(op.placement, {})
        inside = all(v.op in own for v in op.inputs) and not op.control
        host = specs[op.type].host or is_local(op)
        if op.placement.device_type == "cpu" and inside and host:
            own[op.name] = op
    groups = {place: _useful(rewriter, ops, specs) for place, ops in found.items()}
    return {
        place: ops for place, ops in groups.items() if any(o.type in READERS for o in ops.values())
    }


def is_local(op: Op) -> bool:
    """Whether an op copies a value, or a part of it, within its device for another op."""
    return op.type == BOXING and op.placement.size == 1 and op.attrs["collective"] in LOCAL_COPIES


def _useful(rewriter: Rewriter, ops: dict[str, Op], specs: Any) -> dict[str, Op]:
    """Return the group without the copies that ops outside of the group read."""
    kept = dict(ops)
    for op in reversed(ops.values()):
        outside = any(r.name not in kept for r in rewriter.readers(op.output()))
        fetched = rewriter.is_result(op.output())
        if not specs[op.type].host and (outside or fetched):
            del kept[op.name]
    return kept


def _replace(rewriter: Rewriter, ops: list[Op]) -> None:
    """Put a loader op in the place of a group."""
    graph = rewriter.graph
    position = {op.name: i for i, op in enumerate(ops)}
    outputs = [
        value
        for op in ops
        for k in range(len(graph.types[op.name]))
        if _crosses(rewriter, value := Value(op.name, k), position)
    ]
    members = [_member(graph, op, position) for op in ops]
    reader = next(op for op in ops if op.type in READERS)
    places = tuple((position[v.op], v.index) for v in outputs)
    attrs = {"body": encode(members), "outputs": places}
    loader = Op(reader.name, "data_loader", (), Attrs(attrs), reader.placement)
    for op in ops:
        if op is not reader:
            rewriter.drop(op, reader.name)
    rewriter.replace(reader, loader, tuple(map(graph.type_of, outputs)))
    rewriter.before(ops[0]).move(loader)
    for index, value in enumerate(outputs):
        rewriter.replace_value(value, loader.output(index))


def _crosses(rewriter: Rewriter, value: Value, members: Collection[str]) -> bool:
    """Whether the job returns a value of a group, or ops outside of the group read the value."""
    readers = rewriter.readers(value)
    return rewriter.is_result(value) or any(op.name not in members for op in readers)


def _member(graph: Graph, op: Op, position: dict[str, int]) -> Member:
    inputs = tuple((position[v.op], v.index) for v in op.inputs)
    logical = str(graph.origin(op.name).unsharded)
    return Member(op.name, logical, op.type, inputs, op.attrs, graph.types[op.name])
