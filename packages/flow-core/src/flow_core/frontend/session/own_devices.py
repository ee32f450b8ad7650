"""The devices of a job that a process of several compiles: its own, or all.

A process compiles the tasks of its own devices and of one device of each class
(`JobFunction.compile_classes`), and the others compile theirs.  All processes decide alike.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flow_core.frontend.session.session import Session
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.sharding.topology import Device, devices_of


@dataclass(frozen=True, slots=True)
class OwnDevices:
    """What a process compiles."""

    # The devices of this process, also CPUs on which its ops may run; None for all devices of the
    # job.
    devices: Collection[Device] | None
    reason: str = ""  # why all devices are compiled


def own_devices(session: Session, build: JobBuild) -> OwnDevices:
    """Return the devices of a traced job that this process compiles."""
    world, registry = session.world, session.registry
    if world is None:
        return OwnDevices(None, "one process has all devices")
    settings = session.settings
    observed = {
        "FLOW_TRACE": settings.trace,
        "FLOW_STRAGGLERS": settings.stragglers,
        "FLOW_CHECK_FINITE": settings.check_finite != "off",
    }
    for name, asked in observed.items():
        if asked:
            return OwnDevices(None, f"{name} observes the tasks of all devices")
    ops = build.builder.ops.values()
    if any(registry.ops[op.type].is_per_device(op.placement) for op in ops):
        return OwnDevices(None, "the mirrored view has values of single devices")
    placements = {op.placement for op in ops}
    devices: set[Device] = set().union(*map(devices_of, placements))
    owners = {device: world.owner(device) for device in devices}
    if len(set(owners.values())) < 2:
        return OwnDevices(None, "one process has all devices of the job")
    comm = registry.comm_spec(sorted(devices))
    if not comm.binds_parts:
        return OwnDevices(None, f"comm {comm.name!r} binds plans of all devices only")
    own = [device for device, rank in owners.items() if rank == world.rank]
    return OwnDevices(sorted({d._replace(type=t) for d in own for t in (d.type, "cpu")}))
