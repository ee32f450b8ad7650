"""The passes of a job: first the passes that its settings request, then those of plugins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flow_core.base.errors import user_line
from flow_core.compiler.lower.physical_graph import Physical
from flow_core.frontend.config.function_config import (
    MIXED,
    indexed_tables,
    micro_batches,
    optimizer_placement,
)
from flow_core.frontend.job.compile_settings import (
    half_type_of,
    pass_options,
    physical_pass_options,
)
from flow_core.frontend.job.host_fallback import fallback_pass
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.frontend.trace.job_session import SessionJob
from flow_core.ir.graph import Graph
from flow_core.passes.base import Pass, PassContext, Pipeline
from flow_core.passes.checkpointing import Checkpointing
from flow_core.passes.gradient_accumulation import GradientAccumulation
from flow_core.passes.indexed_slices import IndexedSlices
from flow_core.passes.mixed_precision import MixedPrecision
from flow_core.passes.optimizer_placement import Owned, SharedPlacement, owners
from flow_core.passes.split_norms import SplitNorms, takes_apart
from flow_core.plugins.guards import plugin_code, result_error
from flow_core.plugins.kinds import show
from flow_core.plugins.records import Origin
from flow_core.plugins.specs import PassSpec, load

GROUPS = "fuse_elementwise"
"""Name of the pass that fuses elementwise ops."""


def logical_pipeline(build: JobBuild) -> tuple[Pipeline, PassContext]:
    """Return the passes on the logical graph, and their context."""
    plugins = _plugin_passes(build, physical=False)
    passes = [*_requested_passes(build), *plugins, *fallback_pass(build)]
    registry = build.session.registry
    context = PassContext(registry.ops, pass_options(build), registry)
    return Pipeline(passes, build.session.settings.verify_passes), context


def physical_pipeline(build: JobBuild, physical: Physical) -> tuple[Pipeline, PassContext]:
    """Return the passes on the physical graph, and their context."""
    passes = _plugin_passes(build, physical=True)
    registry = build.session.registry
    context = PassContext(registry.ops, physical_pass_options(build, physical), registry)
    return Pipeline(passes, build.session.settings.verify_passes), context


def stages(build: JobBuild, logical: Graph, physical: Physical) -> Iterator[tuple[str, Graph]]:
    """Replay the passes of a compilation; yield the name of each and the graph after it."""
    yield "trace", logical
    yield from _replay(logical, *logical_pipeline(build))
    yield "to_physical", physical.graph
    yield from _replay(physical.graph, *physical_pipeline(build, physical))


def _replay(graph: Graph, pipeline: Pipeline, context: PassContext) -> Iterator[tuple[str, Graph]]:
    for item in pipeline.passes:
        graph = item.apply(graph, context)
        yield item.name, graph


@dataclass(frozen=True, slots=True)
class _PluginPass:
    """A pass of a plugin, wrapped so that errors name the pass and the plugin.

    Attributes:
        name: name of the pass.
        origin: the plugin that registered the pass.
        job: name of the job whose graph the pass rewrites.
        spec: the pass as registered.
    """

    name: str
    origin: Origin
    job: str
    spec: PassSpec

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the rewritten graph.

        Raises:
            PluginError: the pass raises, or does not return a graph.
        """
        attempted = f"running pass {self.name!r} on job {self.job!r}, {self.origin}"
        at = user_line()
        with plugin_code(attempted, self.origin, at):
            found = load(self.spec.load, f"pass {self.name!r}, {self.origin}")()
            result = found.apply(graph, context)
        if not isinstance(result, Graph):
            raise result_error(attempted, self.origin, show(result), "a Graph", at)
        return result


def _plugin_passes(build: JobBuild, physical: bool) -> list[Pass]:
    """Return the passes of plugins; checks of numbers need the ops of fused groups one by one."""
    registry = build.session.registry
    skipped = {GROUPS} if build.session.settings.check_finite != "off" else set()
    return [
        _PluginPass(spec.name, registry.origins["passes", spec.name], build.name, spec)
        for spec in registry.passes
        if spec.default and (spec.stage == "physical") == physical and spec.name not in skipped
    ]


def _requested_passes(build: JobBuild) -> Iterator[Pass]:
    """Yield the passes that a job's own settings request, with their options."""
    if build.config.get(MIXED):
        made = frozenset(build.builder.ops) - build.forward if build.forward else frozenset()
        yield MixedPrecision(half_type_of(build), made)
    if build.segments and build.forward:
        yield Checkpointing(tuple(map(tuple, build.segments.values())), build.forward)
    tables = indexed_tables(build.config)
    if tables:
        yield IndexedSlices(tables)
    parts = micro_batches(build.config, build.kind)
    if parts > 1:
        yield GradientAccumulation(parts, tuple(build.gradient_sums))
    placed = optimizer_placement(build.config) if build.kind == "train" else None
    if placed is not None:
        yield placed
    shared = _owners_in_other_jobs(build, compiles=placed is None)
    if shared:
        yield SharedPlacement(shared)
    if any(map(takes_apart, build.builder.ops.values())):
        yield SplitNorms({name: layout.sbp for name, layout in build.session.layouts.items()})


def _owners_in_other_jobs(build: JobBuild, compiles: bool) -> dict[str, Owned]:
    """Return the variables that other jobs of the session shard over devices, and their owners.

    Args:
        build: the job, which must follow the sharding of train jobs that share its variables.
        compiles: whether to compile those train jobs first, if that has not been done.
    """

    def optimized(job: SessionJob) -> Graph | None:
        if job.name == build.name or job.kind != "train" or not optimizer_placement(job.config):
            return None
        if compiles:
            job.compile()
        return job.optimized_logical

    found: dict[str, Owned] = {}
    for graph in build.session.each(optimized):
        if graph is not None:
            found.update(owners(graph))
    return found
