"""Functions that create constants and ranges, and `tril`.

`range` shadows the builtin in this module.

Args:
    shape: the sizes.
    like: a blob.
    dtype: the element type.

Returns: A blob of the given shape and type.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from flow_core.api.array.shape import check, inner
from flow_core.base.dtypes import DType, as_dtype, float32, int32
from flow_core.base.errors import CompatibilityWarning, user_line
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit_one
from flow_core.frontend.trace.job_build import current_job
from flow_core.ir.graph import AttrValue

__all__ = [
    "constant", "constant_like", "constant_scalar", "elem_cnt", "ones", "ones_like", "range",
    "zeros", "zeros_like",
]  # fmt: skip


def _number(function: str, value: Any, dtype: DType) -> bool | int | float:
    """Return a number as a Python bool, int or float, as the element type requires; integers
    truncate.
    """
    check(isinstance(value, int | float), function, f"value {value!r}", "an int or a float")
    finite = value == value and abs(value) != float("inf")
    check(dtype.is_floating or finite, function, f"value {value} for {dtype}", "a finite number")
    if dtype.is_floating:
        return float(value)
    if dtype.kind == "b":
        return bool(value)
    if value != int(value):
        current_job(f"use of {function}").session.warn(
            f"flow.{function}: {value} for {dtype} is {int(value)}, as in OneFlow: fractions are "
            "dropped",
            CompatibilityWarning,
            user_line(),
        )
    return int(value)


def constant(
    value: int | float,
    dtype: DType | None = None,
    shape: Sequence[int] | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return a blob filled with a number.

    Args:
        value: the number; a fraction for an integer type is dropped, with a warning.
        dtype: element type; required.
        shape: shape of the blob, (1,) by default.

    >>> run(flow.constant, 7, flow.int32, (2,))
    array([7, 7], dtype=int32)
    """
    check(dtype is not None, "constant", "no dtype", "an element type", "dtype=flow.float32")
    wanted, sizes = as_dtype(dtype), tuple(shape or (1,))
    number = _number("constant", value, wanted)
    return emit_one("constant", value=number, dtype=wanted.name, shape=sizes, name=name)


def constant_scalar(
    value: int | float, dtype: DType | None = None, name: str | None = None
) -> BlobDef:
    """Return a `constant` of shape (1,).

    Args:
        value: a number.
        dtype: the element type; by default that of the number.

    Returns: A blob of shape (1,).

    >>> run(flow.constant_scalar, 7, flow.int32)
    array([7], dtype=int32)
    """
    return constant(value, dtype, (1,), name)


def constant_like(
    like: Blob, value: int | float, dtype: DType | None = None, name: str | None = None
) -> BlobDef:
    """Return a blob of the shape, and by default the type, of ``like``, filled with ``value``.

    Args:
        value: a number.
        dtype: the element type; by default that of ``like``.

    Returns: A blob of the shape of ``like``.

    >>> run(flow.constant_like, [1, 2], 7)
    array([7., 7.], dtype=float32)
    """
    wanted = like.dtype if dtype is None else as_dtype(dtype)
    number = _number("constant_like", value, wanted)
    return emit_one("constant_like", like, value=number, dtype=wanted.name, name=name)


def ones_like(like: Blob, dtype: DType | None = None, name: str | None = None) -> BlobDef:
    """Return ones in the shape of a blob; see `constant_like`.

    Args:
        dtype: the element type; by default that of ``like``.

    Returns: A blob of the shape of ``like``.

    >>> run(flow.ones_like, [1, 2])
    array([1., 1.], dtype=float32)
    """
    return constant_like(like, 1, dtype, name)


def zeros_like(like: Blob, dtype: DType | None = None, name: str | None = None) -> BlobDef:
    """Return zeros in the shape of a blob; see `constant_like`.

    Args:
        dtype: the element type; by default that of ``like``.

    Returns: A blob of the shape of ``like``.

    >>> run(flow.zeros_like, [1, 2])
    array([0., 0.], dtype=float32)
    """
    return constant_like(like, 0, dtype, name)


