"""Batch normalisation over several devices: statistics of the batch from sums of its parts.

One op that normalises needs the whole batch on every device.  Written as sums, which arise as
partial results of the parts, training needs two all-reduces of a number per channel: those of the
mean and of the variance, which is taken from centred values so that nothing cancels.  Its gradient
needs two as well, which are those of the parameters' gradients anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from flow_core.dtypes import DType
from flow_core.ir import Graph, GraphBuilder, Op, Value
from flow_core.ops.build import Emitter, Maker, Sym
from flow_core.ops.norm import channel_shape
from flow_core.passes.base import PassContext
from flow_core.passes.rewrite import redirect
from flow_core.sbp import B, NdSbp

Parts = Sequence[Sym]


@dataclass(frozen=True)
class BatchStatistics:
    """Takes training's normalisation and its gradient apart where their devices are several."""

    name: str = "batch_statistics"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph without ``normalization`` of a split batch."""
        if not any(map(_applies, graph.ops.values())):
            return graph
        builder = GraphBuilder()
        emitter = Emitter(builder, context.specs)
        same: dict[Value, Value] = {}
        last: dict[str, str] = {}
        for original in graph.ops.values():
            op = _renamed(redirect(original, same, set()), last)
            line = graph.lines.get(op.name)
            if not _applies(op):
                effect = op.name in graph.effects
                builder.add(op, graph.types[op.name], line=line, effect=effect)
                continue
            maker = Maker(emitter, op.placement, op.name, line)
            found = _RULES[op.type](maker, op)
            same.update({Value(op.name, i): sym.value for i, sym in enumerate(found)})
            last[op.name] = found[0].value.op
        builder.results = tuple(same.get(v, v) for v in graph.results)
        return builder.build()


def _applies(op: Op) -> bool:
    return op.type in _RULES and op.placement.size > 1 and bool(op.attrs["training"])


def _renamed(op: Op, last: dict[str, str]) -> Op:
    """The op with control edges from ops that were taken apart moved to their last part."""
    if not any(name in last for name in op.control):
        return op
    return replace(op, control=tuple(last.get(name, name) for name in op.control))


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch in the type that its statistics have, and what is the same for all channels."""

    x: Sym
    axis: int

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.x.shape)) if i != self.axis)

    @property
    def share(self) -> float:
        """One over the number of elements per channel."""
        return 1 / max(prod(self.x.shape[i] for i in self.others), 1)

    def sum(self, values: Sym) -> Sym:
        """Sums per channel, whole on every device: partial ones would make the batch partial."""
        total = values.maker.one("reduce_sum", values, axis=self.others, keepdims=False)
        return _lying(total, (B,) * len(values.maker.placement.hierarchy))

    def wide(self, vector: Sym) -> Sym:
        """A number per channel, as it broadcasts against the batch."""
        return vector.maker.one("reshape", vector, shape=channel_shape(self.x.shape, self.axis))


def _batch(x: Sym, op: Op) -> _Batch:
    return _Batch(_cast(x, x.dtype.accumulate), op.attrs["axis"] % len(x.shape))


def _cast(value: Sym, dtype: DType) -> Sym:
    return value if value.dtype is dtype else value.maker.one("cast", value, dtype=dtype.name)


def _normalise(maker: Maker, op: Op) -> Parts:
    x, moving_mean, moving_variance, gamma, beta = (Sym(maker, v) for v in op.inputs)
    batch = _batch(x, op)
    dtype = batch.x.dtype
    mean = batch.sum(batch.x) * batch.share
    centred = batch.x - batch.wide(mean)
    variance = batch.sum(maker.one("square", centred)) * batch.share
    inverse = maker.one("rsqrt", variance + op.attrs["epsilon"])
    factor = inverse * _cast(gamma, dtype)
    y = centred * batch.wide(factor) + batch.wide(_cast(beta, dtype))
    count = round(1 / batch.share)
    _move(maker, op, moving_mean, mean)
    _move(maker, op, moving_variance, variance * (count / max(count - 1, 1)))
    return _lying(_cast(y, x.dtype), op.sbp[0] if op.sbp else None), mean, inverse


def _move(maker: Maker, op: Op, moving: Sym, new: Sym) -> None:
    """moving = moving momentum + new (1 - momentum)."""
    momentum = op.attrs["momentum"]
    value = _cast(moving, new.dtype) * momentum + new * (1 - momentum)
    maker.all("assign", moving, _cast(value, moving.dtype))


def _lying(value: Sym, sbp: NdSbp | None) -> Sym:
    """The value in a requested layout, if one is requested."""
    if sbp is None:
        return value
    maker = value.maker
    emitter, place = maker.emitter, maker.placement
    name = emitter.builder.unique_name(f"{maker.prefix}/cast")
    (found,) = emitter.emit(
        "identity", [value.value], placement=place, name=name, line=maker.line, sbp=(sbp,)
    )
    return Sym(maker, found)


def _gradient(maker: Maker, op: Op) -> Parts:
    x, dy, mean, inverse, gamma = (Sym(maker, v) for v in op.inputs)
    batch = _batch(x, op)
    dtype = batch.x.dtype
    slope, inverse = _cast(dy, dtype), _cast(inverse, dtype)
    normal = (batch.x - batch.wide(_cast(mean, dtype))) * batch.wide(inverse)
    d_beta, d_gamma = batch.sum(slope), batch.sum(normal * slope)
    shared = batch.wide(d_beta * batch.share) + normal * batch.wide(d_gamma * batch.share)
    dx = (slope - shared) * batch.wide(_cast(gamma, dtype) * inverse)
    return _cast(dx, x.dtype), _cast(d_gamma, gamma.dtype), _cast(d_beta, gamma.dtype)


_RULES: dict[str, Callable[[Maker, Op], Parts]] = {
    "normalization": _normalise,
    "normalization_grad": _gradient,
}
