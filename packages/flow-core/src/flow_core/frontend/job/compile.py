"""Compilation of a differentiated job to a plan: run the passes, select SBP signatures, lower."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from flow_core.compiler.lower.physical_graph import Physical, to_physical
from flow_core.compiler.lower.tasks import lower
from flow_core.compiler.memory.replica_dedup import NO_DEDUP
from flow_core.compiler.reshard.ledger import BoxingEntry, completed
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.reshard.plugin_steps import BoxingMethods
from flow_core.compiler.select import Problem, Selector
from flow_core.frontend.config.function_config import micro_batches
from flow_core.frontend.job.checks.placements import check_placements
from flow_core.frontend.job.compile_settings import lowering_options
from flow_core.frontend.job.host_fallback import announce, compile_with_fallback, explained
from flow_core.frontend.job.memory_fallback import compile_within_memory
from flow_core.frontend.job.pass_pipeline import logical_pipeline, physical_pipeline
from flow_core.frontend.job.replica_sharing import shared_by_devices
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.frontend.trace.job_session import JobSession
from flow_core.ir.graph import Graph, Value, verify
from flow_core.passes.base import PassTiming
from flow_core.passes.gradient_accumulation import micro_inputs
from flow_core.plan import Plan, Transfer
from flow_core.sharding.sbp import B
from flow_core.sharding.topology import Device


@dataclass(slots=True)
class Compiled:
    """The plan of a job, and the graphs of all stages for reports.

    Attributes:
        logical: the graph as traced and differentiated.
        optimized_logical: the logical graph after the passes on it.
        graph: the physical graph after the passes on it.
        plan: the physical plan.
        timings: time taken by each pass and stage.
        physical: the physical graph before the passes on it, with layouts and ledger.
        inputs: names of the ``input`` ops in the order in which arrays are fed to them: all inputs
            of one micro-batch, then those of the next.
    """

    logical: Graph
    optimized_logical: Graph
    graph: Graph
    plan: Plan
    timings: list[PassTiming]
    physical: Physical
    inputs: tuple[str, ...]

    @property
    def layouts(self) -> Mapping[Value, TensorLayout]:
        """Layouts of the logical values; empty for a single device."""
        return self.physical.layouts


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause cyclic garbage collection for a ``with`` block.

    Compilation creates many long-lived objects and hardly any reference cycles; with repeated
    collections, its time would grow faster than the size of the graph.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@gc_paused()
def compile_graph(
    build: JobBuild,
    results: Sequence[Value],
    inputs: Sequence[str],
    effects: bool = True,
    select: Selector | None = None,
    devices: Collection[Device] | None = None,
) -> Compiled:
    """Compile a job to a plan.

    Args:
        build: the job, including its backward pass and updates.
        results: values to fetch at each step.
        inputs: names of the ``input`` ops in the order in which arrays are fed to them.
        effects: whether to keep ops that only have side effects.
        select: the selector of SBP signatures; None for the selector that the job's settings name.
        devices: the devices that the plan has tasks for, in addition to the devices that stand for
            their classes; None for all devices.
    """
    build.builder.results = tuple(results)
    logical = build.builder.build()
    if not effects:
        logical = replace(logical, effects=())
    verify(logical)

    def attempt(changed: JobBuild, memory: float) -> Compiled:
        compile_once = partial(_compile, changed, logical, inputs, select, memory, devices)
        return compile_with_fallback(changed, compile_once)

    found = compile_within_memory(build, attempt) if select is None else attempt(build, 1.0)
    announce(build)
    _keep_layouts(build.session, found.optimized_logical, found.layouts)
    return found


def _compile(
    build: JobBuild,
    logical: Graph,
    inputs: Sequence[str],
    select: Selector | None,
    memory: float,
    devices: Collection[Device] | None,
) -> Compiled:
    """Compile a logical graph; ``memory`` multiplies the price of memory in the cost model."""
    before, context = logical_pipeline(build)
    optimized = before.run(logical, context)
    check_placements(build, optimized)
    physical, distributing = _timed(
        "to_physical",
        len(optimized),
        lambda: _distribute(build, optimized, select, memory, devices),
    )
    after, context = physical_pipeline(build, physical)
    graph = after.run(physical.graph, context)
    parts = micro_batches(build.config, build.kind)
    if parts > 1:
        inputs = micro_inputs(inputs, parts)
    sharing = NO_DEDUP if physical.classes else shared_by_devices(build, graph, physical)
    options = lowering_options(build, physical, sharing)
    plan, lowering = _timed(
        "lower",
        len(graph),
        lambda: lower(graph, build.session.registry, inputs, build.name, options),
    )
    physical.ledger = list(
        explained(completed(physical.ledger, plan, physical.is_part), build, optimized)
    )
    plan = _annotated(plan, physical, parts)
    timings = [*before.timings, distributing, *after.timings, lowering]
    return Compiled(logical, optimized, graph, plan, timings, physical, tuple(inputs))


def _distribute(
    build: JobBuild,
    graph: Graph,
    select: Selector | None,
    memory: float,
    devices: Collection[Device] | None,
) -> Physical:
    """Select SBP signatures and expand the logical graph over its devices."""
    session, seconds = build.session, float(build.config.get("sbp_selector_seconds"))
    fixed = dict(session.layouts)
    problem = Problem(
        graph,
        session.registry.ops,
        fixed=fixed,
        seconds=seconds,
        memory=memory,
        host_numbers=session.registry.host_numbers,
    )
    selector = select or str(build.config.get("sbp_selector"))
    return to_physical(problem, selector, BoxingMethods.of(session.registry), devices)


def _annotated(plan: Plan, physical: Physical, parts: int) -> Plan:
    """Return the plan with records of its shards, micro-batches and ledger."""
    shards = {n: (s.variable, s.region) for n, s in physical.shards.items()}
    ledger = tuple(map(_transfer, physical.ledger))
    return replace(plan, shards=shards, micro_batches=parts, ledger=ledger)


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


T = TypeVar("T", Plan, Physical)


def _timed(name: str, before: int, work: Callable[[], T]) -> tuple[T, PassTiming]:
    started = time.perf_counter()
    result = work()
    after = len(result.tasks) if isinstance(result, Plan) else len(result.graph)
    return result, PassTiming(name, before, after, time.perf_counter() - started)


def _keep_layouts(session: JobSession, graph: Graph, layouts: Mapping[Value, TensorLayout]) -> None:
    """Record the layouts of variables, which jobs that are compiled later must use."""
    for op in graph.of_type("variable"):
        layout = layouts.get(op.output()) or TensorLayout(op.placement, (B,))
        session.layouts.setdefault(op.name, layout)
