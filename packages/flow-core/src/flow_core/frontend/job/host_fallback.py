"""Host fallback: run ops without a kernel for their devices on the CPUs of the same machines.

If some ops of a job lack kernels and the job's settings allow the fallback, the job is compiled
again with these ops placed on the CPU (`flow_core.compiler.host_fallback`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from flow_core.base.errors import (
    HostFallbackWarning,
    KernelNotFoundError,
    MissingKernel,
    SourceLine,
    warn,
)
from flow_core.compiler.compile import compile_plan
from flow_core.compiler.request import Compiled, CompileRequest, HostedOp
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.plugins.missing_kernels import HOST


def fallback_policy(build: JobBuild, device_type: str) -> str:
    """Return whether ops without a kernel run on the CPU: "off" (not), "warn" or "silent".

    The setting of the job applies; without one, that of the session, then the environment variable,
    then what the device type declares.
    """
    session = build.session
    by_session = session.resources.others.get("host_fallback", session.settings.host_fallback)
    found = build.config.get("host_fallback") or by_session
    return str(found or session.registry.devices[device_type].host_fallback)


def hosting_types(build: JobBuild) -> frozenset[str]:
    """Return the device types of a job whose ops run on the CPU if they have no kernel for them."""
    types = {op.placement.device_type for op in build.builder.ops.values()}
    known = types & build.session.registry.devices.keys()
    return frozenset(type_ for type_ in known if fallback_policy(build, type_) != "off")


def compile_with_fallback(request: CompileRequest) -> Compiled:
    """Compile a job; if allowed, place ops on the CPU whose devices have no kernel for them.

    Raises:
        KernelNotFoundError: kernels are missing, and the fallback is off, or CPUs lack them, too.
    """
    while True:
        try:
            return compile_plan(request)
        except KernelNotFoundError as error:
            more = dict(_hosted(error.missing))
            able = all(
                HOST in missing.elsewhere and missing.device_type in request.may_host
                for missing in error.missing
            )
            if not able or more.keys() <= request.hosted.keys():
                raise
            request = replace(request, hosted={**request.hosted, **more})


def _hosted(missing: Iterable[MissingKernel]) -> Iterator[tuple[str, HostedOp]]:
    """Yield the names of the logical ops that lack a kernel; for a merged op, its members."""
    for kernel in missing:
        for user in kernel.users:
            members = [(name, line) for type_, name, line in user.members if type_ == kernel.op]
            for name, line in members or [(user.name, user.line)]:
                yield name, HostedOp(kernel.op, kernel.device_type, line)


def announce(build: JobBuild, hosted: Mapping[str, HostedOp]) -> None:
    """Warn about the ops of a compiled job that run on the CPU, if its settings say so."""
    told = {n: op for n, op in hosted.items() if fallback_policy(build, op.device_type) == "warn"}
    if not told:
        return
    rows = [
        f"{op.type} {name!r} of device type {op.device_type!r}{_place(op.line)}"
        for name, op in told.items()
    ]
    lines = [op.line for op in told.values() if op.line is not None]
    warn(
        f"job {build.name!r} runs {len(rows)} op{'s' * (len(rows) > 1)} without a kernel on the "
        f"CPU, with transfers in each step: {'; '.join(rows)}.  `flow plan` lists the transfers; "
        'function_config.host_fallback("silent") turns this warning off',
        HostFallbackWarning,
        lines[0] if lines else None,
    )


def _place(line: SourceLine | None) -> str:
    return "" if line is None else f" at {line}"
