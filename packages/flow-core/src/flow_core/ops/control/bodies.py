"""Bodies: the graphs of loops and branches, as attributes of the ops that run them.

The literal of a body is ``(rows, results)``.  A row is ``(name, type, references, attributes)``; a
reference is ``(number of the row, number of the output)``, in which row -1 stands for the inputs of
the body.  Types are not stored: they follow from those of the inputs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from flow_core.base.arrays import Array
from flow_core.base.errors import SourceLine
from flow_core.base.philox import op_seed
from flow_core.ir.graph import Attrs, AttrValue, Graph, GraphBuilder, Op, TensorType, Value
from flow_core.ops.build import Backward, Emitter, Maker, Sym
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.topology import Placement

Body = tuple[Any, Any]
"""The literal of a body."""

UNPLACED = Placement.parse("cpu", "0:0")
"""The placement of ops in a body that is built for its types only."""


def body_literal(ops: Iterable[Op], inputs: Sequence[Value], results: Sequence[Value]) -> Body:
    """Return the literal of a body.

    Args:
        ops: the ops in topological order; those that no result needs are left out.
        inputs: the values that are the inputs of the body.
        results: outputs of the ops, or inputs.
    """
    first = {value: (-1, i) for i, value in reversed([*enumerate(inputs)])}
    listed = needed_ops(ops, first.keys(), results)
    number = {op.name: i for i, op in enumerate(listed)}

    def reference(value: Value) -> tuple[int, int]:
        return first[value] if value in first else (number[value.op], value.index)

    rows = [
        (op.name, op.type, tuple(map(reference, op.inputs)), (*op.attrs.items(),)) for op in listed
    ]
    return tuple(rows), tuple(map(reference, results))


def needed_ops(
    ops: Iterable[Op], inputs: Container[Value], results: Iterable[Value]
) -> Sequence[Op]:
    """Return the ops that results need, in their order, without those that make the inputs."""
    needed, found = {value.op for value in results if value not in inputs}, list[Op]()
    for op in reversed([*ops]):
        if op.name in needed:
            found.append(op)
            needed.update(value.op for value in op.inputs if value not in inputs)
    return found[::-1]


def is_random(body: Body) -> bool:
    """Return whether an op of a body draws random numbers."""
    specs = op_specs()
    return any(specs[type_].random for _, type_, _, _ in body[0])


def op_specs() -> Mapping[str, OpSpec]:
    """Return the specs of all ops, by type."""
    return default_registry().ops


@lru_cache(maxsize=512)
def body_graph(body: Body, types: tuple[TensorType, ...], placement: Placement = UNPLACED) -> Graph:
    """Return the graph of a body, whose ops begin with one ``input`` op for each input.

    Raises:
        InferenceError: an op of the body does not accept the types that result.
    """
    builder = GraphBuilder()
    emitter = Emitter(builder, op_specs())
    inputs = [add_input(emitter, type_, placement) for type_ in types]
    builder.results = add_body(emitter, body, inputs, placement)
    return builder.build()


def add_input(emitter: Emitter, type_: TensorType, placement: Placement = UNPLACED) -> Value:
    """Add an input of a body to its graph."""
    name = emitter.builder.unique_name("input:0")
    attrs = {"shape": type_.shape, "dtype": type_.dtype.name}
    return emitter.emit("input", (), attrs, placement=placement, name=name)[0]


def add_body(
    emitter: Emitter,
    body: Body,
    inputs: Sequence[Value],
    placement: Placement,
    prefix: str = "",  # the beginning of their names
    # The beginning of the names of random ops that were added before, if any; their results are
    # taken instead of adding them again.
    first: str = "",
    line: SourceLine | None = None,
) -> tuple[Value, ...]:
    """Add the ops of a body to a graph, and return its results."""
    builder, made = emitter.builder, {-1: tuple(inputs)}
    for number, (name, type_, references, attrs) in enumerate(body[0]):
        known = first + name if emitter.specs[type_].random else ""
        if known in builder.ops:
            made[number] = tuple(Value(known, i) for i in range(len(builder.types[known])))
            continue
        attrs = dict(attrs)
        if attrs.get("draws_as"):
            attrs["draws_as"] = first + attrs["draws_as"]
        made[number] = emitter.emit(
            type_,
            [made[row][output] for row, output in references],
            attrs,
            placement=placement,
            name=builder.unique_name(prefix + name),
            line=line,
        )
    return tuple(made[row][output] for row, output in body[1])


def with_attrs(body: Body, changed: Mapping[int, Mapping[str, AttrValue]]) -> Body:
    """Return a body with other attributes of some rows, by number of the row."""
    rows = [
        (*row[:3], (*Attrs(changed[i]).items(),)) if i in changed else row
        for i, row in enumerate(body[0])
    ]
    return tuple(rows), body[1]


def run_body(body: Body, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Return the results of a body, computed by the references of its ops.

    Random numbers are those of step 0 of a loop or branch whose seed is 0.
    """
    specs, made = op_specs(), {-1: tuple(arrays)}
    for number, (name, type_, references, attrs) in enumerate(body[0]):
        reference = specs[type_].reference
        if reference is None:
            raise LookupError(f"{type_} {name!r}, an op of a body, has no reference")
        given = [made[row][output] for row, output in references]
        found = reference(*given, **_seeded(specs[type_], name, dict(attrs)))
        made[number] = found if isinstance(found, tuple) else (found,)
    return tuple(made[row][output] for row, output in body[1])


