"""Compilation of a job for its session: what to try, and what later jobs must respect."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
) -> Compiled:
    """Compile a job; record in the session the choices that jobs compiled later must respect.

    Args:
        build, results, inputs, effects, select, devices: see `compile_request`.

    Raises:
        OutOfMemoryError: no plan fits; the error names variants of the job that would fit.
        KernelNotFoundError: kernels are missing, and ops may not run on the CPU instead.
    """

    def request(changed: JobBuild) -> CompileRequest:
        return compile_request(changed, results, inputs, effects, select, devices)

    if select is None:
        compiled = compile_within_memory(build, request)
    else:
        compiled = compile_with_fallback(request(build))
    announce(build, compiled.request.hosted)
    for name, layout in compiled.variables.items():
        build.session.layouts.setdefault(name, layout)
    for name, shared in compiled.shared.items():
        build.session.sharing.setdefault(name, shared)
    return compiled
