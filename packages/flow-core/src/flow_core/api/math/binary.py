"""Elementwise functions of two blobs or of a blob and numbers, and functions that select elements.

Shapes broadcast as in numpy; element types must be equal.  A Python number takes the element type
of the other operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flow_core.api.arguments import inner
from flow_core.api.array.dynamic import argwhere
from flow_core.api.math.unary import reciprocal_no_nan, square
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.errors import InferenceError, user_line
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit_one
from flow_core.frontend.trace.operators import as_blob, operand_of

__all__ = [
    "add",
    "add_n",
    "atan2",
    "cast",
    "clamp",
    "clip",
    "clip_by_scalar",
    "clip_by_value",
    "divide",
    "equal",
    "floordiv",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "masked_fill",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "not_equal",
    "polyval",
    "pow",
    "squared_difference",
    "subtract",
    "where",
    "xdivy",
    "xlogy",
]

Operand = Blob | float
INT64 = 2**63


def _both(x: Operand, y: Operand, function: str) -> tuple[BlobDef, BlobDef]:
    """Return two blobs; a number becomes a constant of the element type of the other operand."""
    if isinstance(x, BlobDef):
        return x, as_blob(y, like=x)
    if isinstance(y, BlobDef):
        return as_blob(x, like=y), y
    raise InferenceError(
        f"flow.math.{function}",
        at=user_line(),
        found=f"{x!r:.60} and {y!r:.60}",
        allowed="at least one blob",
    )


def _pair(kind: str, x: Operand, y: Operand, name: str | None) -> BlobDef:
    first, second = _both(x, y, kind)
    return emit_one(f"broadcast_{kind}", first, second, name=name)


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
    """Return ``x + y``; ``x`` or ``y`` may be a number."""
    if isinstance(x, BlobDef) and not isinstance(y, BlobDef):
        return _with_number("scalar_add", x, y, name)
    if isinstance(y, BlobDef) and not isinstance(x, BlobDef):
        return _with_number("scalar_add", y, x, name)
    return _pair("add", x, y, name)


def subtract(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x - y``; ``x`` or ``y`` may be a number."""
    if isinstance(x, BlobDef) and not isinstance(y, BlobDef):
        return _with_number("scalar_add", x, y, name, lambda number: -number)
    if isinstance(y, BlobDef) and not isinstance(x, BlobDef):
        opposite = emit_one("negative", y, name=inner(name, "negative"))
        return _with_number("scalar_add", opposite, x, name)
    return _pair("sub", x, y, name)


