"""The order in which ops run.

Reads see the state at the start of the step: an op that overwrites a variable runs after all
readers of the variable and of its aliases.  It runs as early as that allows, which shortens the
live ranges of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping

from flow_core.base.errors import GraphError
from flow_core.compiler.memory.aliases import alias_roots, overwritten
from flow_core.compiler.memory.replica_dedup import NO_DEDUP, ReplicaDedup
from flow_core.ir.graph import Graph, Op, Value
from flow_core.ir.order import topological_order
from flow_core.plugins.specs import OpSpec

TINY = 16
"""Results of at most this many elements are computed as early as possible."""


def schedule(graph: Graph, specs: Mapping[str, OpSpec]) -> list[Op]:
    """Order the ops of one stream: graph order, but updates right after their last predecessor.

    Raises:
        GraphError: an op depends on itself.
    """
    before, rank = constraints(graph, specs)
    order, blocked = topological_order(before, rank)
    if blocked:
        raise circular(graph, blocked[0])
    return [graph.ops[name] for name in order]


def circular(graph: Graph, op: str) -> GraphError:
    """Make the error for an op that depends on itself."""
    return GraphError(
        "ordering the ops of a job",
        at=graph.lines.get(op),
        found=f"op {op!r} must run before and after itself",
        hint="an update of a variable may not feed a reader of its old value",
    )


def constraints(
    graph: Graph, specs: Mapping[str, OpSpec], sharing: ReplicaDedup = NO_DEDUP
) -> tuple[dict[str, set[str]], dict[str, float]]:
    """Return the predecessors of each op, and the rank that decides among ready ops."""
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
    last_writer: dict[Value, str] = {}
    for op in running:
        for target in overwritten(op, specs, roots):
            others = readers[target] - {op.name}
            before[op.name] |= {
                o for o in others if target not in overwritten(graph.ops[o], specs, roots)
            }
            # ops that overwrite the same value keep their order in the graph
            if target in last_writer:
                before[op.name].add(last_writer[target])
            last_writer[target] = op.name
    return before


def _ranks(
    graph: Graph, before: Mapping[str, set[str]], specs: Mapping[str, OpSpec]
) -> dict[str, float]:
    """Rank ops by graph position; updates and tiny results just after their last predecessor.

    Tiny results, such as the learning rate, cost no memory, and would delay updates if they kept
    their late positions in the graph, as would the states of optimizers.
    """
    rank: dict[str, float] = {
        name: -1.0 if op.type == "variable" else float(i)
        for i, (name, op) in enumerate(graph.ops.items())
    }
    step = 0.5 / (len(rank) + 1)
    for i, (name, op) in enumerate(graph.ops.items()):
        if before[name] and (specs[op.type].mutates or _tiny(graph, name)):
            rank[name] = max(rank[other] for other in before[name]) + step * (i + 1)
    return rank


def _tiny(graph: Graph, name: str) -> bool:
    return all(t.size <= TINY for t in graph.types[name])
