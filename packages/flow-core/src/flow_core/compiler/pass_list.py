"""The passes of a job: those that its settings request, those of plugins, and the host fallback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flow_core.base.errors import user_line
from flow_core.base.missing_kernels import HOST
from flow_core.compiler.host_fallback import HostFallback
from flow_core.compiler.lower.physical_graph import Physical
from flow_core.compiler.replicas import shared_copies
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.ir.graph import Graph
from flow_core.passes.base import Pass, PassContext, Pipeline
from flow_core.passes.plain_means import MEAN, PlainMeans
from flow_core.plugins.guards import plugin_code, result_error
from flow_core.plugins.kinds import show
from flow_core.plugins.records import Origin
from flow_core.plugins.specs import PassSpec, load


def logical_pipeline(request: CompileRequest) -> tuple[Pipeline, PassContext]:
    """Return the passes on the logical graph, and their context."""
    passes = [*request.requested, *_plugin_passes(request, physical=False), *_plain_means(request)]
    if request.may_host:
        fallback = HostFallback(request.job, frozenset(request.hosted), request.layouts)
        passes.append(fallback)
    registry = request.registry
    context = PassContext(registry.ops, request.pass_options, registry)
    return Pipeline(passes, request.verify_passes), context


def physical_pipeline(request: CompileRequest, physical: Physical) -> tuple[Pipeline, PassContext]:
    """Return the passes on the physical graph, and their context."""
    registry = request.registry
    options = {**request.pass_options, "shared_copies": shared_copies(request, physical)}
    pipeline = Pipeline(_plugin_passes(request, physical=True), request.verify_passes)
    return pipeline, PassContext(registry.ops, options, registry)


def stages(compiled: Compiled) -> Iterator[tuple[str, Graph]]:
    """Replay the passes of a compilation; yield the name of each and the graph after it."""
    request, physical = compiled.request, compiled.physical
    yield "trace", request.graph
    yield from _replay(request.graph, *logical_pipeline(request))
    yield "to_physical", physical.graph
    yield from _replay(physical.graph, *physical_pipeline(request, physical))


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


def _plain_means(request: CompileRequest) -> Iterator[Pass]:
    """Yield the pass for means if there are some on devices that plugins provide."""
    ops = request.graph.ops.values()
    if any(op.type == MEAN and op.placement.device_type != HOST for op in ops):
        yield PlainMeans()


def _plugin_passes(request: CompileRequest, physical: bool) -> list[Pass]:
    registry = request.registry
    return [
        _PluginPass(spec.name, registry.origins["passes", spec.name], request.job, spec)
        for spec in registry.passes
        if spec.default
        and (spec.stage == "physical") == physical
        and spec.name not in request.skipped
    ]