def _seeded(spec: OpSpec, name: str, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return all attributes of an op of a body, and its seed as an attribute if it has none."""
    attrs = {**spec.attrs, **attrs}
    is_set = attrs["has_seed"] if "has_seed" in attrs else attrs.get("seed") is not None
    if not spec.random or is_set:
        return attrs
    if "seed" not in attrs:
        raise LookupError(f"{spec.type} {name!r}, an op of a body, draws from seeds of its own")
    own = {"seed": op_seed(0, str(attrs.get("draws_as") or name)), "has_seed": True}
    return attrs | {key: own[key] for key in own if key in attrs}


class BodyGradient:
    """The graph of a body and of its gradients, under construction.

    Args:
        backward: differentiates a graph, see `flow_core.ops.build.GradContext`.
    """

    def __init__(self, body: Body, types: Sequence[TensorType], backward: Backward) -> None:
        self._emitter, self._backward = Emitter(GraphBuilder(), op_specs()), backward
        self.maker = Maker(self._emitter, UNPLACED, "grad")
        self.inputs = tuple(map(self.input, types))
        self.results = add_body(self._emitter, body, self.inputs, UNPLACED)

    def input(self, type_: TensorType) -> Value:
        return add_input(self._emitter, type_)

    def gradients(
        self, seeds: Iterable[tuple[Value, Value]], wanted: Iterable[Value]
    ) -> Mapping[Value, Value]:
        """Add the ops of the gradients of values, given those of some results."""
        given: dict[Value, Value] = {}
        for value, seed in seeds:
            given[value] = self.sum(given[value], seed) if value in given else seed
        return self._backward(self._emitter, given, wanted)

    def zero(self, value: Value) -> Value:
        """Add zeros of the type of a value."""
        return self.maker.one("zero_like", Sym(self.maker, value)).value

    def sum(self, total: Value, added: Value) -> Value:
        """Add an op that sums two values."""
        return self.maker.one("add_n", Sym(self.maker, total), Sym(self.maker, added)).value

    def read(self, results: Iterable[Value], known: Container[Value] = ()) -> set[Value]:
        """Return the values on which some values depend, and these; those of known ones are not."""
        found = set(results)
        for op in reversed(self._emitter.builder.ops.values()):
            outputs = map(op.output, range(len(self._emitter.builder.types[op.name])))
            if any(value in found and value not in known for value in outputs):
                found.update(op.inputs)
        return found

    def op(self, value: Value) -> Op:
        """Return the op that makes a value."""
        return self._emitter.builder.ops[value.op]

    def type_of(self, value: Value) -> TensorType:
        return self._emitter.builder.type_of(value)

    def literal(self, inputs: Sequence[Value], results: Sequence[Value]) -> Body:
        """Return the body that computes some of the values."""
        return body_literal(self._emitter.builder.ops.values(), inputs, results)
