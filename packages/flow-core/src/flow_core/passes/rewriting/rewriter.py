"""Graph rewriting: match on the original graph, collect changes, apply them at the end.

All queries (`Rewriter.readers`, `Rewriter.only_reader`, `Rewriter.position`) refer to the original
graph; `Rewriter.is_untouched` returns whether matched ops are unchanged.  A change costs time
proportional to its size, and `Rewriter.finish` walks the graph once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from flow_core.base.errors import GraphError, SourceLine
from flow_core.ir.graph import (
    Attrs,
    AttrValue,
    Graph,
    GraphBuilder,
    MergedOp,
    Op,
    Origin,
    TensorType,
    Value,
    rebuild,
)
from flow_core.ir.order import topological_order
from flow_core.plugins.specs import KernelQuery, KernelSpec

BESIDE = 0.25
"""Distance in rank between an op and those inserted right before or after it."""


class Rewriter(GraphBuilder):
    """A graph under change.

    New ops go to the insertion point, which `before`, `after` and `at_end` set; they inherit the
    source line of the op there.  The result keeps the original order, with new ops at their
    insertion points, except where an op would precede its inputs.

    Attributes:
        graph: the original graph.
        results: the values that the job returns; assign to change them.

    Args:
        graph: the graph to change.

    >>> from flow_core.ir.text import parse_graph, print_graph
    >>> graph = parse_graph('''
    ... a = input() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,)}
    ... b = identity(a:0) : float32[2] @cpu[0:0] {}
    ... c = relu(b:0) : float32[2] @cpu[0:0] {}
    ... return c:0
    ... ''')
    >>> rewriter = Rewriter(graph)
    >>> for op in graph.of_type("identity"):
    ...     rewriter.drop(op)
    ...     rewriter.replace_value(op.output(), op.inputs[0])
    >>> print(print_graph(rewriter.finish()))
    graph
    a = input() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,)}
    c = relu(a:0) : float32[2] @cpu[0:0] {}
    return c:0
    effects
    <BLANKLINE>
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.graph = graph
        self._rank: dict[str, float] = {}  # of new and moved ops
        self._same: dict[Value, Value] = {}
        self._final: set[Value] = set()  # keys of `_same` whose replacement is not replaced again
        self._successor: dict[str, str | None] = {}  # target of control edges, by dropped op
        self._changed = False
        self._point: tuple[float, str | None] = (float(len(graph)), None)

    # ------------------------------------------------------------------ queries: original graph

    @cached_property
    def position(self) -> Mapping[str, int]:
        """The index of each op in the original graph."""
        return {name: i for i, name in enumerate(self.graph.ops)}

    @cached_property
    def _readers(self) -> dict[Value, list[Op]]:
        return self.graph.consumers()

    @cached_property
    def _results(self) -> frozenset[Value]:
        return frozenset(self.graph.results)

    def readers(self, value: Value, *types: str) -> list[Op]:
        """Return the ops that read a value, in graph order, once per input that reads it.

        If ``types`` are given, only ops of these types are returned.
        """
        readers = self._readers.get(value, [])
        return [op for op in readers if op.type in types] if types else readers

    def is_result(self, value: Value) -> bool:
        """Return whether the job returns a value."""
        return value in self._results

    def is_used(self, value: Value) -> bool:
        """Return whether an op reads a value, or the job returns it."""
        return value in self._readers or self.is_result(value)

    def only_reader(self, value: Value, *types: str) -> Op | None:
        """Return the only reader of a value if it is untouched and has one of the given types."""
        readers = self._readers.get(value, [])
        if len(readers) != 1 or self.is_result(value):
            return None
        fits = not types or readers[0].type in types
        return readers[0] if fits and self.is_untouched(readers[0]) else None

    def is_untouched(self, *ops: Op) -> bool:
        """Return whether none of the given ops has been replaced or dropped."""
        return all(self.ops.get(op.name) is op for op in ops)

    # ------------------------------------------------------------------ insertion point

    def before(self, op: Op) -> Rewriter:
        """Set the insertion point right before an op, which may be replaced or dropped."""
        return self._insert_beside(op, -BESIDE)

    def after(self, op: Op) -> Rewriter:
        """Set the insertion point right after an op, which may be replaced or dropped."""
        return self._insert_beside(op, BESIDE)

    def at_end(self) -> Rewriter:
        """Set the insertion point after all ops."""
        self._point = float(len(self.graph)), None
        return self

    def _insert_beside(self, op: Op, shift: float) -> Rewriter:
        position = self.position.get(op.name)
        rank = self._rank[op.name] if position is None else position
        self._point = rank + shift, op.name
        return self

    # ------------------------------------------------------------------ changes

    def add(
        self,
        op: Op,
        types: tuple[TensorType, ...],
        *,
        line: SourceLine | None = None,
        effect: bool = False,
        origin: Origin | None = None,
    ) -> Op:
        """Add an op with a new name at the insertion point.

        Args:
            op: the op; its inputs may be original values, or outputs of new ops.
            types: types of its outputs.
            line: source line; by default the line of the op at the insertion point.
            effect: whether the op must run even if nothing reads its outputs.
            origin: origin of a copy; by default the op itself.
        """
        rank, anchor = self._point
        if line is None and anchor is not None:
            line = self.lines.get(anchor)
        super().add(op, types, line=line, effect=effect, origin=origin)
        self._rank[op.name] = rank
        self._changed = True
        return op

    def move(self, op: Op) -> None:
        """Move an op, found by its name, to the insertion point, after ops added there before."""
        self.ops[op.name] = self.ops.pop(op.name)
        self._rank[op.name], _ = self._point
        self._changed = True

    def replace(
        self,
        old: Op,
        new: Op,
        types: tuple[TensorType, ...] | None = None,
        *,
        effect: bool | None = None,
    ) -> Op:
        """Replace an op with another one, which inherits its line and control successors.

        Args:
            old: an op that has not been dropped.
            new: an op of the same or a new name; for a new name, also replace ``old``'s values.
            types: types of its outputs; by default the types of ``old``.
            effect: whether ``new`` must run even if nothing reads its outputs; by default, the
                same as for ``old``.
        """
        effect = old.name in self.effects if effect is None else effect
        types = self.types[old.name] if types is None else types
        if new.name == old.name:
            self.ops[new.name], self.types[new.name] = new, types
            self._changed = True
        else:
            rank = self._rank.get(old.name, self.position.get(old.name, 0))
            self._point, previous = (rank, old.name), self._point
            self.add(new, types)
            self._point = previous
            self.drop(old, new.name)
        if effect:
            self.effects[new.name] = None
        else:
            self.effects.pop(new.name, None)
        return new

    def record_merged(self, into: Op, ops: Iterable[Op]) -> None:
        """Record the original ops that a new op computes, for messages and reports."""
        graph = self.graph
        originals = (
            graph.merged.get(op.name)
            or (MergedOp(op.type, graph.origin(op.name).logical, graph.lines.get(op.name)),)
            for op in ops
        )
        self.merged[into.name] = tuple(member for members in originals for member in members)

    def replace_value(self, old: Value, new: Value) -> None:
        """Replace a value with another one in all readers and in the results.

        The replacement may itself be replaced.  If an op was replaced with an op of the same name,
        a value of that name refers to the new op's output if passed as ``new``, and to the old op's
        output if passed as ``old``; therefore, replace ops before their values.

        Raises:
            GraphError: The value replaces itself.
        """
        is_new = new.op in self.graph.ops and not self._is_old(new.op)
        new = new if is_new else self.resolve(new)
        if new == old:
            if is_new:
                return
            raise GraphError(f"replacing value {old}", found="a replacement that depends on it")
        self._same[old] = new
        if is_new:
            self._final.add(old)
        self._changed = True

    def _is_old(self, name: str) -> bool:
        return self.ops.get(name, self.graph.ops[name]) is self.graph.ops[name]

    def drop(self, op: Op, successor: str | None = None) -> None:
        """Remove an op; control edges from it start at the op named ``successor`` instead."""
        del self.ops[op.name]
        self._successor[op.name] = successor
        self._changed = True

    def resolve(self, value: Value) -> Value:
        """Return the current replacement of a value, at the end of its chain of replacements."""
        while value in self._same:
            old, value = value, self._same[value]
            if old in self._final:
                break
        return value

    def resolved(self, op: Op) -> Op:
        """Return the op with replaced inputs and without control edges from dropped ops."""
        if not self._same.keys().isdisjoint(op.inputs):
            op = op.with_inputs(tuple([self.resolve(v) for v in op.inputs]))
        if op.control and not self._successor.keys().isdisjoint(op.control):
            op = replace(op, control=tuple(dict.fromkeys(self._control(op))))
        return op

    def _control(self, op: Op) -> Iterator[str]:
        for start in op.control:
            name: str | None = start
            while name is not None and name not in self.ops:
                name = self._successor.get(name)
            if name is not None:
                yield name

    # ------------------------------------------------------------------ result

    def build(self) -> Graph:
        """Return the changed graph, like `finish`."""
        return self.finish()

    def finish(self) -> Graph:
        """Return the changed graph, or the original graph if nothing has changed.

        Raises:
            GraphError: An op reads a value that no op produces, or depends on itself.
        """
        if not self._changed and self.results == self.graph.results:
            return self.graph
        results = tuple([self.resolve(v) for v in self.results])
        missing = next((v for v in results if v.op not in self.ops), None)
        if missing is not None:
            raise GraphError("rewriting a graph", found=f"result {missing}, of a dropped op")
        ops = self._ordered([self.resolved(op) for op in self.ops.values()])
        return rebuild(
            self.graph,
            ops,
            types=self.types,
            lines=self.lines,
            origins=self.origins,
            merged=self.merged,
            results=results,
            effects=[op.name for op in ops if op.name in self.effects],
        )

    def _ordered(self, ops: list[Op]) -> list[Op]:
        """Return the ops by rank, each after its inputs and control predecessors."""
        rank = {**self.position, **self._rank} if self._rank else self.position
        if self._rank:
            ops.sort(key=lambda op: rank[op.name])
        return ops if _is_topological(ops) else _topological(ops)


