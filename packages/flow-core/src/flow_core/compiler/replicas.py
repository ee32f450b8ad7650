"""Variables of which several devices share one copy in memory.

Devices with shared memory hold one copy of a variable if all of them hold the same part of the
variable and make the same updates.  The first compiled job that updates a variable decides for the
session.  A job that only reads the variable does not share its copies, because a later job might
update them separately, as the mirrored view does with the moving statistics of normalizations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from flow_core.base.errors import DeviceUnavailableError, UnsupportedError
from flow_core.compiler.distribute.physical_graph import Physical
from flow_core.compiler.memory.aliases import alias_roots, overwritten
from flow_core.compiler.memory.replica_dedup import NO_DEDUP, ReplicaDedup, find_sharing
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.ir.graph import Graph
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.sbp import Region
from flow_core.sharding.topology import Device, devices_of

Copies = dict[str, list[list[str]]]
"""For each logical variable, the names of its physical variables, grouped by equal parts."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """What devices share."""

    replicas: ReplicaDedup = NO_DEDUP
    # For each variable with equal parts on several devices, whether these share a copy.
    decided: Mapping[str, bool] = field(default_factory=dict)


def find_shared(request: CompileRequest, graph: Graph, physical: Physical) -> Sharing:
    """Find the tensors and ops that devices share.

    Args:
        graph: the physical graph, after all passes.
        physical: the physical graph before its passes.

    Raises:
        UnsupportedError: the job updates the copies of a variable separately, while an earlier job
            of the session shares one copy.
    """
    copies, updated = _copies(physical), _updated(request, graph, physical)
    sharing, decided = NO_DEDUP, dict[str, bool]()
    if may_share(request, graph):
        wanted = _wanted(request, copies, updated)
        sharing = find_sharing(graph, request.registry.ops, wanted)
    for logical, groups in copies.items():
        shared = groups[0][1] in sharing.shared_variables
        decided[logical] = request.shared.get(logical, shared)
        if decided[logical] and not shared and logical in updated:
            raise _updated_apart(request, logical)
    return Sharing(sharing, decided)


def shared_copies(request: CompileRequest, physical: Physical) -> tuple[tuple[str, ...], ...]:
    """Return the groups of copies of variables of which devices are to share one.

    Device classes describe devices with separate memories.
    """
    graph = physical.graph
    if physical.classes or not may_share(request, graph):
        return ()
    wanted = _wanted(request, _copies(physical), _updated(request, graph, physical))
    return tuple(tuple(names) for groups in wanted for names in groups)


def _wanted(request: CompileRequest, copies: Copies, updated: Set[str]) -> list[list[list[str]]]:
    """Return the groups of copies to share, by the rules in the module's docstring."""
    decided = request.shared
    return [groups for name, groups in copies.items() if decided.get(name, name in updated)]


def may_share(request: CompileRequest, graph: Graph) -> bool:
    """Return whether the devices of a graph may hold one copy of a variable in common memory."""
    if not request.share_replicas:
        return False
    placements = {op.placement for op in graph.ops.values()}
    devices = {p.device(rank) for p in placements for rank in range(p.size)}
    return len(devices) > 1 and shares_memory(request.registry, sorted(devices))


def shares_memory(registry: Registry, devices: Sequence[Device]) -> bool:
    """Return whether all devices belong to this process and read the same memory."""
    types = {device.type for device in devices}
    if not types <= registry.devices.keys():  # `checks` reports it
        return False
    if len({registry.devices[type_].kernels or type_ for type_ in types}) > 1:
        return False
    try:
        return registry.comm_spec(devices).shares_memory
    except DeviceUnavailableError:  # no communicator (comm) connects the devices
        return False


def _copies(physical: Physical) -> Copies:
    """Return the physical variables with equal parts, for each logical variable."""
    found: dict[str, dict[Region, list[str]]] = {}
    for name, shard in physical.shards.items():
        found.setdefault(shard.variable, {}).setdefault(shard.region, []).append(name)
    groups = {
        logical: [names for names in parts.values() if len(names) > 1]
        for logical, parts in found.items()
    }
    return {logical: parts for logical, parts in groups.items() if parts}


def _updated(request: CompileRequest, graph: Graph, physical: Physical) -> set[str]:
    """Return the logical variables that a job overwrites."""
    specs = request.registry.ops
    roots = alias_roots(graph, specs)
    values = (v for op in graph.ops.values() for v in overwritten(op, specs, roots))
    return {physical.shards[v.op].variable for v in values if v.op in physical.shards}


def _updated_apart(request: CompileRequest, logical: str) -> UnsupportedError:
    return UnsupportedError(
        f"compiling job {request.job!r}",
        at=request.graph.lines.get(logical),
        found=f"updates of variable {logical!r} that differ between devices, or are not shared, "
        "while an earlier job has the devices hold it in one memory",
        allowed="jobs of one session that agree on sharing the variable",
        hint="give both jobs function_config.share_replicas(False)",
    )


def updated_variables(
    compiled: Compiled, specs: Mapping[str, OpSpec]
) -> Mapping[str, Collection[Device]]:
    """Return, for each logical variable that a plan overwrites, the devices on which it does.

    A plan of some devices overwrites a variable on all devices that hold it.
    """
    plan, found = compiled.plan, dict[str, set[Device]]()
    for task in plan.tasks:
        for index in specs[task.type].overwrites(task.attrs):
            if index < len(task.inputs):
                buffer = plan.buffers[task.inputs[index]]
                logical = plan.shards[buffer.op][0] if buffer.op in plan.shards else buffer.op
                found.setdefault(logical, set()).add(buffer.memory)
    if plan.classes:
        return {name: devices_of(compiled.variables[name].placement) for name in found}
    return found
