"""Updates of variables come after the last gradient, so that one launch can do them all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flow_core.ir.graph import Graph, Op, rebuild
from flow_core.ir.update_rules import BY_TYPE, DIFF
from flow_core.sharding.topology import Placement


@dataclass(frozen=True)
class LateUpdates:
    """The pass: control edges from the last gradient of a kind to all updates of it.

    Gradients of all variables then lie in memory at once.

    Attributes:
        device: the device type whose updates wait.
    """

    device: str = "gpu"
    name: str = "cuda_late_updates"

    def apply(self, graph: Graph, context: object) -> Graph:
        """The graph with control edges."""
        order = {name: i for i, name in enumerate(graph.ops)}
        groups: dict[tuple[str, Placement], list[Op]] = {}
        for op in graph.ops.values():
            if op.type in BY_TYPE and op.placement.device_type == self.device:
                groups.setdefault((op.type, op.placement), []).append(op)
        waits: dict[str, str] = {}
        for group in groups.values():
            last = max((op.inputs[DIFF].op for op in group), key=order.__getitem__)
            for op in group:
                if order[last] < order[op.name] and op.inputs[DIFF].op != last:
                    waits[op.name] = last
        if not waits:
            return graph
        ops = [_after(op, waits.get(op.name)) for op in graph.ops.values()]
        return rebuild(graph, ops)


def _after(op: Op, name: str | None) -> Op:
    return op if name is None else replace(op, control=(*op.control, name))
