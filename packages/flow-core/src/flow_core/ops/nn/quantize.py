"""Quantization in training: ops that observe scales, and that round to the grid of a scale."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import int64
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import floating_like_input, signatures
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Sbp, Signatures

QUANTIZED = {"quantization_bit": 8, "quantization_scheme": "symmetric"}
SCHEMES = ("symmetric", "affine")
SHAPES = ((9,), (4, 5), (3, 2, 4))


def levels(attrs: Mapping[str, AttrValue]) -> int:
    """Return the largest integer of the grid; the symmetric scheme uses one bit for the sign.

    >>> levels({"quantization_bit": 8, "quantization_scheme": "symmetric"})
    127
    >>> levels({"quantization_bit": 4, "quantization_scheme": "affine"})
    15
    """
    signs = 1 if is_symmetric(attrs) else 0
    return int(2 ** (attrs["quantization_bit"] - signs)) - 1


def is_symmetric(attrs: Mapping[str, AttrValue]) -> bool:
    """Return whether the grid is symmetric around zero."""
    return bool(attrs["quantization_scheme"] == "symmetric")


def _check(ctx: InferContext) -> TensorType:
    bits, scheme = ctx.attrs["quantization_bit"], ctx.attrs["quantization_scheme"]
    ctx.check(2 <= bits <= 8, f"quantization_bit {bits}", "2 to 8")
    ctx.check(scheme in SCHEMES, f"quantization_scheme {scheme!r}", '"symmetric" or "affine"')
    return floating_like_input(ctx)[0]


def range_to_grid(high: Array, low: Array, attrs: Mapping[str, AttrValue]) -> None:
    """Convert a range, in place, to the grid: its step and its zero point."""
    if is_symmetric(attrs):
        np.divide(high, levels(attrs), out=high)
        low.fill(0)
        return
    np.subtract(high, low, out=high)
    np.divide(high, levels(attrs), out=high)
    np.divide(low, high, out=low)
    np.negative(low, out=low)


def rows_of(x: Array, attrs: Mapping[str, AttrValue]) -> Array:
    """Return a tensor with one row per grid."""
    return x.reshape((1 if attrs["per_layer_quantization"] else len(x), -1))


def observe(rows: Array, scale: Array, zero: Array, attrs: Mapping[str, AttrValue]) -> None:
    """Write the scale and the zero point of each row."""
    np.max(rows, axis=1, out=scale)
    np.min(rows, axis=1, out=zero)
    if is_symmetric(attrs):
        np.abs(scale, out=scale)
        np.abs(zero, out=zero)
        np.maximum(scale, zero, out=scale)
    range_to_grid(scale, zero, attrs)


class MinMaxObserver(OpDef):
    """The grid that covers all elements of a tensor, or of each of its rows."""

    schema = "min_max_observer(in) -> scale, zero_point"
    attrs = {**QUANTIZED, "per_layer_quantization": True}

    def infer(self, ctx: InferContext) -> Types:
        x, whole = _check(ctx), ctx.attrs["per_layer_quantization"]
        ctx.check(x.size and x.shape, f"an input of type {x}", "elements, and rank 1 or more")
        made = tensor_type((1,) if whole else x.shape[:1], x.dtype)
        return made, made

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Map splits to P(max) if the tensor has one scale; else split the rows."""
        rank = len(ctx.inputs[0].shape)
        whole, symmetric = ctx.attrs["per_layer_quantization"], is_symmetric(ctx.attrs)
        rows = () if whole else signatures((S(0), (S(0), S(0))))
        if not symmetric:
            return rows
        first = 0 if whole else 1
        return signatures(*rows, *((S(i), (EXTREMES[0], B)) for i in range(first, rank)))

    def reference(self, x: Array, **attrs: AttrValue) -> tuple[Array, Array]:
        rows = rows_of(x, attrs)
        scale, zero = (np.empty(len(rows), x.dtype) for _ in range(2))
        observe(rows, scale, zero, attrs)
        return scale, zero

    def samples(self, rng: Rng) -> Samples:
        for shape, scheme, whole in product(SHAPES, SCHEMES, (True, False)):
            if whole or len(shape) > 1:
                attrs = {"quantization_scheme": scheme, "per_layer_quantization": whole}
                yield Sample((rng.uniform(-3, 3, shape),), attrs, False)
        yield Sample((rng.uniform(1, 3, (4, 5)),), {"quantization_bit": 2}, False)


def move(x: Array, step: Array, high: Array, low: Array, attrs: Mapping[str, AttrValue]) -> None:
    """Update the moving maximum and minimum, which the first observation initializes."""
    if not attrs["training"] or step[0] > attrs["stop_update_after_iters"]:
        return
    above, below = x.max(), x.min()
    if is_symmetric(attrs):
        _average(high, max(abs(above), abs(below)), attrs["momentum"])
        low[...] = high
    else:
        _average(high, above, attrs["momentum"])
        _average(low, below, attrs["momentum"])


def _average(mean: Array, new: Array, momentum: float) -> None:
    mean[0] = new if mean[0] == 0 else mean[0] * momentum + new * (1 - momentum)


def _averaged(mean: Array, new: Any, momentum: float) -> Any:
    return np.where(mean == 0, new, mean * momentum + new * (1 - momentum))


