"""The order in which ops run.

Ops that read a variable read its value at the start of the step: an op that overwrites the variable
runs after all readers of the variable and of its aliases.  The overwriting op runs as early as this
rule allows, which shortens the live ranges of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping

from flow_core.base.errors import GraphError
from flow_core.comm.exchange import BOXING
from flow_core.compiler.memory.aliases import alias_roots, overwritten
from flow_core.compiler.memory.replica_dedup import NO_DEDUP, ReplicaDedup
from flow_core.ir.graph import Graph, Op, Value
from flow_core.ir.order import topological_order
from flow_core.plugins.specs import OpSpec

TINY = 16
"""The number of elements up to which a result is computed as early as possible."""


def schedule(graph: Graph, specs: Mapping[str, OpSpec]) -> list[Op]:
    """Order the ops of one stream: in graph order, but updates right after the ops they wait for.

    Raises `GraphError` if an op depends on itself.
    """
    before, rank = constraints(graph, specs)
    order, blocked = topological_order(before, rank)
    if blocked:
        raise circular(graph, blocked[0])
    return [graph.ops[name] for name in order]


def circular(graph: Graph, op: str) -> GraphError:
    """Return the error for an op that depends on itself."""
    return GraphError(
        "ordering the ops of a job",
        at=graph.lines.get(op),
        found=f"op {op!r} must run before and after itself",
        hint="change the job so that no op which reads a variable depends on the variable's update",
    )


def constraints(
    graph: Graph, specs: Mapping[str, OpSpec], sharing: ReplicaDedup = NO_DEDUP
) -> tuple[dict[str, set[str]], dict[str, float]]:
    """Return the predecessors of each op, and the rank by which the next ready op is chosen."""
    before = _predecessors(graph, specs, sharing)
    return before, _ranks(graph, before, specs)


def _predecessors(
    graph: Graph, specs: Mapping[str, OpSpec], sharing: ReplicaDedup
) -> dict[str, set[str]]:
    before = {
        name: {v.op for v in sharing.reads(graph, op)} | set(op.control)
        for name, op in graph.ops.items()
    }
    for name, executed in (*sharing.merged.items(), *sharing.accumulated.items()):
        before[name].add(executed)
    for parts in sharing.adjacent.values():
        for value in parts[1:]:
            before[value.op].add(parts[0].op)
    roots = alias_roots(graph, specs, sharing)
    running = [op for op in graph.ops.values() if op.name not in sharing.merged]
    readers: dict[Value, set[str]] = {}
    for op in running:
        for value in sharing.reads(graph, op):
            readers.setdefault(roots.get(value, value), set()).add(op.name)
    # An update overwrites its variable for good, so ops that read the old value run before it.  Of
    # two ops that overwrite the same value, neither counts as a reader, or each would wait.
    last_writer: dict[Value, str] = {}
    for op in running:
        for target in overwritten(op, specs, roots):
            others = readers[target] - {op.name}
            before[op.name] |= {
                o for o in others if target not in overwritten(graph.ops[o], specs, roots)
            }
            # ops that overwrite the same value keep their graph order
            if target in last_writer:
                before[op.name].add(last_writer[target])
            last_writer[target] = op.name
    return before


def _ranks(
    graph: Graph, before: Mapping[str, set[str]], specs: Mapping[str, OpSpec]
) -> dict[str, float]:
    """Rank ops by graph position, but updates and tiny results just after their last predecessor.

    Tiny results, such as the learning rate, use almost no memory.  Such results, exchanges of
    gradients and the states of optimizers would delay updates if they kept their late positions in
    the graph.
    """
    readers = graph.consumers()
    rank: dict[str, float] = {
        name: -1.0 if op.type == "variable" else float(i)
        for i, (name, op) in enumerate(graph.ops.items())
    }
    step = 0.5 / (len(rank) + 1)
    for i, (name, op) in enumerate(graph.ops.items()):
        early = specs[op.type].mutates or all(t.size <= TINY for t in graph.types[name])
        if before[name] and (early or _updates_only(graph, specs, readers, op)):
            rank[name] = max(rank[other] for other in before[name]) + step * (i + 1)
    return rank


def _updates_only(
    graph: Graph, specs: Mapping[str, OpSpec], readers: Mapping[Value, list[Op]], op: Op
) -> bool:
    """Return whether an op is an exchange whose results only updates read."""
    if op.type != BOXING:
        return False
    read = [r for k in range(len(graph.types[op.name])) for r in readers.get(op.output(k), ())]
    return bool(read) and all(specs[r.type].mutates for r in read)
