"""Reductions of ``flow.math``.

A reduction over no axes (``axis=[]``) returns its input.

Args:
    x, input_blob: a blob of numbers.
    input_tensor: a floating-point blob.
    axis: one axis, several axes, or None for all axes; negative to count from the last axis.
    keepdims: whether to keep the reduced axes with size 1.

Returns: A blob of the input's element type without the reduced axes, or of shape (1,) if no axis
    is left.

Raises:
    InferenceError: an axis is out of range, or the function does not take the element type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

from flow_core.api.arguments import inner
from flow_core.api.math.binary import add, divide, multiply, subtract
from flow_core.api.math.comparison import maximum
from flow_core.api.math.unary import exp, log, sqrt, square
from flow_core.base.errors import InferenceError
from flow_core.base.shapes import normal_axis
from flow_core.comm.exchange import neutral
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit_one
from flow_core.frontend.trace.repeat_acc import per_period

__all__ = [
    "reduce_all", "reduce_any", "reduce_euclidean_norm", "reduce_logsumexp", "reduce_max",
    "reduce_mean", "reduce_min", "reduce_prod", "reduce_std", "reduce_sum", "reduce_variance",
    "two_stage_reduce_max", "two_stage_reduce_min",
]  # fmt: skip

Axis = int | Sequence[int] | None
Reduce = Callable[[Blob, Axis, bool, str | None], BlobDef]


def _axes(x: Blob, axis: Axis, function: str) -> tuple[int, ...]:
    """Return the axes as non-negative numbers."""
    rank = len(x.shape)
    if axis is None:
        return tuple(range(rank))
    try:
        return tuple(normal_axis(a, rank) for a in ([axis] if isinstance(axis, int) else axis))
    except (TypeError, ValueError) as error:
        raise InferenceError.at_caller(
            f"flow.math.{function}",
            found=f"axis={axis!r} for shape {x.shape}",
            allowed=f"None, or axes from -{rank} to {rank - 1}",
        ) from error


def _reduce(op: str, x: Blob, axis: Axis, keepdims: bool, name: str | None) -> BlobDef:
    x = checked_blob(x)
    axes = _axes(x, axis, op)
    return emit_one(op, x, axis=axes, keepdims=bool(keepdims), name=name) if axes else x


def _filled(operation: str, x: Blob, axis: Axis) -> BlobDef:
    """Return ``x`` with the identity element of the maximum or minimum in the rows that are not
    valid.
    """
    x = checked_blob(x)
    if x.rows is None or x.rows.axis not in _axes(x, axis, f"reduce_{operation}"):
        return x
    whole = emit_one("cast_to_static_shape", x)
    counts = emit_one("cast_to_static_shape", emit_one("constant_like", x, value=1, dtype="int8"))
    number = neutral(operation, x.dtype)
    rest = emit_one("constant_like", whole, value=number, dtype=x.dtype.name)
    return emit_one("where", counts, whole, rest)


def reduce_sum(
    input_tensor: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return the sums along some axes, in the element type of ``input_tensor``.

    Args:
        input_tensor: a blob of numbers.

    Returns: A blob without the reduced axes, or of shape (1,) if no axis is left; the input itself
        if ``axis`` is ``[]``.

    Raises: InferenceError: an axis out of range.

    >>> run(flow.math.reduce_sum, [[1, 2], [3, 4]], axis=1)
    array([3., 7.], dtype=float32)
    """
    return _reduce("reduce_sum", input_tensor, axis, keepdims, name)