def multiply(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x * y``; ``x`` or ``y`` may be a number."""
    if isinstance(x, BlobDef) and not isinstance(y, BlobDef):
        return _with_number("scalar_mul", x, y, name)
    if isinstance(y, BlobDef) and not isinstance(x, BlobDef):
        return _with_number("scalar_mul", y, x, name)
    return _pair("mul", x, y, name)


def divide(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x / y``, with truncated integer quotients; ``x`` or ``y`` may be a number.

    As in OneFlow, the quotient of a floating-point blob and the number 0 is 0, and the quotient of
    a number and a blob is 0 where the blob is 0.
    """
    if isinstance(x, BlobDef) and not isinstance(y, BlobDef) and x.dtype.is_floating:
        return _with_number("scalar_mul", x, y, name, _inverse)
    if isinstance(y, BlobDef) and not isinstance(x, BlobDef) and y.dtype.is_floating:
        inverse = reciprocal_no_nan(y, name=inner(name, "reciprocal"))
        return _with_number("scalar_mul", inverse, x, name)
    return _pair("div", x, y, name)


def mod(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return the remainder of ``x / y``, with the sign of ``y``."""
    return _pair("floor_mod", x, y, name)


def floordiv(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x / y`` rounded down."""
    return _pair("floordiv", x, y, name)


def pow(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``x`` raised to the power ``y``, which may be a number; for floating types only."""
    if isinstance(x, BlobDef) and not isinstance(y, BlobDef):
        return emit_one("scalar_pow", x, exponent=float(operand_of(x, y)), name=name)
    return _pair("pow", x, y, name)


def atan2(x: Blob, y: Blob, name: str | None = None) -> BlobDef:
    """Return the angle of the points (y, x) in radians, from -pi to pi: arctan of ``x / y``."""
    return emit_one("atan2", x, y, name=name)


def xdivy(x: Blob, y: Blob, name: str | None = None) -> BlobDef:
    """Return ``x / y``, or 0 where ``x`` is 0, whatever ``y`` is."""
    return emit_one("xdivy", x, y, name=name)


def xlogy(x: Blob, y: Blob, name: str | None = None) -> BlobDef:
    """Return ``x * log(y)``, or 0 where ``x`` is 0, whatever ``y`` is."""
    return emit_one("xlogy", x, y, name=name)


def maximum(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return the elementwise maximum; in a tie, ``y`` receives the gradient."""
    return _pair("maximum", x, y, name)


def minimum(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return the elementwise minimum; in a tie, ``y`` receives the gradient."""
    return _pair("minimum", x, y, name)


def squared_difference(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return ``(x - y) ** 2``; ``x`` or ``y`` may be a number."""
    return square(subtract(x, y, name=inner(name, "subtract")), name=name)


def equal(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where the elements are equal, otherwise 0; int8."""
    return _pair("equal", x, y, name)


def not_equal(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where the elements differ, otherwise 0; int8."""
    return _pair("not_equal", x, y, name)


def less(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where ``x < y``, otherwise 0; int8."""
    return _pair("less", x, y, name)


def less_equal(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where ``x <= y``, otherwise 0; int8."""
    return _pair("less_equal", x, y, name)


def greater(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where ``x > y``, otherwise 0; int8."""
    return _pair("greater", x, y, name)


def greater_equal(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where ``x >= y``, otherwise 0; int8."""
    return _pair("greater_equal", x, y, name)


def logical_and(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where neither element is 0, otherwise 0; int8."""
    return _pair("logical_and", x, y, name)


def add_n(inputs: Sequence[Blob], name: str | None = None) -> BlobDef:
    """Return the sum of blobs of one shape and element type.

    Raises:
        InferenceError: there are no blobs, or their types differ.
    """
    return emit_one("add_n", *inputs, name=name)


def polyval(coeffs: Sequence[float], x: Blob, name: str | None = None) -> BlobDef:
    """Return a polynomial of each element; ``coeffs`` starts with that of the highest power.

    Raises:
        InferenceError: ``coeffs`` is not a list or tuple.
    """
    if not isinstance(coeffs, list | tuple):
        raise InferenceError(
            "flow.math.polyval",
            at=user_line(),
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

    Raises:
        InferenceError: neither bound is given.
    """
    bounds = {"min": min_value, "max": max_value}
    given = {side: value for side, value in bounds.items() if value is not None}
    if not given:
        raise InferenceError(
            "flow.clip_by_value",
            at=user_line(),
            found="min_value=None and max_value=None",
            allowed="at least one limit",
        )
    attrs: dict[str, float] = {f"floating_{side}": float(v) for side, v in given.items()}
    attrs |= {f"integral_{side}": _integral(v) for side, v in given.items()}
    suffix = "" if len(given) == 2 else f"_{next(iter(given))}"
    return emit_one(f"clip_by_scalar{suffix}", values, name=name, **attrs)


clip_by_scalar = clip = clamp = clip_by_value


def cast(x: Blob, dtype: DType, name: str | None = None) -> BlobDef:
    """Return ``x`` converted to an element type; conversion to integers truncates."""
    x = checked_blob(x)
    target = as_dtype(dtype)
    return x if x.dtype is target else emit_one("cast", x, dtype=target.name, name=name)


def where(
    condition: Blob,
    x: Blob | None = None,
    y: Blob | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return elements of ``x`` where ``condition`` is not 0, else those of ``y``; shapes broadcast.

    Without ``x`` and ``y``, return `flow.argwhere` of the condition.

    Raises:
        InferenceError: only one of ``x`` and ``y`` is given, or their element types differ.
    """
    if x is not None and y is not None:
        return emit_one("where", condition, x, y, name=name)
    if x is None and y is None:
        return argwhere(condition, name=name)
    raise InferenceError(
        "flow.where", at=user_line(), found="only one of x and y", allowed="both of them"
    )


def masked_fill(x: Blob, mask: Blob, value: float, name: str | None = None) -> BlobDef:
    """Return ``value`` where ``mask`` is not 0, else the elements of ``x``; shapes broadcast."""
    x = checked_blob(x)
    mask = checked_blob(mask)
    return emit_one("where_scalar_x", mask, x, operand=operand_of(x, value), name=name)
