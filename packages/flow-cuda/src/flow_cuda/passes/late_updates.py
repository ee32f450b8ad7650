"""Delay updates of variables until the last gradient, so that one launch computes them all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flow_core.authoring.pass_api import PassContext, Rewriter
from flow_core.authoring.specs import Graph, Op, Placement
from flow_core.authoring.update_rules import BY_TYPE, DIFF


@dataclass(frozen=True)
class LateUpdates:
    """The pass that adds control edges from the last gradient to all updates with one update rule.

    As a result, the gradients of all variables are in memory at the same time.
    """

    device: str = "gpu"  # the device type whose updates are delayed
    name: str = "cuda_late_updates"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        rewriter = Rewriter(graph)
        order = rewriter.position
        groups: dict[tuple[str, Placement], list[Op]] = {}
        for op in graph.ops.values():
            if op.type in BY_TYPE and op.placement.device_type == self.device:
                groups.setdefault((op.type, op.placement), []).append(op)
        for group in groups.values():
            last = max((op.inputs[DIFF].op for op in group), key=order.__getitem__)
            for op in group:
                if order[last] < order[op.name] and op.inputs[DIFF].op != last:
                    rewriter.replace(op, replace(op, control=(*op.control, last)))
        return rewriter.finish()
