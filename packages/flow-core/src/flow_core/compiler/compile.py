"""Compilation of a logical graph to a plan: run the passes, select SBP signatures, lower.

Nothing but the request is read, and nothing is changed: equal requests give equal plans.  What to
try if a job does not fit, or lacks kernels, is the caller's decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from flow_core.base.garbage import gc_paused
from flow_core.compiler.checks import check_placements
from flow_core.compiler.distribute.physical_graph import Physical, local_origins, to_physical
from flow_core.compiler.host_fallback import explained
from flow_core.compiler.lower.tasks import lower
from flow_core.compiler.pass_list import logical_pipeline, physical_pipeline
from flow_core.compiler.replicas import Sharing, find_shared
from flow_core.compiler.request import Compiled, CompileRequest, Stages
from flow_core.compiler.reshard.ledger import BoxingEntry, completed
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.reshard.plugin_steps import BoxingMethods
from flow_core.compiler.select import Problem
from flow_core.compiler.stage_cache import StageCache
from flow_core.ir.graph import Graph, Value, verify
from flow_core.passes.base import PassTiming
from flow_core.passes.gradient_accumulation import micro_inputs
from flow_core.passes.optimizer_placement import owners
from flow_core.plan import Plan, Transfer
from flow_core.sharding.sbp import B, Region


@gc_paused()
def compile_plan(request: CompileRequest) -> Compiled:
    """Compile the logical graph of a job to its plan.

    Raises:
        KernelNotFoundError: a device type has no kernel for an op.
        OutOfMemoryError: the plan does not fit into the memory of a device.
        JobError: the graph does not fit the devices, or the layouts of earlier jobs.
        FlowError: other errors of passes, rules and kernels.
    """
    cache = request.cache or StageCache()
    key = _graph_key(request, request.graph)
    optimized, passes = cache.optimized.get(key, lambda: _optimized(request))
    check_placements(request, optimized)
    physical, distributing = _timed(
        "to_physical", len(optimized), lambda: _distribute(request, optimized, cache)
    )
    if physical.problem is not None:  # its devices may have become a grid
        optimized = physical.problem.graph
    inputs, parts = request.inputs, request.micro_batches
    if parts > 1:
        inputs = tuple(micro_inputs(inputs, parts))
    if physical.classes:
        key = (*_graph_key(request, physical.graph), request.options, request.limits, inputs)
        key = (*key, physical.shards, physical.classes)
        found = cache.lowered.get(key, lambda: _lowered(request, physical, inputs))
    else:
        found = _lowered(request, physical, inputs)
    plan, graph = found.plan, found.graph
    ledger = completed(physical.ledger, plan, physical.is_part)
    physical = replace(physical, ledger=list(explained(ledger, request.hosted, optimized)))
    timings = (*passes, distributing, *found.timings)
    stages = Stages(optimized, graph, timings, physical)
    return Compiled(
        request=request,
        plan=_annotated(plan, physical, parts, _regions(request, optimized, physical), inputs),
        inputs=inputs,
        variables=_variables(optimized, physical.layouts),
        shared=found.sharing.decided,
        owners=owners(optimized),
        stages=lambda: stages,
    )


def _graph_key(request: CompileRequest, graph: Graph) -> tuple[object, ...]:
    """Return everything that the result of the passes on a graph depends on."""
    return (
        id(request.registry), graph, graph.lines, graph.origins, graph.merged, request.job,
        request.requested, request.settings, request.layouts, request.may_host, request.hosted,
        request.options.settings,
    )  # fmt: skip


def _optimized(request: CompileRequest) -> tuple[Graph, Sequence[PassTiming]]:
    """Return the logical graph after the passes on it, with their statistics."""
    verify(request.graph)
    passes, context = logical_pipeline(request)
    return passes.run(request.graph, context), passes.timings


def _distribute(request: CompileRequest, graph: Graph, cache: StageCache) -> Physical:
    """Select SBP signatures and expand the logical graph over its devices."""
    registry = request.registry
    problem = Problem(
        graph,
        registry.ops,
        request.options.costs,
        fixed=dict(request.layouts),
        seconds=request.selector_seconds,
        memory=request.memory_price,
        host_numbers=registry.host_numbers,
        cache=cache,
    )
    methods = BoxingMethods.of(registry)
    found = to_physical(problem, request.selector, methods, request.devices)
    if found.problem is not None:  # results of other problems are not part of this one's
        found.problem = replace(found.problem, cache=None)
    return found


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A physical graph after the passes on it, and its plan."""

    graph: Graph
    plan: Plan
    sharing: Sharing
    timings: tuple[PassTiming, ...]


