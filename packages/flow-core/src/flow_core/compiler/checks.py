"""Checks of a logical graph against the devices of the program and the layouts of variables."""

from __future__ import annotations

from flow_core.base.errors import JobError
from flow_core.compiler.request import CompileRequest
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.ir.graph import Graph
from flow_core.sharding.topology import Placement


def check_placements(request: CompileRequest, graph: Graph) -> None:
    """Check that a job's devices exist and that its variables can have the SBP it requests.

    Raises:
        JobError: an op is on a machine that is not configured, or the SBP that the job requests for
            a variable conflicts with the layout that an earlier job has chosen.
        DeviceUnavailableError: a device does not exist.
    """
    _require_devices(request, graph)
    _check_variables(request, graph)


def _require_devices(request: CompileRequest, graph: Graph) -> None:
    """Require all devices of a job; check the last one first, so that errors name their number."""
    checked = set[Placement]()
    for name, op in graph.ops.items():
        if op.placement in checked:
            continue
        checked.add(op.placement)
        line = graph.lines.get(name)
        for machine, index in sorted(op.placement.devices, key=lambda d: (-d[0], -d[1])):
            if machine >= request.limits.machines:
                raise JobError(
                    f"placing op {name!r} of job {request.job!r}",
                    at=line,
                    found=f"machine {machine}",
                    allowed=f"machines below {request.limits.machines}",
                )
            request.registry.require_device(op.placement.device_type, index + 1, line)


def _check_variables(request: CompileRequest, graph: Graph) -> None:
    """Check the SBP that a job requests for variables against the parts that devices hold."""
    for op in graph.of_type("variable"):
        if not op.sbp or op.sbp[0] is None:
            continue
        (type_,) = graph.types[op.name]
        parts = request.limits.held.get(op.name, {})
        requested = TensorLayout(op.placement, op.sbp[0])
        for rank in range(op.placement.size):
            held = parts.get(op.placement.device(rank))
            if held not in (None, requested.region(type_.shape, rank)):
                raise JobError(
                    f"laying out variable {op.name!r} in job {request.job!r}",
                    at=graph.lines.get(op.name),
                    found=f"a request for {requested}",
                    allowed=f"{request.layouts.get(op.name, 'parts')} that an earlier job of "
                    "the session has allocated",
                    hint="request the same distribution in both jobs, or drop the later request",
                )
