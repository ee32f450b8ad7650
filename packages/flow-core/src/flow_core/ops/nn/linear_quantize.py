"""Quantization to int8 and back, as in ONNX: ``QuantizeLinear`` and ``DequantizeLinear``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, ClassVar

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import float32, float64, int8, uint8
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.declare import OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import signatures
from flow_core.plugins.specs import InferContext, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Signatures

LEVELS, FLOATS = (int8, uint8), (float32, float64)
CASES = (((9,), None), ((4, 5), None), ((4, 5), 0), ((3, 2, 4), 2), ((0, 3), None))


def along(numbers: Array, rank: int, axis: int | None) -> Array:
    """Return the scales or zero points in a shape that broadcasts to a tensor of some rank."""
    shape = [1] * rank
    if axis is not None:
        shape[axis] = -1
    return numbers.reshape(shape) if rank else numbers[0]


def quantize(x: Array, scale: Array, zero: Array, work: Array, out: Array) -> None:
    """Write the nearest levels; halves become even, and NaN becomes the lowest level.

    Args:
        scale, zero: the grids, which broadcast; zero points have the type of numbers.
        work: memory like ``x``, which is overwritten.
    """
    ends = np.iinfo(out.dtype)
    np.divide(x, scale, out=work)
    np.rint(work, out=work)
    np.add(work, zero, out=work)
    np.fmax(work, ends.min, out=work)
    np.fmin(work, ends.max, out=work)
    np.copyto(out, work, casting="unsafe")


def dequantize(x: Array, scale: Array, zero: Array, out: Array) -> None:
    """Write the numbers that levels stand for."""
    np.copyto(out, x)
    np.subtract(out, zero, out=out)
    np.multiply(out, scale, out=out)


class _Linear(OpDef):
    """A map between numbers and levels, with one grid or one per index of an axis."""

    attrs = {"axis": None}
    _more: ClassVar[tuple[Any, ...]]

    def _checked(self, ctx: InferContext) -> TensorType:
        """Return the type of the input; check the types of the grid."""
        (x, scale, zero), axis = ctx.inputs, ctx.attrs["axis"]
        rank = len(x.shape)
        ctx.check(axis is None or 0 <= axis < rank, f"axis {axis}", f"None, or 0 to {rank - 1}")
        shape = (1,) if axis is None else (x.shape[axis],)
        fits = scale.shape == zero.shape == shape and scale.dtype in FLOATS
        allowed = f"float32{list(shape)} and int8 or uint8 of the same shape"
        ctx.check(fits and zero.dtype in LEVELS, f"scale {scale} and zero point {zero}", allowed)
        return x

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split all axes; the grids of an axis are split with it."""
        axis = ctx.attrs["axis"]
        grids = [S(0) if i == axis else B for i in range(len(ctx.inputs[0].shape))]
        return signatures(
            *(((S(i), grid, grid), S(i)) for i, grid in enumerate(grids)), *self._more
        )

    def _grids(self, rng: Rng) -> Iterator[tuple[tuple[int, ...], int | None, Array, Array]]:
        """Yield shapes, axes, scales and zero points."""
        for (shape, axis), dtype in product(CASES, LEVELS):
            count = 1 if axis is None else shape[axis]
            scale = 2.0 ** rng.integers(-6, 2, count)
            low, high = (-9, 9) if dtype is int8 else (0, 200)
            yield shape, axis, scale, rng.integers(low, high, count).astype(dtype.numpy)


class QuantizeLinear(_Linear):
    """The levels nearest to ``in / scale + zero_point``, as in ONNX.

    Halves are rounded to even, levels beyond those of the type of ``zero_point`` to its ends, and
    NaN to the lowest level.
    """

    schema = "quantize_linear(in, scale, zero_point) -> out"
    _more = tuple(((B, B, kind), kind) for kind in EXTREMES)

    def infer(self, ctx: InferContext) -> Types:
        x = self._checked(ctx)
        scale = ctx.inputs[1]
        ctx.check(x.dtype is scale.dtype, f"numbers {x} and scale {scale}", "float32")
        return (tensor_type(x.shape, ctx.inputs[2].dtype),)

    def reference(self, x: Array, scale: Array, zero: Array, axis: Any) -> Array:
        out = np.empty(x.shape, zero.dtype)
        scale, wide = (along(grid, x.ndim, axis) for grid in (scale, zero.astype(x.dtype)))
        quantize(x, scale, wide, np.empty_like(x), out)
        return out

    def samples(self, rng: Rng) -> Samples:
        for shape, axis, scale, zero in self._grids(rng):
            steps = rng.integers(-300, 300, shape) + rng.choice([-0.4, 0.0, 0.25, 0.5], shape)
            x = steps * along(scale, len(shape), axis)
            yield Sample((x, scale, zero), {"axis": axis}, False)
        ends = np.array([np.inf, -np.inf, np.nan, 3e4])
        for zero in (np.array([3], np.int8), np.array([3], np.uint8)):
            yield Sample((ends, np.array([0.5]), zero), {}, False, "no finite numbers")


class DequantizeLinear(_Linear):
    """The numbers ``(in - zero_point) * scale``, as in ONNX."""

    schema = "dequantize_linear(in, scale, zero_point) -> out"
    _more = (((B, P, B), P),)

    def infer(self, ctx: InferContext) -> Types:
        x, zero = self._checked(ctx), ctx.inputs[2]
        ctx.check(x.dtype is zero.dtype, f"levels {x} and zero point {zero}", "one type")
        return (tensor_type(x.shape, ctx.inputs[1].dtype),)

    def reference(self, x: Array, scale: Array, zero: Array, axis: Any) -> Array:
        out = np.empty(x.shape, scale.dtype)
        scale, wide = (along(grid, x.ndim, axis) for grid in (scale, zero.astype(scale.dtype)))
        dequantize(x, scale, wide, out)
        return out

    def samples(self, rng: Rng) -> Samples:
        for shape, axis, scale, zero in self._grids(rng):
            ends = np.iinfo(zero.dtype)
            levels = rng.integers(ends.min, ends.max, shape, zero.dtype, endpoint=True)
            # a scale that is no power of two, so that results need all bits of their type
            yield Sample((levels, 1.3 * scale, zero), {"axis": axis}, False)


OPS = specs(QuantizeLinear, DequantizeLinear)
