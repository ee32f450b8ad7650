"""Batch normalisation by moving statistics, as two numbers per channel: ``x * scale + shift``.

The two are made from the variables in each step: other jobs may change them meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from flow_core.base.dtypes import DType
from flow_core.ir.graph import Attrs, Graph, Op, TensorType, Value, rebuild, tensor_type


def settled(graph: Graph, specs: Mapping[str, Any], device: str) -> list[Op]:
    """The norms of a device whose statistics nothing overwrites, and nobody else reads."""
    norms = [op for op in graph.of_type("normalization") if op.placement.device_type == device]
    if not norms:
        return []
    changed, read = changed_values(graph, specs), {*graph.consumers(), *graph.results}
    return [
        op
        for op in norms
        if not op.attrs["training"]
        and not changed & {*op.inputs[1:]}
        and not read & {op.output(1), op.output(2)}
    ]


def changed_values(graph: Graph, specs: Mapping[str, Any]) -> set[Value]:
    """The variables that something in the graph overwrites."""
    return {
        op.inputs[i]
        for op in graph.ops.values()
        if op.attrs.get("training", True)  # a norm outside of training overwrites nothing
        for i in specs[op.type].mutates
        if i < len(op.inputs)
    }


def channel_axis(graph: Graph, op: Op) -> int:
    """Which axis an op's ``axis`` is."""
    axis: int = op.attrs["axis"]
    return axis % len(graph.type_of(op.inputs[0]).shape)


@dataclass(slots=True)
class NewOps:
    """Ops that stand in the place of one.

    Attributes:
        graph: where that one is.
        at: it.
        made: the new ones, in order.
        types: of their results.
    """

    graph: Graph
    at: Op
    made: list[Op] = field(default_factory=list)
    types: dict[str, tuple[TensorType, ...]] = field(default_factory=dict)

    def add(self, type_: str, *inputs: Value, to: TensorType | None = None, **attrs: Any) -> Value:
        """The result of a new op, of its first input's type by default."""
        name = f"{self.at.name}/plain_{len(self.made)}"
        while name in self.graph.ops:
            name += "_"
        self.made.append(Op(name, type_, inputs, Attrs(attrs), self.at.placement))
        self.types[name] = (to or self.type_of(inputs[0]),)
        return Value(name, 0)

    def effect(self, type_: str, *inputs: Value) -> None:
        """A new op without results."""
        self.types[self.add(type_, *inputs).op] = ()

    def type_of(self, value: Value) -> TensorType:
        """The type of an old or a new value."""
        return (self.types.get(value.op) or self.graph.types[value.op])[value.index]

    def cast(self, value: Value, dtype: DType) -> Value:
        """A value of an element type."""
        type_ = self.type_of(value)
        if type_.dtype is dtype:
            return value
        return self.add("cast", value, to=tensor_type(type_.shape, dtype), dtype=dtype.name)

    def shaped(self, value: Value, *shape: int) -> Value:
        """A value in another shape."""
        return self.add("reshape", value, to=tensor_type(shape, self.type_of(value).dtype),
                        shape=shape)  # fmt: skip

    def finish(self, op_type: str, *inputs: Value, **attrs: Any) -> None:
        """The last op has the name of the one that was there."""
        at = self.at
        op = Op(at.name, op_type, inputs, Attrs(attrs), at.placement, control=at.control)
        self.made.append(op)
        self.types[at.name] = (self.graph.types[at.name][0],)


def numbers(ops: NewOps, bias: Value | None = None) -> tuple[Value, Value]:
    """Factor and summand of each channel, in the type of sums."""
    wide = ops.type_of(ops.at.output()).dtype.accumulate
    mean, variance, gamma, beta = (ops.cast(v, wide) for v in ops.at.inputs[1:])
    bias = None if bias is None else ops.cast(bias, wide)
    spread = ops.add("scalar_add", variance, operand=ops.at.attrs["epsilon"])
    scale = ops.add("broadcast_mul", ops.add("rsqrt", spread), gamma)
    middle = mean if bias is None else ops.add("broadcast_sub", mean, bias)
    shift = ops.add("broadcast_sub", beta, ops.add("broadcast_mul", scale, middle))
    return scale, shift


def affine(ops: NewOps, scale: Value, shift: Value) -> None:
    """The last ops: a product and a sum, in the type of sums."""
    x, axis = ops.type_of(ops.at.inputs[0]), channel_axis(ops.graph, ops.at)
    wide = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    scale, shift = (ops.shaped(v, *wide) for v in (scale, shift))
    value = ops.cast(ops.at.inputs[0], x.dtype.accumulate)
    value = ops.add("broadcast_mul", value, scale)
    if ops.type_of(value).dtype is x.dtype:
        ops.finish("broadcast_add", value, shift)
    else:
        ops.finish("cast", ops.add("broadcast_add", value, shift), dtype=x.dtype.name)


def with_new(
    graph: Graph,
    put: Mapping[str, NewOps],
    gone: set[str],
    same: Mapping[Value, Value] = MappingProxyType({}),
) -> Graph:
    """The graph with new ops in their places, which are in the line of the old ones.

    Args:
        graph: as it was.
        put: new ops, by the name of the one in whose place they are.
        gone: names of ops that are dropped.
        same: values that others stand for.
    """
    if not put:
        return graph
    ops: list[Op] = []
    types, lines = dict(graph.types), dict(graph.lines)
    for op in graph.ops.values():
        new = put.get(op.name)
        if new is None:
            ops += [] if op.name in gone else [op]
            continue
        ops += new.made
        types |= new.types
        if op.name in lines:
            lines |= {made.name: lines[op.name] for made in new.made}
    kept = (name for name in graph.effects if name not in put)
    effects = (*kept, *(op.name for new in put.values() for op in new.made if not types[op.name]))
    ops = [op.with_inputs(tuple(same.get(v, v) for v in op.inputs)) for op in ops]
    results = tuple(same.get(v, v) for v in graph.results)
    return rebuild(graph, ops, types=types, lines=lines, effects=effects, results=results)
