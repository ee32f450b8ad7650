"""Rewriting a graph: ops are added and dropped freely, and put in order at the end."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flow_core.ir.graph import Attrs, AttrValue, Graph, Op, Origin, TensorType, Value, rebuild
from flow_core.plugins.specs import KernelQuery, KernelSpec


@dataclass(slots=True)
class Editor:
    """A graph under change.

    Attributes:
        graph: as it was.
        kernels: ours, by op.
        ops: by name; ranks keep new ops where the ones stood that they replace.
        types: of all outputs.
        rank: where an op would like to stand.
        same: values that others stand for.
    """

    graph: Graph
    kernels: Mapping[str, Sequence[KernelSpec]]
    ops: dict[str, Op] = field(default_factory=dict)
    types: dict[str, tuple[TensorType, ...]] = field(default_factory=dict)
    rank: dict[str, float] = field(default_factory=dict)
    lines: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    same: dict[Value, Value] = field(default_factory=dict)

    def type_of(self, value: Value) -> TensorType:
        """The type of a value, old or new."""
        return self.types[value.op][value.index]

    def accepts(self, op: Op, types: tuple[TensorType, ...]) -> bool:
        """Whether one of our kernels takes an op that is not in the graph yet."""
        inputs = tuple(self.type_of(v) for v in op.inputs)
        query = KernelQuery(op.type, op.attrs, inputs, types)
        return any(k.accepts is None or k.accepts(query) for k in self.kernels.get(op.type, ()))

    def add(self, op: Op, types: tuple[TensorType, ...], like: Op, shift: float = 0.0) -> Op:
        """Puts an op at the place of another one, or a bit before or after it."""
        self.ops[op.name] = op
        self.types[op.name] = types
        self.rank[op.name] = self.rank[like.name] + shift
        if like.name in self.graph.lines:
            self.lines.setdefault(op.name, self.graph.lines[like.name])
        return op

    def finish(self) -> Graph:
        """The new graph, in an order near the old one."""
        ops = [self._redirected(op) for op in self.ops.values()]
        results = tuple(self.resolved(v) for v in self.graph.results)
        lines = {**self.graph.lines, **self.lines}
        origins = {**self.graph.origins, **self.origins}
        return rebuild(
            self.graph,
            self._ordered(ops),
            types=self.types,
            lines=lines,
            origins=origins,
            results=results,
        )

    def resolved(self, value: Value) -> Value:
        """The value that stands for one now."""
        while value in self.same:
            value = self.same[value]
        return value

    def _redirected(self, op: Op) -> Op:
        if self.same.keys().isdisjoint(op.inputs):
            return op
        return op.with_inputs(tuple([self.resolved(v) for v in op.inputs]))

    def _ordered(self, ops: Sequence[Op]) -> list[Op]:
        """The ops by rank, each after those that it needs."""
        ranked = sorted(ops, key=lambda op: (self.rank[op.name], op.name))
        return ranked if _is_order(ranked) else self._taken_in_turn(ops)

    def _taken_in_turn(self, ops: Sequence[Op]) -> list[Op]:
        """The ops, always that of the least rank whose predecessors are there."""
        named = {op.name: op for op in ops}
        before = {
            op.name: {v.op for v in op.inputs} | {c for c in op.control if c in named} for op in ops
        }
        followers: dict[str, list[str]] = {}
        for name, names in before.items():
            for other in names:
                followers.setdefault(other, []).append(name)
        waiting = {name: len(names) for name, names in before.items()}
        ready = [(self.rank[name], name) for name, count in waiting.items() if not count]
        heapq.heapify(ready)
        order: list[Op] = []
        while ready:
            _, name = heapq.heappop(ready)
            order.append(named[name])
            for other in followers.get(name, ()):
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (self.rank[other], other))
        return order


def _is_order(ops: Sequence[Op]) -> bool:
    """Whether every op comes after those that it needs."""
    names, seen = {op.name for op in ops}, set[str]()
    for op in ops:
        if not seen.issuperset([v.op for v in op.inputs]):
            return False
        if not seen.issuperset(names.intersection(op.control)):
            return False
        seen.add(op.name)
    return True


def edit(graph: Graph, kernels: Mapping[str, Sequence[KernelSpec]]) -> Editor:
    """An editor with the graph's ops in it."""
    rank = {name: float(i) for i, name in enumerate(graph.ops)}
    return Editor(graph, kernels, dict(graph.ops), dict(graph.types), rank)


def changed(op: Op, type_: str, attrs: Mapping[str, AttrValue], *inputs: Value) -> Op:
    """An op at the same place and of the same name, of another type."""
    return Op(op.name, type_, inputs, Attrs(attrs), op.placement, control=op.control)
