"""The bytes of an array of varying size in parts whose sizes are powers of two, and back.

The bytes are a header, the size of each axis as int64, and the valid elements in order.  A part
is full or empty, like a digit of a binary number; only the last part may be partly full.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype, char, int8, int32, int64
from flow_core.base.errors import DataError
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.array.valid_rows import valid_rows_of_part
from flow_core.ops.declare import OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import checked_axis
from flow_core.plugins.specs import REQUIRED, InferContext, Sample

HEADER = np.dtype("<i8")
LARGEST = 1 << 40
"""The largest sum of the sizes of parts, in bytes."""


def part_sizes(base_shift: int, out_num: int) -> list[int]:
    """Return the sizes of parts in bytes; the last two are equal, and each other one is doubled.

    >>> part_sizes(2, 4)
    [16, 8, 4, 4]
    """
    base = 1 << base_shift
    return [base << i for i in reversed(range(out_num - 1))] + [base]


def filled(total: int, sizes: Sequence[int]) -> list[int]:
    """Return how many bytes of each part a number of bytes occupies.

    >>> filled(21, [16, 8, 4, 4]), filled(32, [16, 8, 4, 4])
    ([16, 0, 4, 1], [16, 8, 4, 4])
    """
    parts = []
    for size in sizes[:-1]:
        parts.append(size if total >= size else 0)
        total -= parts[-1]
    return [*parts, total]


def _check_numbers(ctx: InferContext, types: Sequence[TensorType]) -> None:
    for found in types:
        ctx.check(found.dtype in (int32, int64) and found.size == 1, f"{found}", "one number")


def _split(x: Array, *size: Any, axis: int, base_shift: int, out_num: int) -> tuple[Array, ...]:
    rows = valid_rows_of_part(0, x.shape[axis], size[0].reshape(-1)[0] if size else x.shape[axis])
    kept = x[(slice(None),) * axis + (slice(rows),)]
    data = np.frombuffer(np.array(kept.shape, HEADER).tobytes() + kept.tobytes(), np.int8)
    sizes = part_sizes(base_shift, out_num)
    counts = filled(data.size, sizes)
    ends = np.cumsum(counts)
    parts = [np.zeros(n, np.int8) for n in sizes]
    for part, end, count in zip(parts, ends, counts, strict=True):
        part[:count] = data[end - count : end]
    return (*parts, *(np.array([n], np.int32) for n in counts))


class DynamicBinarySplit(OpDef):
    """The header and the first ``size`` rows as bytes, in ``out_num`` parts; then the number of
    bytes in each part.
    """

    schema = "dynamic_binary_split(in, size?) -> out*"
    attrs = {"base_shift": 2, "out_num": 2, "axis": 0}
    host = True
    reference = staticmethod(_split)

    def infer(self, ctx: InferContext) -> Types:
        x, *size = ctx.inputs
        number, shift = ctx.attrs["out_num"], ctx.attrs["base_shift"]
        checked_axis(ctx, ctx.attrs["axis"], len(x.shape))
        ctx.check(number >= 2, f"out_num={number}", "2 or more parts")
        fits = shift >= 0 and shift + number - 1 <= LARGEST.bit_length() - 1
        found = f"base_shift={shift}, out_num={number}"
        ctx.check(fits, found, f"parts of at most {LARGEST} bytes altogether")
        _check_numbers(ctx, size)
        hint = "raise out_num; each further part doubles the bytes that the parts hold"
        sizes, need = part_sizes(shift, number), HEADER.itemsize * len(x.shape) + x.nbytes
        found = f"{need} bytes for parts of {sum(sizes)} bytes"
        ctx.check(need <= sum(sizes), found, "all bytes in the parts", hint)
        return (*(tensor_type((n,), char) for n in sizes), *[tensor_type((1,), int32)] * number)

    def samples(self, rng: Rng) -> Samples:
        for shape, rows, axis in (((5,), 0, 0), ((5,), 3, 0), ((4, 3), 2, 0), ((2, 6), 5, 1)):
            attrs = {"base_shift": 3, "out_num": 5, "axis": axis}
            x = rng.integers(-999, 999, shape).astype(np.int32)
            yield Sample((x, np.array([rows], np.int32)), attrs, False, f"{rows} rows")
            yield Sample((x,), attrs, False, "all rows")


def held_bytes(part: Array, count: Array) -> int:
    """Return the number of bytes that a part holds.

    Raises `DataError` if the number is not one of this part.
    """
    number = int(count.reshape(-1)[0])
    if not 0 <= number <= part.size:
        raise DataError(
            "joining the parts of a blob",
            found=f"{number} bytes of a part of {part.size}",
            allowed=f"0 to {part.size}",
        )
    return number


def joined_shape(
    data: Any, shape: tuple[int, ...], itemsize: int, axis: int | None
) -> tuple[int, ...]:
    """Return the shape in the header of joined parts, after a comparison with what is expected.

    Args:
        data: the bytes of all parts, an array of int8.
        shape: the largest shape.
        axis: the axis along which the array may be shorter; None if it may not.

    Raises:
        DataError: the header or the number of bytes differs.
    """
    length = HEADER.itemsize * len(shape)
    found = tuple(data[:length].view(HEADER).tolist()) if len(data) >= length else ()
    allowed = found and all(
        0 <= n <= most if i == axis else n == most
        for i, (n, most) in enumerate(zip(found, shape, strict=True))
    )
    if not allowed or len(data) != length + prod(found) * itemsize:
        raise DataError(
            "joining the parts of a blob",
            found=f"{len(data)} bytes of an array of shape {found or 'unknown'}",
            allowed=f"the parts, in order, of one array of shape {shape} or with fewer rows",
            hint="pass the results of one dynamic_binary_split, and the blob that was split",
        )
    return found


class DynamicBinaryConcat(OpDef):
    """The array that was split into parts, and its number of rows. The inputs are the parts, then
    the number of bytes in each. ``axis`` is None if all rows are there.
    """

    schema = "dynamic_binary_concat(in*) -> out, size"
    attrs = {"shape": REQUIRED, "dtype": REQUIRED, "axis": 0}
    host = True

    def infer(self, ctx: InferContext) -> Types:
        half = len(ctx.inputs) // 2
        shape, axis = tuple(ctx.attrs["shape"]), ctx.attrs["axis"]
        pairs = len(ctx.inputs) >= 4 and len(ctx.inputs) % 2 == 0
        ctx.check(pairs, f"{half} parts", "2 or more parts")
        if axis is not None:
            checked_axis(ctx, axis, len(shape))
        for part in ctx.inputs[:half]:
            is_bytes = len(part.shape) == 1 and part.dtype in (char, int8)
            ctx.check(is_bytes, f"a part of type {part}", "bytes from dynamic_binary_split")
        _check_numbers(ctx, ctx.inputs[half:])
        y = tensor_type(shape, as_dtype(ctx.attrs["dtype"]))
        need, held = HEADER.itemsize * len(shape) + y.nbytes, sum(p.size for p in ctx.inputs[:half])
        found = f"{held} bytes for {y}, which may need {need}"
        ctx.check(need <= held, found, "all parts of the blob")
        return y, tensor_type((1,), int64)

    def reference(
        self, *inputs: Any, shape: Sequence[int], dtype: str, axis: int | None
    ) -> tuple[Array, Array]:
        half = len(inputs) // 2
        counts = (held_bytes(x, n) for x, n in zip(inputs[:half], inputs[half:], strict=True))
        kept = [x[:count] for x, count in zip(inputs[:half], counts, strict=True)]
        data, y = np.concatenate(kept), np.zeros(shape, as_dtype(dtype).numpy)
        found = joined_shape(data, tuple(shape), y.itemsize, axis)
        region = tuple(slice(n) for n in found)
        y[region] = data[HEADER.itemsize * len(found) :].view(y.dtype).reshape(found)
        return y, np.array([found[axis or 0]], np.int64)

    def samples(self, rng: Rng) -> Samples:
        for shape, rows, axis in (((5,), 0, 0), ((4, 3), 2, 0), ((2, 6), 5, 1), ((3, 2), 3, None)):
            x = rng.uniform(-3, 3, shape).astype(np.float32)
            size = np.array([rows], np.int32)
            parts = _split(x, size, axis=axis or 0, base_shift=3, out_num=5)
            attrs = {"shape": shape, "dtype": "float32", "axis": axis}
            yield Sample(parts, attrs, False, f"{rows} rows")


OPS = specs(DynamicBinarySplit, DynamicBinaryConcat)
