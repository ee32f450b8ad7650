"""The passes of a job, in one list: those of plugins, some of which settings request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from flow_core.base.errors import GraphError, PluginOrderError, user_line
from flow_core.compiler.distribute.physical_graph import Physical
from flow_core.compiler.host_fallback import HostFallback
from flow_core.compiler.replicas import shared_copies
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.ir.graph import Graph, verify
from flow_core.passes.base import Pass, PassContext, Pipeline
from flow_core.passes.options import configured, options_of
from flow_core.plugins.guards import plugin_code, result_error
from flow_core.plugins.kinds import show
from flow_core.plugins.records import Origin
from flow_core.plugins.specs import PassSpec, load


@dataclass(frozen=True, slots=True)
class ListedPass:
    """An element of the pass list of a job."""

    spec: PassSpec  # as registered
    origin: Origin  # the plugin that registered the pass
    run: Pass | None  # the pass with its options; None if the job does not run it

    def instance(self) -> Any:
        """Return the pass with its options, as its plugin defines it; None if it does not run."""
        return self.run.configured() if isinstance(self.run, _PluginPass) else self.run

    @property
    def requested(self) -> Pass | None:
        """The pass that settings request with its options; None if the pass runs by default."""
        return None if isinstance(self.run, _PluginPass) else self.run

    def options(self) -> dict[str, object]:
        """Return the options of the pass that differ from their defaults, by name."""
        item = self.instance()
        declared = {row.name for row in options_of(item)}
        rows = fields(item) if declared else ()
        values = {f: getattr(item, f.name) for f in rows if f.name in declared}
        return {f.name: value for f, value in values.items() if value != f.default}


def pass_list(request: CompileRequest) -> tuple[ListedPass, ...]:
    """Return all registered passes in execution order, with those that the job runs.

    Raises `PluginOrderError` if the request contains a pass that is not registered.
    """
    registry, requested = request.registry, {item.name: item for item in request.requested}
    if unknown := requested.keys() - {spec.name for spec in registry.passes}:
        raise PluginOrderError(
            f"ordering the passes of job {request.job!r}",
            found=f"a request of {', '.join(sorted(unknown))}, which no plugin registers",
            allowed=", ".join(spec.name for spec in registry.passes) or "no pass is registered",
        )
    if request.may_host:
        fallback = HostFallback(request.job, frozenset(request.hosted), request.layouts)
        requested[fallback.name] = fallback
    found = []
    for spec in registry.passes:
        origin, run = registry.origins["passes", spec.name], requested.get(spec.name)
        if run is not None:
            run = configured(run, request.settings, f"compiling job {request.job!r}")
        elif spec.default:
            run = _PluginPass(spec.name, origin, request, spec)
        found.append(ListedPass(spec, origin, run))
    return tuple(found)


def logical_pipeline(request: CompileRequest) -> tuple[Pipeline, PassContext]:
    """Return the passes on the logical graph, and their context."""
    return _pipeline(request, physical=False), _context(request)


def physical_pipeline(request: CompileRequest, physical: Physical) -> tuple[Pipeline, PassContext]:
    """Return the passes on the physical graph, and their context."""
    context = replace(_context(request), shared_copies=shared_copies(request, physical))
    return _pipeline(request, physical=True), context


def _pipeline(request: CompileRequest, physical: bool) -> Pipeline:
    rows = [row for row in pass_list(request) if (row.spec.stage == "physical") == physical]
    return Pipeline([_Verified(row.run, row.origin, request.job) for row in rows if row.run])


def _context(request: CompileRequest) -> PassContext:
    return PassContext(request.registry.ops, request.registry, request.options.settings)


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
class _Verified:
    """A pass whose result is verified; errors name the pass and the plugin."""

    run: Pass
    origin: Origin  # the plugin that registered the pass
    job: str  # whose graph the pass rewrites

    @property
    def name(self) -> str:
        return self.run.name

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the rewritten graph.

        Raises `PluginResultError` if the pass breaks an invariant of graphs.
        """
        # core's own passes also refuse graphs of users by a GraphError
        own = self.run.apply(graph, context) if self.origin.plugin.startswith("core.") else None
        try:
            result = self.run.apply(graph, context) if own is None else own
            verify(result, graph, context.specs)
        except GraphError as error:
            attempted = f"running pass {self.name!r} on job {self.job!r}, {self.origin}"
            found, allowed = f"{error.attempted}: {error.found}", error.allowed or "a valid graph"
            at = error.at or user_line()
            raise result_error(attempted, self.origin, found, str(allowed), at) from error
        return result


@dataclass(frozen=True, slots=True)
class _PluginPass:
    """A pass of a plugin, with its options, wrapped so that errors name the pass and the plugin."""

    name: str
    origin: Origin  # the plugin that registered the pass
    request: CompileRequest  # the job whose graph the pass rewrites
    spec: PassSpec  # as registered

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the rewritten graph.

        Raises `PluginError` if the pass raises, or does not return a graph.
        """
        attempted = f"running pass {self.name!r} on job {self.request.job!r}, {self.origin}"
        at = user_line()
        with plugin_code(attempted, self.origin, at):
            result = self.configured().apply(graph, context)
        if not isinstance(result, Graph):
            raise result_error(attempted, self.origin, show(result), "a Graph", at)
        return result

    def configured(self) -> Any:
        """Return the plugin's pass with the options that the job's settings set."""
        what = f"pass {self.name!r}, {self.origin}"
        return configured(load(self.spec.load, what)(), self.request.settings, f"loading {what}")
