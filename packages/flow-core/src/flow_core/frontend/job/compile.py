"""Compilation of a job for its session: what to try, and what later jobs must respect."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from flow_core.base.planning import is_planning
from flow_core.compiler.kept_plans import Entry
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.compiler.select import Selector
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.host_fallback import announce, compile_with_fallback
from flow_core.frontend.job.memory_fallback import compile_within_memory
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Value
from flow_core.sharding.topology import Device


def compile_graph(
    build: JobBuild,
    results: Sequence[Value],
    inputs: Sequence[str],
    effects: bool = True,
    select: Selector | None = None,
    devices: Collection[Device] | None = None,
    plan_cache: int = 0,
) -> Compiled:
    """Compile a job, or find its plan on disk; `record` what jobs compiled later must respect.

    Args:
        build, results, inputs, effects, select, devices: see `compile_request`.
        plan_cache: the maximum size of all plans on disk in bytes, 0 if the job is compiled anyway.

    Raises:
        OutOfMemoryError: no plan fits; the error names variants of the job that would fit.
        KernelNotFoundError: kernels are missing, and ops may not run on the CPU instead.
    """

    def request(changed: JobBuild) -> CompileRequest:
        return compile_request(changed, results, inputs, effects, select, devices)

    if select is None:
        find = partial(_kept_or_compiled, limit=plan_cache)
        compiled = compile_within_memory(build, request, find)
    else:
        compiled = compile_with_fallback(request(build))
    record(build, compiled)
    return compiled


def record(build: JobBuild, compiled: Compiled) -> None:
    """Record in the session the choices of a compiled job; warn of its ops that run on the CPU."""
    announce(build, compiled.request.hosted)
    for name, layout in compiled.variables.items():
        build.session.layouts.setdefault(name, layout)
    for name, shared in compiled.shared.items():
        build.session.sharing.setdefault(name, shared)


def _kept_or_compiled(request: CompileRequest, limit: int) -> Compiled:
    """Return a compiled job with the plan kept on disk, or compile it and keep its plan.

    Args:
        request: what to compile.
        limit: the maximum size of all plans on disk, in bytes.
    """
    entry = Entry.of(request, limit)
    found = None if entry is None or is_planning() else entry.find()
    if found is None:
        found = compile_with_fallback(request)
        if entry is not None:
            entry.keep(found)
    return found
