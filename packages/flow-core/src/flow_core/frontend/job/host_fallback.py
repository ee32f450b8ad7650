"""Host fallback: run ops without a kernel for their devices on the CPUs of the same machines.

If some ops of a job lack kernels and the job's settings allow the fallback, the job is compiled
again with these ops placed on the CPU; boxing transfers their inputs and outputs.  A variable that
such an op overwrites is placed on the CPU, with all ops that overwrite it; ops on other devices
that read the variable receive a copy in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeVar

from flow_core.base.errors import (
    HostFallbackWarning,
    KernelNotFoundError,
    MissingKernel,
    SourceLine,
    VariableError,
    warn,
)
from flow_core.base.missing_kernels import HOST
from flow_core.compiler.reshard.ledger import BoxingEntry
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.frontend.trace.job_build import HostedOp, JobBuild
from flow_core.ir.graph import Graph, Op, Value
from flow_core.ir.rewriter import Rewriter
from flow_core.passes.base import PassContext
from flow_core.plugins.specs import OpSpec

Found = TypeVar("Found")


def fallback_policy(build: JobBuild) -> str:
    """Return whether ops without a kernel run on the CPU: "off" (not), "warn" or "silent".

    The setting of the job applies; without one, that of the session, then the environment variable.
    """
    session = build.session
    by_session = session.resources.others.get("host_fallback", session.settings.host_fallback)
    return str(build.config.get("host_fallback") or by_session)


def compile_with_fallback(build: JobBuild, attempt: Callable[[], Found]) -> Found:
    """Compile a job; if allowed, place ops on the CPU whose devices have no kernel for them.

    Args:
        build: the job; ``hosted`` receives the ops to run on the CPU.
        attempt: compiles the job.

    Raises:
        KernelNotFoundError: kernels are missing, and the fallback is off, or CPUs lack them, too.
    """
    while True:
        try:
            return attempt()
        except KernelNotFoundError as error:
            more = dict(_hosted(error.missing))
            able = all(HOST in missing.elsewhere for missing in error.missing)
            if fallback_policy(build) == "off" or not able or more.keys() <= build.hosted.keys():
                raise
            build.hosted.update(more)


def _hosted(missing: Iterable[MissingKernel]) -> Iterator[tuple[str, HostedOp]]:
    """Yield the names of the logical ops that lack a kernel; for a merged op, its members."""
    for kernel in missing:
        for user in kernel.users:
            members = [(name, line) for type_, name, line in user.members if type_ == kernel.op]
            for name, line in members or [(user.name, user.line)]:
                yield name, HostedOp(kernel.op, kernel.device_type, line)


def announce(build: JobBuild) -> None:
    """Warn once about the ops of a compiled job that run on the CPU, if its settings say so."""
    if not build.hosted or fallback_policy(build) != "warn":
        return
    rows = [
        f"{op.type} {name!r} of device type {op.device_type!r}{_place(op.line)}"
        for name, op in build.hosted.items()
    ]
    lines = [op.line for op in build.hosted.values() if op.line is not None]
    warn(
        f"job {build.name!r} runs {len(rows)} op{'s' * (len(rows) > 1)} without a kernel on the "
        f"CPU, with transfers in each step: {'; '.join(rows)}.  `flow plan` lists the transfers; "
        'function_config.host_fallback("silent") turns this warning off',
        HostFallbackWarning,
        lines[0] if lines else None,
    )


def _place(line: SourceLine | None) -> str:
    return "" if line is None else f" at {line}"


def explained(
    ledger: Iterable[BoxingEntry], build: JobBuild, graph: Graph
) -> Iterator[BoxingEntry]:
    """Yield a ledger's entries; for transfers that the fallback causes, state it as the reason.

    Args:
        ledger: the ledger.
        build: the job.
        graph: the logical graph after its passes.
    """
    readers, values = dict[str, HostedOp](), dict[str, HostedOp]()
    for name, op in graph.ops.items() if build.hosted else ():
        hosted = build.hosted.get(graph.origin(op.name).logical)
        if hosted is not None:
            readers[name] = hosted
            values |= {str(op.output(i)): hosted for i in range(len(graph.types[name]))}
    for entry in ledger:
        hosted = readers.get(entry.op) or values.get(entry.value)
        reason = f"; {hosted.device_type} has no kernel for {hosted.type}" if hosted else ""
        yield replace(entry, why=entry.why + reason)


def fallback_pass(build: JobBuild) -> Iterator[HostFallback]:
    """Yield the pass that places ops of a job on the CPU, if the fallback may apply to the job."""
    if fallback_policy(build) != "off":
        yield HostFallback(build.name, frozenset(build.hosted), dict(build.session.layouts))


@dataclass(frozen=True)
class HostFallback:
    """Place ops on the CPU.

    Attributes:
        job: the name of the job.
        hosted: names of the logical ops that have no kernel.
        held: layouts of the variables that earlier jobs of the session use.
    """

    job: str
    hosted: frozenset[str]
    held: Mapping[str, TensorLayout]
    name: str = "host_fallback"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with the hosted ops, and the variables they overwrite, on the CPU."""
        groups = _groups(graph, context.specs)
        moved = {op.name for op in graph.ops.values() if self._is_hosted(graph, op)}
        while more := {n for g in groups if not moved.isdisjoint(g) for n in g} - moved:
            moved |= more
        rewriter = Rewriter(graph)
        for op in [op for op in graph.ops.values() if op.name in moved]:
            self._check_free(graph, groups, op)
            rewriter.replace(op, replace(op, placement=op.placement.on_host()))
        return rewriter.finish()

    def _is_hosted(self, graph: Graph, op: Op) -> bool:
        held = self.held.get(op.name) if op.type == "variable" else None
        by_fallback = held is not None and held.placement == op.placement.on_host()
        return by_fallback or graph.origin(op.name).logical in self.hosted

    def _check_free(self, graph: Graph, groups: Iterable[Set[str]], variable: Op) -> None:
        """Raise an error for a variable to be moved if an earlier job holds it on its device."""
        held = self.held.get(variable.name) if variable.type == "variable" else None
        if held is None or held.placement.device_type == HOST:
            return
        group = {name for g in groups if variable.name in g for name in g}
        update = next((n for n in graph.ops if n in group and n in self.hosted), variable.name)
        raise VariableError(
            f"holding variable {variable.name!r} of job {self.job!r} on the CPU",
            at=graph.lines.get(update),
            found=f"{graph.ops[update].type} {update!r}, which overwrites it and has no kernel on "
            f"{variable.placement.device_type}, and an earlier job, which holds it on "
            f"{held.placement}",
            allowed="a variable that every job of the session holds in the same place",
            hint=f"compile job {self.job!r} before the others, or add the kernel",
        )


def _groups(graph: Graph, specs: Mapping[str, OpSpec]) -> list[set[str]]:
    """Return, per op that overwrites variables, the op, the variables and the views between."""
    found = []
    for op in graph.ops.values():
        written = [op.inputs[i] for i in specs[op.type].overwrites(op.attrs) if i < len(op.inputs)]
        if written:
            found.append({op.name, *(n for v in written for n in _source(graph, specs, v))})
    return found


def _source(graph: Graph, specs: Mapping[str, OpSpec], value: Value) -> Iterator[str]:
    """Yield the op of a value, and the ops of which it is a view."""
    while True:
        yield value.op
        op = graph.ops[value.op]
        alias = specs[op.type].alias
        if alias is None or alias >= len(op.inputs):
            return
        value = op.inputs[alias]
