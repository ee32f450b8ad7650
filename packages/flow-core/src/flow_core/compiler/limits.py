"""The memory that a plan needs, and whether the devices have it."""

from __future__ import annotations

from dataclasses import replace

from flow_core.base.alignment import aligned
from flow_core.base.errors import DeviceUnavailableError
from flow_core.compiler.request import CompileRequest, Held
from flow_core.plan import Plan
from flow_core.sharding.topology import Device


def needed_bytes(plan: Plan, held: Held | None = None) -> dict[Device, int]:
    """Return the bytes of arena and variables that each device of a plan needs.

    Args:
        held: the parts of variables that devices hold, which need no more memory.
    """
    found = {arena.device: arena.nbytes for arena in plan.arenas}
    for name, position in plan.variables.items():
        buffer = plan.buffers[position]
        resident = (held or {}).get(plan.shards[name][0] if name in plan.shards else name, ())
        if buffer.home is None and buffer.device not in resident:
            found[buffer.device] += aligned(buffer.type.nbytes)
    return found


def fits(plan: Plan, request: CompileRequest) -> bool:
    """Return whether a plan keeps the limits of a request; if not, compilation tells the reason."""
    limits, registry = request.limits, request.registry
    needed = needed_bytes(plan, limits.held)
    try:
        for device in needed:
            registry.require_device(device.type, device.index + 1, None)
    except DeviceUnavailableError:
        return False
    for name, (variable, region) in plan.shards.items():
        if name in plan.variables:
            device = plan.buffers[plan.variables[name]].device
            if limits.held.get(variable, {}).get(device) not in (None, region):
                return False
    allowed = {device: limits.memory(device) for device in needed}
    return all(
        device.machine < limits.machines and (most is None or needed[device] <= most)
        for device, most in allowed.items()
    )


def has_faster(plan: Plan, request: CompileRequest) -> bool:
    """Return whether a faster order, which other limits refused, keeps those of a request."""
    arenas = tuple([replace(arena, nbytes=arena.faster) for arena in plan.arenas])
    return any(arena.faster for arena in arenas) and fits(replace(plan, arenas=arenas), request)
