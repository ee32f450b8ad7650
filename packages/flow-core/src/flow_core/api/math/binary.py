"""Elementwise functions of two blobs or of a blob and numbers, and functions that select elements.

Shapes broadcast as in numpy; element types must be equal.  A Python number takes the element type
of the other operand.

Args:
    x, y: blobs of one element type whose shapes broadcast, or one blob and one number.

Returns: A blob of the broadcast shape of ``x`` and ``y``.

Raises:
    InferenceError: the types differ, or the shapes do not broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flow_core.api.arguments import inner
from flow_core.api.array.dynamic import argwhere
from flow_core.api.math.operands import Operand, pair
from flow_core.api.math.unary import reciprocal_no_nan, square
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.errors import InferenceError
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit_one
from flow_core.frontend.trace.operators import operand_of

__all__ = [
    "add", "add_n", "atan2", "cast", "clamp", "clip", "clip_by_scalar", "clip_by_value",
    "divide", "floordiv", "masked_fill", "mod", "multiply", "polyval", "pow",
    "squared_difference", "subtract", "where", "xdivy", "xlogy",
]  # fmt: skip

INT64 = 2**63


def _with_number(
    op_type: str,
    x: Blob,
    value: Operand,
    name: str | None,
    change: Callable[[float], float] = lambda number: number,
) -> BlobDef:
    x = checked_blob(x)
    return emit_one(op_type, x, operand=operand_of(x, value, change), name=name)


def _inverse(number: float) -> float:
    return 1.0 / number if number else 0.0


def add(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x + y``; ``x`` or ``y`` may be a number.

    >>> run(flow.math.add, [1, 2], [4, 8])
    array([ 5., 10.], dtype=float32)
    """
    if isinstance(x, BlobDef) and not isinstance(y, BlobDef):
        return _with_number("scalar_add", x, y, name)
    if isinstance(y, BlobDef) and not isinstance(x, BlobDef):
        return _with_number("scalar_add", y, x, name)
    return pair("add", x, y, name)


