"""Compilation of a job for its session: what to try, and what later jobs must respect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from flow_core.base.errors import OutOfMemoryError
from flow_core.base.planning import is_planning
from flow_core.compiler.kept_plans import Entry
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.forms.agreement import Agreement
from flow_core.frontend.job.forms.source import Source
from flow_core.frontend.job.host_fallback import announce, compile_with_fallback
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Value
from flow_core.sharding.topology import Device


def compile_graph(
    build: JobBuild,
    results: Sequence[Value],
    inputs: Sequence[str],
    effects: bool = True,
    devices: Collection[Device] | None = None,
    plan_cache: int = 0,
    retrace: Callable[[int], Source] | None = None,
    agreement: Agreement | None = None,
) -> Compiled:
    """Compile a job, or find its plan on disk; `record` what jobs compiled later must respect.

    If the job does not fit into its devices, the plan is that of its cheapest form that fits.

    Args:
        build, results, inputs, effects, devices: see `compile_request`.
        plan_cache: the maximum size of all plans on disk in bytes, 0 if the job is compiled anyway.
        retrace: traces the job in a number of micro-batches; None if it cannot be traced again.
        agreement: what several processes agree on; None in a single process.

    Raises:
        OutOfMemoryError: no form fits; the error says which forms were searched.
        KernelNotFoundError: kernels are missing, and ops may not run on the CPU instead.
    """

    def request(source: Source) -> CompileRequest:
        return compile_request(source.build, source.values, source.inputs, effects, devices)

    find = partial(_kept_or_compiled, limit=plan_cache)
    source = Source(build, results, inputs)
    try:
        if agreement is not None:
            compiled = agreement.compiled(request(source))
        else:
            compiled = find(request(source))
    except OutOfMemoryError as error:
        from flow_core.frontend.job.forms.search import Steps
        from flow_core.frontend.job.forms.within_memory import cheapest_form

        if agreement is None:
            steps = Steps(retrace, request, find)
        else:
            steps = Steps(retrace, request, agreement.compiled, agreement.form, alone=False)
        speaks = agreement is None or agreement.speaks
        compiled = cheapest_form(source, steps, error, speaks)
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