class KernelRewriter(Rewriter):
    """A rewriter that knows the kernels of a backend.

    Args:
        graph: the graph to change.
        kernels: the backend's kernels, by op type.
    """

    def __init__(self, graph: Graph, kernels: Mapping[str, Sequence[KernelSpec]]) -> None:
        super().__init__(graph)
        self.kernels = kernels

    def query(self, op: Op, types: tuple[TensorType, ...]) -> KernelQuery:
        """Return the kernel query for an op, which need not be in the graph, and output types."""
        return KernelQuery(op.type, op.attrs, tuple(map(self.type_of, op.inputs)), types)

    def accepts(self, op: Op, types: tuple[TensorType, ...]) -> bool:
        """Return whether a kernel of the backend accepts an op, which need not be in the graph."""
        kernels = self.kernels.get(op.type, ())
        query = self.query(op, types) if kernels else None
        return query is not None and any(k.accepts is None or k.accepts(query) for k in kernels)

    def replace_if_accepted(
        self, old: Op, new: Op, types: tuple[TensorType, ...] | None = None
    ) -> bool:
        """Replace an op if a kernel of the backend accepts the new op; return whether it does."""
        accepted = self.accepts(new, self.types[old.name] if types is None else types)
        if accepted:
            self.replace(old, new, types)
        return accepted