class MovingAverageMinMaxObserver(OpDef):
    """The grid of the moving averages of maximum and minimum, which training updates."""

    schema = (
        "moving_average_min_max_observer(in, current_train_step, moving_max, moving_min)"
        " -> scale, zero_point"
    )
    attrs = {
        "training": REQUIRED, "stop_update_after_iters": REQUIRED, **QUANTIZED, "momentum": 0.95,
    }  # fmt: skip
    mutates = (2, 3)
    mutates_if = "training"
    effect = True

    def infer(self, ctx: InferContext) -> Types:
        x = _check(ctx)
        ctx.check(x.size or not ctx.attrs["training"], f"an input of type {x}", "elements")
        kept = tensor_type((1,), x.dtype)
        _, step, *moving = ctx.inputs
        fits = step == tensor_type((1,), int64) and all(t == kept for t in moving)
        ctx.check(fits, f"{step} and {', '.join(map(str, moving))}", f"int64[1] and twice {kept}")
        return kept, kept

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split nothing in training, which reads the whole tensor; else the tensor is not read."""
        if ctx.attrs["training"]:
            return ()
        kinds: tuple[Sbp, ...] = (*map(S, range(len(ctx.inputs[0].shape))), P)
        return signatures(*(((kind, B, B, B), (B, B)) for kind in kinds))

    def reference(
        self, x: Array, step: Array, high: Array, low: Array, **attrs: AttrValue
    ) -> tuple[Array, Array, Array, Array]:
        symmetric, top = is_symmetric(attrs), levels(attrs)
        if attrs["training"] and step[0] <= attrs["stop_update_after_iters"]:
            above, below = x.max(), x.min()
            if symmetric:
                above = below = np.maximum(abs(above), abs(below))
            high = _averaged(high, above, attrs["momentum"])
            low = high if symmetric else _averaged(low, below, attrs["momentum"])
        if symmetric:
            return high / top, np.zeros_like(low), high.copy(), low.copy()
        scale = (high - low) / top
        return scale, -low / scale, high.copy(), low.copy()

    def samples(self, rng: Rng) -> Samples:
        step = np.zeros(1, np.int64)
        for scheme in SCHEMES:
            for training, start in ((True, 0.0), (True, 2.0), (False, 1.5)):
                attrs = {"quantization_scheme": scheme, "training": training, **STOP}
                high, low = np.array([start]), np.array([-start])
                yield Sample((rng.uniform(-3, 3, (4, 5)), step, high, low), attrs, False)
            for stop in (1, 2):
                late = np.array([2]), np.array([1.5]), np.array([-1.5])
                attrs = {**STOP, "stop_update_after_iters": stop, "quantization_bit": 4}
                attrs |= {"quantization_scheme": scheme, "training": True}
                yield Sample((rng.uniform(-3, 3, (4, 5)), *late), attrs, False, "the last updates")


STOP = {"stop_update_after_iters": 1, "momentum": 0.75}


def round_to_grid(
    x: Array, scale: Array, zero: Array, out: Array, halves: Array, attrs: Mapping[str, AttrValue]
) -> None:
    """Write ``x`` rounded to the grid to ``out``.

    Halves round away from zero, as in C and unlike numpy; ``halves`` is scratch memory.
    """
    top, symmetric = levels(attrs), is_symmetric(attrs)
    np.divide(x, scale, out=out)
    if not symmetric:
        np.add(out, zero, out=out)
    np.copysign(0.5, out, out=halves)
    np.add(out, halves, out=out)
    np.trunc(out, out=out)
    np.clip(out, -top if symmetric else 0, top, out=out)
    if not symmetric:
        np.subtract(out, zero, out=out)
    np.multiply(out, scale, out=out)


def per_row(numbers: Array, rank: int) -> Array:
    """Return one number per row, in a shape that broadcasts to a tensor of some rank."""
    return numbers.reshape((-1, *(1,) * (rank - 1)))


class FakeQuantization(OpDef):
    """The nearest number of a grid; the gradient passes unchanged."""

    schema = "fake_quantization(in, scale, zero_point) -> out"
    attrs = QUANTIZED

    def infer(self, ctx: InferContext) -> Types:
        x = _check(ctx)
        _, scale, zero = ctx.inputs
        sizes = ((1,), x.shape[:1])
        fits = scale.shape == zero.shape and scale.shape in sizes
        ctx.check(fits, f"scale {scale} and zero point {zero} for {x}", "one, or one per row")
        alike = scale.dtype is x.dtype and zero.dtype is x.dtype
        ctx.check(alike, f"scale {scale} and zero point {zero} for {x}", "one element type")
        return (x,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split like an elementwise op; split per-row grids by row.  Zero points may be unread."""
        rows = 1 if ctx.inputs[1].shape[0] > 1 else 0
        unread: tuple[Sbp, ...] = (B, P) if is_symmetric(ctx.attrs) else (B,)
        axes = range(rows, len(ctx.inputs[0].shape))
        return signatures(
            *(((B, B, zero), B) for zero in unread[1:]),
            *[((S(0), S(0), S(0)), S(0))][:rows],
            *(((S(i), B, zero), S(i)) for i in axes for zero in unread),
        )

    def gradient(self, g: GradContext) -> Gradients:
        """Return dy unchanged, as if there were no rounding (straight-through estimator)."""
        return g.dy, None, None

    def reference(self, x: Array, scale: Array, zero: Array, **attrs: AttrValue) -> Array:
        scale, zero = (per_row(numbers, x.ndim) for numbers in (scale, zero))
        out = np.empty_like(x)
        round_to_grid(x, scale, zero, out, np.empty_like(x), attrs)
        return out

    def samples(self, rng: Rng) -> Samples:
        for shape, scheme, whole in product(SHAPES, SCHEMES, (True, False)):
            rows, bits = (1, 8) if whole else (shape[0], 5)
            scale, zero = rng.uniform(0.02, 0.06, rows), rng.integers(0, 50, rows) * 1.0
            attrs = {"quantization_scheme": scheme, "quantization_bit": bits}
            yield Sample((rng.uniform(-3, 3, shape), scale, zero), attrs, False)


OPS = specs(MinMaxObserver, MovingAverageMinMaxObserver, FakeQuantization)
