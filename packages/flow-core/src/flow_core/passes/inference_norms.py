"""Batch normalization in inference as ``x * scale + shift``, with two numbers per channel.

Scale and shift are computed by ops of the graph from the moving statistics, because other jobs may
change the statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flow_core.ir.graph import Graph, Op, Value
from flow_core.ops.build import Emitter, Maker, Sym
from flow_core.passes.rewriting.decomposition import cast_to
from flow_core.passes.rewriting.rewriter import Rewriter, like_op
from flow_core.plugins.specs import OpSpec


def constant_norms(rewriter: Rewriter, specs: Mapping[str, OpSpec], device: str) -> list[Op]:
    """Return the inference norms whose inputs no op overwrites and whose statistics no op reads."""
    graph = rewriter.graph
    norms = [op for op in graph.of_type("normalization") if op.placement.device_type == device]
    if not norms:
        return []
    changed = changed_values(graph, specs)
    return [
        op
        for op in norms
        if not op.attrs["training"]
        and not changed & {*op.inputs[1:]}
        and not any(rewriter.is_used(op.output(i)) for i in (1, 2))
    ]


def changed_values(graph: Graph, specs: Mapping[str, OpSpec]) -> set[Value]:
    """Return the variables that an op of the graph overwrites."""
    return {
        op.inputs[i]
        for op in graph.ops.values()
        if op.attrs.get("training", True)  # a norm outside of training overwrites nothing
        for i in specs[op.type].mutates
        if i < len(op.inputs)
    }


def channel_axis(graph: Graph, op: Op) -> int:
    """Return the channel axis of an op as a non-negative number."""
    axis: int = op.attrs["axis"]
    return axis % len(graph.type_of(op.inputs[0]).shape)


@dataclass(frozen=True, slots=True)
class NormParts:
    """The ops that replace a batch normalization (norm).

    Attributes:
        norm: the norm to be replaced.
        maker: the emitter of the new ops, which are inserted before the norm.
    """

    rewriter: Rewriter
    norm: Op
    maker: Maker

    @classmethod
    def of(cls, rewriter: Rewriter, specs: Mapping[str, OpSpec], norm: Op) -> NormParts:
        emitter, line = Emitter(rewriter.before(norm), specs), rewriter.graph.lines.get(norm.name)
        return cls(rewriter, norm, Maker(emitter, norm.placement, norm.name, line))

    def sym(self, value: Value) -> Sym:
        return Sym(self.maker, value)

    def scale_and_shift(self, bias: Value | None = None) -> tuple[Sym, Sym]:
        """Return the scale and the shift of each channel, in the accumulation type."""
        wide = self.rewriter.type_of(self.norm.output()).dtype.accumulate
        mean, variance, gamma, beta = (cast_to(self.sym(v), wide) for v in self.norm.inputs[1:])
        scale = self.maker.one("rsqrt", variance + self.norm.attrs["epsilon"]) * gamma
        middle = mean if bias is None else mean - cast_to(self.sym(bias), wide)
        return scale, beta - scale * middle

    def apply(self, scale: Sym, shift: Sym) -> None:
        """Replace the batch norm by a multiplication and an addition in the accumulation type."""
        x = self.sym(self.norm.inputs[0])
        axis = channel_axis(self.rewriter.graph, self.norm)
        shape = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
        scale, shift = (self.maker.one("reshape", v, shape=shape) for v in (scale, shift))
        value = cast_to(x, x.dtype.accumulate) * scale
        if value.dtype is x.dtype:
            self.finish("broadcast_add", value, shift)
        else:
            self.finish("cast", value + shift, dtype=x.dtype.name)

    def finish(self, type_: str, *inputs: Sym, **attrs: Any) -> None:
        """Emit the last op, under the norm's name, and replace the norm by it."""
        types = self.rewriter.graph.types[self.norm.name][:1]
        last = like_op(self.norm, type_, attrs, [x.value for x in inputs])
        self.rewriter.replace(self.norm, last, types, effect=False)
