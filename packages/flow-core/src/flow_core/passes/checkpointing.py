"""Activation checkpointing: recompute the activations of a segment for the backward pass.

A segment consists of the ops created in one ``with
flow.experimental.scope.config(checkpointing=True)`` block.  Values that forward ops outside of the
segment read are kept.  All other values that backward ops read are recomputed from the segment's
inputs, right before their first reader.  The copy of a random op draws the same numbers as the
original op.  Ops that change variables (such as moving averages) run only once, as in OneFlow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from flow_core.ir.graph import Graph, Op, Origin, Value
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.rewriter import Rewriter


def recomputed_name(name: str) -> str:
    """Return the name of the op that recomputes the values of another op.

    >>> recomputed_name("dropout")
    'dropout/recomputed'
    """
    return str(Origin(name, recomputed=True))


@dataclass(frozen=True)
class Checkpointing:
    """A pass that recomputes the segments' activations in the backward pass."""

    segments: tuple[tuple[str, ...], ...]  # for each segment, the names of its ops
    forward: frozenset[str]  # names of all ops of the forward pass
    name: str = "checkpointing"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with copies of forward ops where backward ops need their values."""
        rewriter = Rewriter(graph)
        again: dict[Value, Value] = {}
        late: dict[str, Op] = {}
        for segment in self.segments:
            names = {n for n in segment if n in graph.ops and _repeats(graph.ops[n], context)}
            for part in _connected(graph, names):
                for op in self._recompute(rewriter, part, again):
                    late[op.name] = op
        for op in late.values():
            rewriter.replace(op, op.with_replaced_inputs(again))
        return rewriter.finish()

    def _recompute(
        self, rewriter: Rewriter, names: set[str], again: dict[Value, Value]
    ) -> list[Op]:
        """Copy the ops of one connected part of a segment for its backward readers.

        Args:
            again: maps each value to its recomputed copy; this function adds entries.

        Returns:
            The backward ops that read values of the part.
        """
        graph = rewriter.graph
        inner = {v for v in _values(graph, names) if self._stays_inside(rewriter, v, names)}
        late = [op for v in inner for op in rewriter.readers(v) if op.name not in self.forward]
        if not late:
            return []
        needed = {v.op for op in late for v in op.inputs if v in inner}
        # In reverse order, an op is reached after all ops of the part that read its results.
        for op in reversed([graph.ops[n] for n in graph.ops if n in names]):
            if op.name in needed:
                needed.update(v.op for v in op.inputs if v in inner)
        first = min(late, key=lambda op: rewriter.position[op.name])
        # Without an edge from the backward pass, the schedule could run the copies right after the
        # forward pass, and their results would need the memory that they are to save.
        made = [v.op for v in first.inputs if v.op not in names]
        after = max(made, key=rewriter.position.__getitem__, default=None)
        copied = [graph.ops[n] for n in graph.ops if n in needed]
        rewriter.before(first)
        for op, copy in zip(copied, _copies(copied, inner, after), strict=True):
            origin = graph.origin(op.name)._replace(recomputed=True)
            line = graph.lines.get(op.name)
            rewriter.add(copy, graph.types[op.name], line=line, origin=origin)
        again.update({v: Value(recomputed_name(v.op), v.index) for v in inner if v.op in needed})
        return late

    def _stays_inside(self, rewriter: Rewriter, value: Value, names: set[str]) -> bool:
        if rewriter.is_result(value):
            return False
        readers = rewriter.readers(value)
        return all(op.name in names or op.name not in self.forward for op in readers)


def _repeats(op: Op, context: PassContext) -> bool:
    """Return whether an op can run twice and does more than produce fixed values."""
    spec = context.specs[op.type]
    fixed = not op.inputs and not spec.random
    return not (spec.effect or spec.mutates or fixed)


def _values(graph: Graph, names: Iterable[str]) -> Iterator[Value]:
    for name in names:
        for index in range(len(graph.types[name])):
            yield Value(name, index)


def _connected(graph: Graph, names: set[str]) -> list[set[str]]:
    """Return the connected components of the named ops, in graph order."""
    part: dict[str, set[str]] = {}
    for name in graph.ops:
        if name in names:
            joined = {name}.union(*(part[v.op] for v in graph.ops[name].inputs if v.op in part))
            for member in joined:
                part[member] = joined
    return list({id(p): p for p in part.values()}.values())


def _copies(ops: list[Op], inner: set[Value], after: str | None) -> Iterator[Op]:
    """Yield copies of ops; copies that read no other copy wait for the op ``after``, if any."""
    copied = {op.name for op in ops}
    for op in ops:
        inputs = tuple(
            Value(recomputed_name(v.op), v.index) if v in inner and v.op in copied else v
            for v in op.inputs
        )
        waits = after is not None and inputs == op.inputs
        control = (*op.control, after) if waits and after is not None else op.control
        yield replace(op, name=recomputed_name(op.name), inputs=inputs, control=control)