def _is_topological(ops: Sequence[Op]) -> bool:
    """Return whether every op comes after its inputs and control predecessors."""
    seen = set[str]()
    for op in ops:
        for value in op.inputs:
            if value.op not in seen:
                return False
        if op.control and not seen.issuperset(op.control):
            return False
        seen.add(op.name)
    return True


def _topological(ops: Sequence[Op]) -> list[Op]:
    """Return the ops in topological order; among ready ops, the first one in ``ops`` comes first.

    Raises `GraphError` if an op reads a value that no op produces, or depends on itself.
    """
    index = {op.name: i for i, op in enumerate(ops)}
    before = {op.name: {*[v.op for v in op.inputs], *op.control} for op in ops}
    for op in ops:
        missing = before[op.name] - index.keys()
        if missing:
            _refuse(op, f"inputs of {sorted(missing)}, which are not in the graph")
    order, blocked = topological_order(before, index)
    if blocked:
        _refuse(ops[index[blocked[0]]], "a cycle")
    return [ops[index[name]] for name in order]


def _refuse(op: Op, found: str) -> None:
    raise GraphError(f"rewriting a graph at op {op.name!r}", found=found)


def like_op(op: Op, type_: str, attrs: Mapping[str, AttrValue], inputs: Iterable[Value]) -> Op:
    """Return an op of another type with the name, placement and control edges of ``op``."""
    return Op(op.name, type_, tuple(inputs), Attrs(attrs), op.placement, control=op.control)
