"""Jobs on other devices than those that the program names."""

from __future__ import annotations

import copy
from dataclasses import replace

from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import GraphBuilder, Op
from flow_core.sharding.topology import Placement

Numbers = tuple[int, int]
"""The numbers of a machine and of a device on it."""


def moved(build: JobBuild, count: int) -> JobBuild:
    """Return a copy of a job that runs on the first devices of machine 0.

    An op on all devices of the job runs on all of the new ones; the stages of a pipeline are
    divided among them in order.  SBP hints for one dimension are kept.
    """
    graph = build.builder.build()
    old = sorted({numbers for op in graph.ops.values() for numbers in op.placement.devices})
    place = {numbers: i * count // len(old) for i, numbers in enumerate(old)}

    def change(op: Op) -> Op:
        before = op.placement
        if len(before.devices) == len(old):
            devices = [*range(count)]
        else:
            devices = sorted({place[numbers] for numbers in before.devices})
        after = Placement(before.device_type, tuple((0, index) for index in devices))
        keeps = after.size > 1 and before.size > 1 and len(before.hierarchy) == 1
        return replace(op, placement=after, sbp=op.sbp if keeps else ())

    changed = copy.copy(build)
    ops = {name: change(op) for name, op in graph.ops.items()}
    changed.builder = GraphBuilder(replace(graph, ops=ops))
    return changed


def device_count(build: JobBuild) -> int:
    """Return the number of devices on which a job runs; a GPU and its host count as one."""
    ops = build.builder.ops.values()
    return len({numbers for op in ops for numbers in op.placement.devices})