def _lowered(request: CompileRequest, physical: Physical, inputs: Sequence[str]) -> _Lowered:
    """Run the passes on the physical graph, and lower it to a plan."""
    after, context = physical_pipeline(request, physical)
    graph = after.run(physical.graph, context)
    sharing = Sharing() if physical.classes else find_shared(request, graph, physical)
    options = replace(
        request.options,
        memory_limit=request.limits.memory,
        is_resident=_residency(request, physical),
        sharing=sharing.replicas,
        classes={devices[0]: len(devices) for devices in physical.classes},
    )
    plan, lowering = _timed(
        "lower", len(graph), lambda: lower(graph, request.registry, inputs, request.job, options)
    )
    return _Lowered(graph, plan, sharing, (*after.timings, lowering))


def _residency(request: CompileRequest, physical: Physical) -> Callable[..., bool]:
    """Return whether a physical variable already has memory on a device."""
    held, shards = request.limits.held, physical.shards

    def is_resident(name: str, device: object) -> bool:
        shard = shards.get(name)
        return device in held.get(name if shard is None else shard.variable, ())

    return is_resident


def _regions(request: CompileRequest, graph: Graph, physical: Physical) -> dict[str, Region]:
    """Return the regions of the parts of logical values, if checks of numbers need them."""
    if request.settings.get("check_finite", "off") == "off":
        return {}
    found: dict[str, Region] = {}
    for value, layout in physical.layouts.items():
        shape = graph.type_of(value).shape
        for rank, part in enumerate(local_origins(graph, value.op, layout.placement)):
            found[f"{part}:{value.index}"] = layout.region(shape, rank)
    return found


def _annotated(
    plan: Plan, physical: Physical, parts: int, regions: Mapping[str, Region], inputs: Sequence[str]
) -> Plan:
    """Return the plan with records of its shards, regions, micro-batches, ledger and classes."""
    shards = {n: (s.variable, s.region) for n, s in physical.shards.items()}
    ledger = tuple(map(_transfer, physical.ledger))
    plan = replace(plan, shards=shards, regions=regions, micro_batches=parts, ledger=ledger)
    if not physical.classes or physical.problem is None:
        return plan
    types = physical.problem.graph.types
    shapes = tuple([types[name][0].shape if name in types else () for name in inputs])
    classes = {str(devices[0]): len(devices) for devices in physical.classes}
    return replace(plan, classes=classes, fed_shapes=shapes)


def _transfer(entry: BoxingEntry) -> Transfer:
    """Return the plan's record of a ledger entry: bytes per step, 0 for boxing that runs once."""
    links = {} if entry.once else {f"{a}->{b}": n for a, b, n in entry.links}
    return Transfer(
        value=entry.value,
        steps=(entry.hop,),
        source=entry.source,
        target=entry.target,
        nbytes=0 if entry.once else entry.sent,
        seconds=entry.seconds,
        line=entry.line,
        links=links,
        why=entry.why + ("; once, when the plan is loaded" if entry.once else ""),
        alternatives=tuple(dict.fromkeys(map(str, entry.runners_up))),
    )


def _variables(graph: Graph, layouts: Mapping[Value, TensorLayout]) -> dict[str, TensorLayout]:
    return {
        op.name: layouts.get(op.output()) or TensorLayout(op.placement, (B,))
        for op in graph.of_type("variable")
    }


T = TypeVar("T", Plan, Physical)


def _timed(name: str, before: int, work: Callable[[], T]) -> tuple[T, PassTiming]:
    started = time.perf_counter()
    result = work()
    after = len(result.tasks) if isinstance(result, Plan) else len(result.graph)
    return result, PassTiming(name, before, after, time.perf_counter() - started)