def subtract(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x - y``; ``x`` or ``y`` may be a number.

    >>> run(flow.math.subtract, [1, 2], [4, 8])
    array([-3., -6.], dtype=float32)
    """
    if isinstance(x, BlobDef) and not isinstance(y, BlobDef):
        return _with_number("scalar_add", x, y, name, lambda number: -number)
    if isinstance(y, BlobDef) and not isinstance(x, BlobDef):
        opposite = emit_one("negative", y, name=inner(name, "negative"))
        return _with_number("scalar_add", opposite, x, name)
    return pair("sub", x, y, name)


def multiply(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x * y``; ``x`` or ``y`` may be a number.

    >>> run(flow.math.multiply, [1, 2], [4, 8])
    array([ 4., 16.], dtype=float32)
    """
    if isinstance(x, BlobDef) and not isinstance(y, BlobDef):
        return _with_number("scalar_mul", x, y, name)
    if isinstance(y, BlobDef) and not isinstance(x, BlobDef):
        return _with_number("scalar_mul", y, x, name)
    return pair("mul", x, y, name)


def divide(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x / y``, with truncated integer quotients; ``x`` or ``y`` may be a number.

    As in OneFlow, the quotient of a floating-point blob and the number 0 is 0, and the quotient of
    a number and a blob is 0 where the blob is 0.

    >>> run(flow.math.divide, [1, 2], [4, 8])
    array([0.25, 0.25], dtype=float32)
    """
    if isinstance(x, BlobDef) and not isinstance(y, BlobDef) and x.dtype.is_floating:
        return _with_number("scalar_mul", x, y, name, _inverse)
    if isinstance(y, BlobDef) and not isinstance(x, BlobDef) and y.dtype.is_floating:
        inverse = reciprocal_no_nan(y, name=inner(name, "reciprocal"))
        return _with_number("scalar_mul", inverse, x, name)
    return pair("div", x, y, name)


def mod(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return the remainder of ``x / y``, with the sign of ``y``.

    >>> run(flow.math.mod, [7, -7], [3, 3])
    array([1., 2.], dtype=float32)
    """
    return pair("floor_mod", x, y, name)


def floordiv(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x / y`` rounded down.

    >>> run(flow.math.floordiv, [7, -7], [2, 2])
    array([ 3., -4.], dtype=float32)
    """
    return pair("floordiv", x, y, name)


def pow(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x`` raised to the power ``y``, which may be a number; for floating types only.

    Args:
        x: a floating-point blob.
        y: a blob of the same type whose shape broadcasts, or a number.

    >>> run(flow.math.pow, [2, 3], [3, 2])
    array([8., 9.], dtype=float32)
    """
    if isinstance(x, BlobDef) and not isinstance(y, BlobDef):
        return emit_one("scalar_pow", x, exponent=float(operand_of(x, y)), name=name)
    return pair("pow", x, y, name)


def atan2(x: Blob, y: Blob, name: str | None = None) -> BlobDef:
    """Return the angle of the points (y, x) in radians, from -pi to pi: arctan of ``x / y``.

    Args:
        x, y: blobs of one element type whose shapes broadcast.

    >>> run(flow.math.atan2, [1, -1], [1, 0]).round(4)
    array([ 0.7854, -1.5708], dtype=float32)
    """
    return emit_one("atan2", x, y, name=name)


def xdivy(x: Blob, y: Blob, name: str | None = None) -> BlobDef:
    """Return ``x / y``, or 0 where ``x`` is 0, whatever ``y`` is.

    Args:
        x, y: blobs of one element type whose shapes broadcast.

    >>> run(flow.math.xdivy, [0, 1], [0, 2])
    array([0. , 0.5], dtype=float32)
    """
    return emit_one("xdivy", x, y, name=name)


def xlogy(x: Blob, y: Blob, name: str | None = None) -> BlobDef:
    """Return ``x * log(y)``, or 0 where ``x`` is 0, whatever ``y`` is.

    Args:
        x, y: blobs of one element type whose shapes broadcast.

    >>> run(flow.math.xlogy, [0, 1], [0, 10]).round(4)
    array([0.    , 2.3026], dtype=float32)
    """
    return emit_one("xlogy", x, y, name=name)


def squared_difference(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``(x - y) ** 2``; ``x`` or ``y`` may be a number.

    >>> run(flow.math.squared_difference, [1, 2], [4, 8])
    array([ 9., 36.], dtype=float32)
    """
    return square(subtract(x, y, name=inner(name, "subtract")), name=name)


def add_n(inputs: Sequence[Blob], name: str | None = None) -> BlobDef:
    """Return the sum of blobs of one shape and element type.

    Args:
        inputs: a list of blobs of one shape and element type.

    Returns: A blob of the shape and type of the inputs.

    Raises: InferenceError: there are no blobs, or their types differ.

    >>> run(lambda x, y: flow.math.add_n([x, y, x]), [1, 2], [10, 20])
    array([12., 24.], dtype=float32)
    """
    return emit_one("add_n", *inputs, name=name)


def polyval(coeffs: Sequence[float], x: Blob, name: str | None = None) -> BlobDef:
    """Return a polynomial of each element; ``coeffs`` starts with that of the highest power.

    Args:
        coeffs: a list of numbers or blobs.

    Returns: A blob of the shape and type of ``x``.

    Raises: InferenceError: ``coeffs`` is not a list or tuple.

    >>> run(lambda x: flow.math.polyval([2, 0, 1], x), [0, 1, 2])
    array([1., 3., 9.], dtype=float32)
    """
    if not isinstance(coeffs, list | tuple):
        raise InferenceError.at_caller(
            "flow.math.polyval",
            found=f"coefficients {coeffs!r:.60}",
            allowed="a list or tuple of numbers",
        )
    total = emit_one("zero_like", x, name=None if coeffs else name)
    for i, coefficient in enumerate(coeffs):
        last = i == len(coeffs) - 1
        scaled = multiply(total, x) if i else total
        total = add(scaled, coefficient, name if last else None)
    return total


def _integral(value: float) -> int:
    """Return a bound for an integer type; infinities become the bounds of int64."""
    return int(max(-INT64, min(value, INT64 - 1)))


def clip_by_value(
    values: Blob,
    min_value: float | None = None,
    max_value: float | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return each element limited to [``min_value``, ``max_value``]; either bound may be None.

    Args:
        values: a blob.
        min_value: the lower bound, or None.
        max_value: the upper bound, or None.

    Returns: A blob of the shape and type of ``values``.

    Raises: InferenceError: neither bound is given.

    >>> run(flow.clip_by_value, [-1.5, 2, 8], 0, 6)
    array([0., 2., 6.], dtype=float32)
    """
    bounds = {"min": min_value, "max": max_value}
    given = {side: value for side, value in bounds.items() if value is not None}
    if not given:
        raise InferenceError.at_caller(
            "flow.clip_by_value",
            found="min_value=None and max_value=None",
            allowed="at least one limit",
        )
    attrs: dict[str, float] = {f"floating_{side}": float(v) for side, v in given.items()}
    attrs |= {f"integral_{side}": _integral(v) for side, v in given.items()}
    suffix = "" if len(given) == 2 else f"_{next(iter(given))}"
    return emit_one(f"clip_by_scalar{suffix}", values, name=name, **attrs)


clip_by_scalar = clip = clamp = clip_by_value


def cast(x: Blob, dtype: DType, name: str | None = None) -> BlobDef:
    """Return ``x`` converted to an element type; conversion to integers truncates.

    Args:
        dtype: the element type of the result.

    Returns: A blob of the shape of ``x``.

    Raises: InferenceError: ``dtype`` is not an element type.

    >>> run(flow.cast, [-1.5, 0.9, 2], flow.int32)
    array([-1,  0,  2], dtype=int32)
    """
    x = checked_blob(x)
    target = as_dtype(dtype)
    return x if x.dtype is target else emit_one("cast", x, dtype=target.name, name=name)


def where(
    condition: Blob, x: Blob | None = None, y: Blob | None = None, name: str | None = None
) -> BlobDef:
    """Return elements of ``x`` where ``condition`` is not 0, else those of ``y``; shapes broadcast.

    Without ``x`` and ``y``, return `flow.argwhere` of the condition.

    Args:
        condition: a blob of numbers.
        x, y: blobs of one element type, or None for both.

    Returns: A blob of the broadcast shape of all arguments.

    Raises: InferenceError: only one of ``x`` and ``y`` is given, or their element types differ.

    >>> run(flow.where, np.int32([1, 0]), [1, 2], [10, 20])
    array([ 1., 20.], dtype=float32)
    """
    if x is not None and y is not None:
        return emit_one("where", condition, x, y, name=name)
    if x is None and y is None:
        return argwhere(condition, name=name)
    raise InferenceError.at_caller(
        "flow.where", found="only one of x and y", allowed="both of them"
    )


def masked_fill(x: Blob, mask: Blob, value: float, name: str | None = None) -> BlobDef:
    """Return ``value`` where ``mask`` is not 0, else the elements of ``x``; shapes broadcast.

    Args:
        mask: a blob whose shape broadcasts with that of ``x``.
        value: a number.

    Returns: A blob of the broadcast shape.

    >>> run(flow.masked_fill, [1, 2, 3], np.int8([0, 1, 0]), -1)
    array([ 1., -1.,  3.], dtype=float32)
    """
    x = checked_blob(x)
    mask = checked_blob(mask)
    return emit_one("where_scalar_x", mask, x, operand=operand_of(x, value), name=name)