def zeros(shape: Sequence[int], dtype: DType | None = None, name: str | None = None) -> BlobDef:
    """Return a blob of zeros of the given shape, float32 by default.

    >>> run(flow.zeros, (2,))
    array([0., 0.], dtype=float32)
    """
    return constant(0, dtype or float32, shape, inner(name, "constant"))


def ones(shape: Sequence[int], dtype: DType | None = None, name: str | None = None) -> BlobDef:
    """Return a blob of ones of the given shape, float32 by default.

    >>> run(flow.ones, (2,))
    array([1., 1.], dtype=float32)
    """
    return constant(1, dtype or float32, shape, inner(name, "constant"))


def range(
    start: int,
    limit: int | None = None,
    delta: int = 1,
    dtype: DType | None = None,
    name: str | None = "range",
) -> BlobDef:
    """Return the integers from ``start`` (0 if only one bound is given) to ``limit``, exclusive.

    Args:
        start, limit, delta: as for Python's ``range``.
        dtype: element type; required.

    Returns: A blob of rank 1.

    >>> run(flow.range, 2, 10, 3, flow.int32)
    array([2, 5, 8], dtype=int32)
    """
    check(dtype is not None, "range", "no dtype", "an element type", "dtype=flow.int64")
    first, last = (0, start) if limit is None else (start, limit)
    whole = all(isinstance(n, int) for n in (first, last, delta))
    check(whole, "range", f"({start}, {limit}, {delta})", "ints")
    return emit_one(
        "range",
        start=first,
        limit=last,
        delta=delta,
        dtype=as_dtype(dtype).name,
        name=None if name == "range" else name,
    )


def elem_cnt(inputs: Blob, dtype: Any = None, name: str | None = None) -> BlobDef:
    """Return the number of elements of a blob as a constant of shape (1,), int32 by default.

    Args:
        inputs: a blob.
        dtype: the element type of the result.

    Returns: A blob of shape (1,).

    >>> run(flow.elem_cnt, [[1, 2], [3, 4]])
    array([4], dtype=int32)
    """
    return emit_one(
        "constant", value=prod(inputs.shape), dtype=(dtype or int32).name, shape=(1,), name=name
    )


def _fill_attrs(what: str, value: int | float, other: int) -> dict[str, AttrValue]:
    floating = isinstance(value, float)
    return {
        f"is_floating_{what}_value": floating,
        f"floating_{what}_value": float(value if floating else other),
        f"integer_{what}_value": int(other if floating else value),
    }


def tril(
    x: Blob, diagonal: int = 0, fill_value: int | float = 0, name: str | None = None
) -> BlobDef:
    """Return the lower triangles of the matrices on the last two axes, with ``fill_value`` above.

    Args:
        x: a blob with 2 axes or more.
        diagonal: the last diagonal that is kept: 0 is the main diagonal, 1 the diagonal above it.
        fill_value: value of the elements above that diagonal.

    Returns: A blob of the shape and type of ``x``.

    >>> run(flow.nn.tril, [[1, 2], [3, 4]])
    array([[1., 0.],
           [3., 4.]], dtype=float32)
    """
    fill = _fill_attrs("fill", fill_value, 0)
    return emit_one("tril", x, diagonal=diagonal, **fill, name=name)


def fused_scale_tril(
    x: Blob,
    diagonal: int = 0,
    fill_value: int | float = 0,
    scale: int | float = 1,
    name: str | None = None,
) -> BlobDef:
    """Return `tril` of ``x * scale``, computed by one op.

    Args:
        x: a blob of matrices on its last two axes.
        diagonal: the highest diagonal that is kept: 0 for the main diagonal.
        fill_value: the number above this diagonal.
        scale: the factor of ``x``.

    Returns: A blob of the shape and type of ``x``.

    >>> run(flow.nn.fused_scale_tril, [[1, 2], [3, 4]], scale=2)
    array([[2., 0.],
           [6., 8.]], dtype=float32)
    """
    attrs = {**_fill_attrs("fill", fill_value, 0), **_fill_attrs("scale", scale, 1)}
    return emit_one("fused_scale_tril", x, diagonal=diagonal, **attrs, name=name)
