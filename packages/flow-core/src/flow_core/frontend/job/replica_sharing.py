"""Variables of which several devices share one copy in memory.

Devices with shared memory hold one copy of a variable if all of them hold the same part of the
variable and make the same updates.  The first compiled job that updates a variable decides for the
session.  A job that only reads the variable does not share its copies, because a later job might
update them separately, as the mirrored view does with the moving statistics of normalizations.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from flow_core.base.errors import UnsupportedError
from flow_core.compiler.lower.physical_graph import Physical
from flow_core.compiler.memory.aliases import alias_roots, overwritten
from flow_core.compiler.memory.replica_dedup import NO_DEDUP, ReplicaDedup, find_sharing
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Graph, Op
from flow_core.plan import Plan
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.sbp import Region
from flow_core.sharding.topology import Device

Copies = dict[str, list[list[str]]]
"""For each logical variable, the names of its physical variables, grouped by equal parts."""


def shared_by_devices(build: JobBuild, graph: Graph, physical: Physical) -> ReplicaDedup:
    """Find the tensors and ops that devices share; record shared variables in the session.

    Args:
        build: the job.
        graph: the physical graph, after all passes.
        physical: the physical graph before its passes.

    Raises:
        UnsupportedError: the job updates the copies of a variable separately, while an earlier job
            of the session shares one copy.
    """
    session, copies = build.session, _copies(physical)
    sharing, updated = NO_DEDUP, _updated(build, graph, physical)
    if _may_share(build, graph):
        wanted = _wanted(build, copies, updated)
        sharing = find_sharing(graph, session.registry.ops, wanted)
    for logical, groups in copies.items():
        shared = groups[0][1] in sharing.shared_variables
        if session.sharing.setdefault(logical, shared) and not shared and logical in updated:
            raise _updated_apart(build, logical)
    return sharing


def shared_copies(build: JobBuild, physical: Physical) -> tuple[tuple[str, ...], ...]:
    """Return the groups of copies of variables of which devices are to share one.

    Device classes describe devices with separate memories.
    """
    graph = physical.graph
    if physical.classes or not _may_share(build, graph):
        return ()
    wanted = _wanted(build, _copies(physical), _updated(build, graph, physical))
    return tuple(tuple(names) for groups in wanted for names in groups)


def _wanted(build: JobBuild, copies: Copies, updated: Set[str]) -> list[list[list[str]]]:
    """Return the groups of copies to share, by the rules in the module's docstring."""
    decided = build.session.sharing
    return [groups for name, groups in copies.items() if decided.get(name, name in updated)]


def _may_share(build: JobBuild, graph: Graph) -> bool:
    devices = {d for op in graph.ops.values() for d in map(op.placement.device, _ranks(op))}
    is_limited = build.session.settings.emulate_gpu_memory is not None
    is_enabled = bool(build.config.get("share_replicas")) and not is_limited
    return is_enabled and len(devices) > 1 and build.session.shares_memory(sorted(devices))


def _ranks(op: Op) -> range:
    return range(op.placement.size)


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


def _updated(build: JobBuild, graph: Graph, physical: Physical) -> set[str]:
    """Return the logical variables that a job overwrites."""
    specs = build.session.registry.ops
    roots = alias_roots(graph, specs)
    values = (v for op in graph.ops.values() for v in overwritten(op, specs, roots))
    return {physical.shards[v.op].variable for v in values if v.op in physical.shards}


def _updated_apart(build: JobBuild, logical: str) -> UnsupportedError:
    info = build.session.declared[logical]
    return UnsupportedError(
        f"compiling job {build.name!r}",
        at=info.line,
        found=f"updates of variable {logical!r} that differ between devices, or are not shared, "
        "while an earlier job has the devices hold it in one memory",
        allowed="jobs of one session that agree on sharing the variable",
        hint="give both jobs function_config.share_replicas(False)",
    )


def updated_variables(plan: Plan, specs: Mapping[str, OpSpec]) -> dict[str, set[Device]]:
    """Return, for each logical variable that a plan overwrites, the devices on which it does."""
    found: dict[str, set[Device]] = {}
    for task in plan.tasks:
        for index in specs[task.type].overwrites(task.attrs):
            if index < len(task.inputs):
                buffer = plan.buffers[task.inputs[index]]
                logical = plan.shards[buffer.op][0] if buffer.op in plan.shards else buffer.op
                found.setdefault(logical, set()).add(buffer.memory)
    return found
