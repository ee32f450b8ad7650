"""Activation checkpointing: what the backward pass needs of a segment is computed a second time.

A segment is what one ``with flow.experimental.scope.config(checkpointing=True)`` block made.
Values that leave it in the forward pass are kept; all others that backward ops read are computed
anew from the segment's inputs, right before the first of them is needed, with the same random
bits: the copy of an op draws as the op that it is a copy of.  Ops that change variables (moving
averages) run once only, as in OneFlow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from flow_core.ir.graph import Graph, Op, Origin, Value
from flow_core.passes.base import PassContext


def again(name: str) -> str:
    """Return the name of the op that computes the values of another op again.

    >>> again("dropout")
    'dropout/recomputed'
    """
    return str(Origin(name, recomputed=True))


@dataclass(frozen=True)
class Checkpointing:
    """Recomputes the segments' activations in the backward pass.

    Attributes:
        segments: names of each segment's ops.
        forward: names of all ops of the forward pass.
    """

    segments: tuple[tuple[str, ...], ...]
    forward: frozenset[str]
    name: str = "checkpointing"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph with copies of forward ops where backward ops need their values."""
        plan = _Recomputing()
        readers = graph.consumers()
        position = {name: i for i, name in enumerate(graph.ops)}
        for segment in self.segments:
            names = {n for n in segment if n in graph.ops and _repeats(graph.ops[n], context)}
            for part in _connected(graph, names):
                self._recompute(graph, part, readers, position, plan)
        return _rewritten(graph, plan) if plan.again else graph

    def _recompute(
        self,
        graph: Graph,
        names: set[str],
        readers: Mapping[Value, list[Op]],
        position: Mapping[str, int],
        plan: _Recomputing,
    ) -> None:
        """Plans the copies of one connected part of a segment."""
        inner = {v for v in _values(graph, names) if self._stays_inside(graph, v, names, readers)}
        late = [op for v in inner for op in readers.get(v, ()) if op.name not in self.forward]
        if not late:
            return
        needed = {v.op for op in late for v in op.inputs if v in inner}
        for op in reversed([graph.ops[n] for n in graph.ops if n in names]):
            if op.name in needed:
                needed.update(v.op for v in op.inputs if v in inner)
        first = min(late, key=lambda op: position[op.name])
        made = [v.op for v in first.inputs if v.op not in names]
        after = max(made, key=position.__getitem__, default=None)
        copies = [graph.ops[n] for n in graph.ops if n in needed]
        plan.before.setdefault(first.name, []).extend(_copies(copies, inner, after))
        plan.again.update({v: Value(again(v.op), v.index) for v in inner if v.op in needed})
        plan.sources.update({again(op.name): op.name for op in copies})
        plan.readers.update(op.name for op in late)

    def _stays_inside(
        self, graph: Graph, value: Value, names: set[str], readers: Mapping[Value, list[Op]]
    ) -> bool:
        if value in graph.results:
            return False
        return all(op.name in names or op.name not in self.forward for op in readers.get(value, ()))


@dataclass(slots=True)
class _Recomputing:
    """What is to be done.

    Attributes:
        before: copies to put before an op.
        sources: by the name of a copy, the op that it is a copy of.
        again: the copy's value for each value that is computed again.
        readers: the backward ops that read copies.
    """

    before: dict[str, list[Op]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    again: dict[Value, Value] = field(default_factory=dict)
    readers: set[str] = field(default_factory=set)


def _repeats(op: Op, context: PassContext) -> bool:
    """Whether an op may run twice, and costs anything to keep."""
    spec = context.specs[op.type]
    fixed = not op.inputs and not spec.random
    return not (spec.effect or spec.mutates or fixed)


def _values(graph: Graph, names: Iterable[str]) -> Iterator[Value]:
    for name in names:
        for index in range(len(graph.types[name])):
            yield Value(name, index)


def _connected(graph: Graph, names: set[str]) -> list[set[str]]:
    """The connected parts of some ops, in graph order."""
    part: dict[str, set[str]] = {}
    for name in graph.ops:
        if name in names:
            joined = {name}.union(*(part[v.op] for v in graph.ops[name].inputs if v.op in part))
            for member in joined:
                part[member] = joined
    return list({id(p): p for p in part.values()}.values())


def _copies(ops: list[Op], inner: set[Value], after: str | None) -> Iterator[Op]:
    """Copies of ops; those that read no other copy wait for the gradient that comes back."""
    copied = {op.name for op in ops}
    for op in ops:
        inputs = tuple(
            Value(again(v.op), v.index) if v in inner and v.op in copied else v for v in op.inputs
        )
        waits = after is not None and inputs == op.inputs
        control = (*op.control, after) if waits and after is not None else op.control
        yield replace(op, name=again(op.name), inputs=inputs, control=control)


def _rewritten(graph: Graph, plan: _Recomputing) -> Graph:
    ops: dict[str, Op] = {}
    types, lines, origins = dict(graph.types), dict(graph.lines), dict(graph.origins)
    for op in graph.ops.values():
        for copy in plan.before.get(op.name, ()):
            source = plan.sources[copy.name]
            origins[copy.name] = graph.origin(source)._replace(recomputed=True)
            ops[copy.name], types[copy.name] = copy, graph.types[source]
            if source in lines:
                lines[copy.name] = lines[source]
        if op.name in plan.readers:
            op = op.with_inputs(tuple(plan.again.get(v, v) for v in op.inputs))
        ops[op.name] = op
    return Graph(ops, types, graph.results, graph.effects, lines, origins)
