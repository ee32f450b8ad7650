"""Batch normalization over several devices: statistics from sums over the parts of the batch.

A single normalization op needs the whole batch on every device.  This pass decomposes the op into
sums, which each device computes as partial results.  Training then needs two all-reduces of one
number per channel: one for the mean, and one for the variance, which is computed from centered
values to avoid cancellation.  The gradient also needs two all-reduces, which the gradients of the
parameters require anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from flow_core.ir.graph import Graph, Op
from flow_core.ops.build import Maker, Sym
from flow_core.ops.nn.norm import channel_shape
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.decomposition import Parts, Rule, cast_to, decompose, with_sbp
from flow_core.sharding.sbp import B


@dataclass(frozen=True)
class BatchStatistics:
    """A pass that decomposes training normalization and its gradient on several devices."""

    name: str = "batch_statistics"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph in which no ``normalization`` op has a batch split over devices."""
        rules = {op.name: _RULES[op.type] for op in graph.ops.values() if _applies(op)}
        return decompose(graph, context, rules) if rules else graph


def _applies(op: Op) -> bool:
    return op.type in _RULES and op.placement.size > 1 and bool(op.attrs["training"])


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch, cast to the element type of its statistics, and its channel axis."""

    x: Sym
    axis: int

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.x.shape)) if i != self.axis)

    @property
    def share(self) -> float:
        """The reciprocal of the number of elements per channel."""
        return 1 / max(prod(self.x.shape[i] for i in self.others), 1)

    def sum(self, values: Sym) -> Sym:
        """Return the sums per channel, broadcast to all devices.

        If the sums stayed partial, values computed from the sums and the batch would be partial.
        """
        total = values.maker.one("reduce_sum", values, axis=self.others, keepdims=False)
        return with_sbp(total, (B,) * len(values.maker.placement.hierarchy))

    def wide(self, vector: Sym) -> Sym:
        """Reshape a vector of one number per channel so that it broadcasts against the batch."""
        return vector.maker.one("reshape", vector, shape=channel_shape(self.x.shape, self.axis))


def _batch(x: Sym, op: Op) -> _Batch:
    return _Batch(cast_to(x, x.dtype.accumulate), op.attrs["axis"] % len(x.shape))


def _normalize(maker: Maker, op: Op) -> Parts:
    x, moving_mean, moving_variance, gamma, beta = (Sym(maker, v) for v in op.inputs)
    batch = _batch(x, op)
    dtype = batch.x.dtype
    mean = batch.sum(batch.x) * batch.share
    centered = batch.x - batch.wide(mean)
    variance = batch.sum(maker.one("square", centered)) * batch.share
    inverse = maker.one("rsqrt", variance + op.attrs["epsilon"])
    factor = inverse * cast_to(gamma, dtype)
    y = centered * batch.wide(factor) + batch.wide(cast_to(beta, dtype))
    count = round(1 / batch.share)
    _move(maker, op, moving_mean, mean)
    _move(maker, op, moving_variance, variance * (count / max(count - 1, 1)))
    return with_sbp(cast_to(y, x.dtype), op.sbp[0] if op.sbp else None), mean, inverse


def _move(maker: Maker, op: Op, moving: Sym, new: Sym) -> None:
    """Update a moving statistic: moving = moving * momentum + new * (1 - momentum)."""
    momentum = op.attrs["momentum"]
    value = cast_to(moving, new.dtype) * momentum + new * (1 - momentum)
    maker.all("assign", moving, cast_to(value, moving.dtype))


def _gradient(maker: Maker, op: Op) -> Parts:
    x, dy, mean, inverse, gamma = (Sym(maker, v) for v in op.inputs)
    batch = _batch(x, op)
    dtype = batch.x.dtype
    slope, inverse = cast_to(dy, dtype), cast_to(inverse, dtype)
    normal = (batch.x - batch.wide(cast_to(mean, dtype))) * batch.wide(inverse)
    d_beta, d_gamma = batch.sum(slope), batch.sum(normal * slope)
    shared = batch.wide(d_beta * batch.share) + normal * batch.wide(d_gamma * batch.share)
    dx = (slope - shared) * batch.wide(cast_to(gamma, dtype) * inverse)
    return cast_to(dx, x.dtype), cast_to(d_gamma, gamma.dtype), cast_to(d_beta, gamma.dtype)


_RULES: dict[str, Rule] = {"normalization": _normalize, "normalization_grad": _gradient}
