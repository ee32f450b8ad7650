"""The pass that places ops without a kernel for their devices on the CPUs of the same machines.

Boxing transfers the inputs and outputs of these ops.  A variable that such an op overwrites is
placed on the CPU, with all ops that overwrite it; ops on other devices that read the variable
receive a copy in each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from flow_core.base.errors import VariableError
from flow_core.compiler.request import HostedOp
from flow_core.compiler.reshard.ledger import BoxingEntry
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.ir.graph import Graph, Op, Value
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.rewriter import Rewriter
from flow_core.plugins.missing_kernels import HOST
from flow_core.plugins.specs import OpSpec


def explained(
    ledger: Iterable[BoxingEntry], hosted: Mapping[str, HostedOp], graph: Graph
) -> Iterator[BoxingEntry]:
    """Yield a ledger's entries; for transfers that the fallback causes, state it as the reason."""
    readers, values = dict[str, HostedOp](), dict[str, HostedOp]()
    for name, op in graph.ops.items() if hosted else ():
        reader = hosted.get(graph.origin(op.name).logical)
        if reader is not None:
            readers[name] = reader
            values |= {str(op.output(i)): reader for i in range(len(graph.types[name]))}
    for entry in ledger:
        reader = readers.get(entry.op) or values.get(entry.value)
        reason = f"; {reader.device_type} has no kernel for {reader.type}" if reader else ""
        yield replace(entry, why=entry.why + reason)


@dataclass(frozen=True)
class HostFallback:
    """Place ops on the CPU."""

    job: str
    hosted: frozenset[str]  # names of the logical ops that have no kernel
    held: Mapping[str, TensorLayout]  # of the variables that earlier jobs use
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