def reduce_max(
    x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return the maxima along some axes; tied elements share the gradient equally.

    >>> run(flow.math.reduce_max, [[1, 2], [3, 4]], axis=1)
    array([2., 4.], dtype=float32)
    """
    return _reduce("reduce_max", _filled("max", x, axis), axis, keepdims, name)


def reduce_min(
    x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return the minima along some axes; tied elements share the gradient equally.

    >>> run(flow.math.reduce_min, [[1, 2], [3, 4]], axis=1)
    array([1., 3.], dtype=float32)
    """
    return _reduce("reduce_min", _filled("min", x, axis), axis, keepdims, name)


def reduce_prod(
    x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return the products along some axes.

    >>> run(flow.math.reduce_prod, [[1, 2], [3, 4]], axis=1)
    array([ 2., 12.], dtype=float32)
    """
    return _reduce("reduce_prod", x, axis, keepdims, name)


def _truth(op: str, x: Blob, axis: Axis, keepdims: bool, name: str | None) -> BlobDef:
    if _axes(x, axis, op):
        return _reduce(op, x, axis, keepdims, name)
    return emit_one("scalar_logical_not_equal", x, operand=0, name=name)


def reduce_any(
    x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return 1 where some element along the axes is not 0, otherwise 0; int8.

    Returns: An int8 blob without the reduced axes.

    >>> run(flow.math.reduce_any, np.int32([[0, 2], [3, 4]]), axis=1)
    array([1, 1], dtype=int8)
    """
    return _truth("reduce_any", x, axis, keepdims, name)


def reduce_all(
    x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return 1 where no element along the axes is 0, otherwise 0; int8.

    Returns: An int8 blob without the reduced axes.

    >>> run(flow.math.reduce_all, np.int32([[0, 2], [3, 4]]), axis=1)
    array([0, 1], dtype=int8)
    """
    return _truth("reduce_all", x, axis, keepdims, name)


@per_period
def reduce_mean(
    input_blob: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return the means along some axes; means of integers are truncated.

    >>> run(flow.math.reduce_mean, [[1, 2], [3, 4]], axis=1)
    array([1.5, 3.5], dtype=float32)
    """
    input_blob = checked_blob(input_blob)
    axes = _axes(input_blob, axis, "reduce_mean")
    if not axes:
        return input_blob
    rows = input_blob.rows
    if rows is not None and rows.axis in axes:
        return in_float32(_mean_of_rows, input_blob, axes, keepdims, name)
    return emit_one("reduce_mean", input_blob, axis=axes, keepdims=bool(keepdims), name=name)


def in_float32(function: Reduce, x: Blob, axes: Axis, keepdims: bool, name: str | None) -> BlobDef:
    """Call a reduction; its steps compute 16-bit types in float32, whose range is larger."""
    x = checked_blob(x)
    if x.dtype.accumulate is x.dtype:
        return function(x, axes, keepdims, name)
    wide = emit_one("cast", x, dtype=x.dtype.accumulate.name)
    result = function(wide, axes, keepdims, inner(name, "wide"))
    return emit_one("cast", result, dtype=x.dtype.name, name=name)


def _mean_of_rows(x: Blob, axes: Axis, keepdims: bool, name: str | None) -> BlobDef:
    """Return a sum divided by the number of valid elements, or 0 if there are none."""
    x = checked_blob(x)
    axes = _axes(x, axes, "reduce_mean")
    rows = x.rows
    total = reduce_sum(x, axes, keepdims, inner(name, "reduce_sum"))
    rest = prod(x.shape[i] for i in axes if i != rows.axis)
    count = emit_one("cast", maximum(rows.count, 1), dtype=x.dtype.name)
    return divide(total, multiply(count, rest), name)


def reduce_variance(
    input_tensor: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return the biased variances along some axes; 0 if there are no axes.

    >>> run(flow.math.reduce_variance, [[1, 2], [3, 4]], axis=1)
    array([0.25, 0.25], dtype=float32)
    """
    axes = _axes(input_tensor, axis, "reduce_variance")
    if not axes:
        return emit_one("zero_like", input_tensor, name=name)
    return in_float32(_variance, input_tensor, axes, keepdims, name)


def _variance(x: Blob, axes: Axis, keepdims: bool, name: str | None) -> BlobDef:
    mean = reduce_mean(x, axes, True, inner(name, "mean"))
    centered = subtract(x, mean, inner(name, "subtract"))
    return reduce_mean(square(centered, inner(name, "square")), axes, keepdims, name)


def reduce_std(
    input_tensor: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return the square roots of the variances along some axes; 0 if there are no axes.

    >>> run(flow.math.reduce_std, [[1, 2], [3, 4]], axis=1)
    array([0.5, 0.5], dtype=float32)
    """
    axes = _axes(input_tensor, axis, "reduce_std")
    if not axes:
        return emit_one("zero_like", input_tensor, name=name)
    return in_float32(_std, input_tensor, axes, keepdims, name)


def _std(x: Blob, axes: Axis, keepdims: bool, name: str | None) -> BlobDef:
    return root(_variance(x, axes, keepdims, inner(name, "reduce_variance")), sqrt, name)


def root(x: Blob, function: Callable[[BlobDef], BlobDef], name: str | None = None) -> BlobDef:
    """Return a root of sums of powers, whose gradient at 0 is finite.

    The gradient of the powers is 0 there, so that the gradient of a norm at 0 is 0 and not NaN.
    """
    zero = emit_one("cast_like", emit_one("scalar_logical_equal", x, operand=0), x)
    return subtract(function(add(x, zero)), zero, name)


def reduce_euclidean_norm(
    input_tensor: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return the square roots of the sums of squares along some axes.

    >>> run(flow.math.reduce_euclidean_norm, [[1, 2], [3, 4]], axis=1).round(4)
    array([2.2361, 5.    ], dtype=float32)
    """
    return in_float32(_norm, input_tensor, axis, keepdims, name)


def _norm(x: Blob, axis: Axis, keepdims: bool, name: str | None) -> BlobDef:
    squares = square(x, inner(name, "square"))
    return root(reduce_sum(squares, axis, keepdims, inner(name, "reduce_sum")), sqrt, name)


def reduce_logsumexp(
    input_tensor: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Return the logarithms of the sums of exponentials along some axes, computed without overflow.

    >>> run(flow.math.reduce_logsumexp, [[1, 2], [3, 4]], axis=1).round(4)
    array([2.3133, 4.3133], dtype=float32)
    """
    input_tensor = checked_blob(input_tensor)
    axes = _axes(input_tensor, axis, "reduce_logsumexp")
    if not axes:
        return input_tensor
    return in_float32(_logsumexp, input_tensor, axes, keepdims, name)


def _logsumexp(x: Blob, axes: Axis, keepdims: bool, name: str | None) -> BlobDef:
    """Return ``log(sum(exp(x - m))) + m``, where m is the greatest number if it is finite, else 0.

    If all numbers are -inf, the sum is 0; adding and subtracting 1 there makes the gradient 0.
    """
    greatest = reduce_max(x, axes, True, inner(name, "reduce_max"))
    finite = emit_one("scalar_logical_equal", subtract(greatest, greatest), operand=0)
    shift = emit_one("where", finite, greatest, emit_one("zero_like", greatest))
    parts = exp(subtract(x, shift, inner(name, "subtract")), inner(name, "exp"))
    total = reduce_sum(parts, axes, True, inner(name, "reduce_sum"))
    none = emit_one("scalar_logical_equal", total, operand=0)
    safe = log(add(total, emit_one("cast_like", none, total)), inner(name, "log"))
    lowest = emit_one("constant_like", total, value=-inf, dtype=checked_blob(x).dtype.name)
    last = name if keepdims else inner(name, "where")
    result = emit_one("where", none, lowest, add(safe, shift), name=last)
    return reduce_sum(result, () if keepdims else axes, keepdims, name)


def two_stage_reduce_max(
    x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Do the same as `reduce_max`; if a reduced axis is split, reduce in two stages.

    >>> run(flow.math.two_stage_reduce_max, [[1, 2], [3, 4]], axis=1)
    array([2., 4.], dtype=float32)
    """
    return reduce_max(x, axis, keepdims, name)


def two_stage_reduce_min(
    x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None
) -> BlobDef:
    """Do the same as `reduce_min`; if a reduced axis is split, reduce in two stages.

    >>> run(flow.math.two_stage_reduce_min, [[1, 2], [3, 4]], axis=1)
    array([1., 3.], dtype=float32)
    """
    return reduce_min(x, axis, keepdims, name)
