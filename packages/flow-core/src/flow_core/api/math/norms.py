"""``flow.linalg.norm``: norms of vectors and matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from numbers import Real
from typing import Any

from flow_core.api.arguments import check, checked_axis, checker
from flow_core.api.math.binary import pow
from flow_core.api.math.reduce import (
    in_float32,
    reduce_euclidean_norm,
    reduce_max,
    reduce_min,
    reduce_sum,
    root,
)
from flow_core.api.math.unary import abs
from flow_core.base.errors import UnsupportedError
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob

__all__ = ["norm"]

_check = checker("flow.")


def norm(
    x: Blob,
    ord: float | str | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> BlobDef:
    """Return norms of vectors or matrices; their gradient at 0 is 0.

    Args:
        x: a floating-point blob.
        ord: of vectors, a number of at least 1, inf (the largest absolute value) or -inf (the
            smallest one); of matrices "fro" (root of the sum of squares), 1 or inf (the largest
            sum of absolute values of a column or row), -1 or -inf (the smallest one).  None stands
            for 2 or "fro".
        axis: the axis of the vectors, or the two axes of the matrices; None for all axes.
        keepdims: whether to keep these axes with size 1.

    Returns:
        A blob of the element type of ``x`` without these axes; of shape (1,) if no axis is left.

    Raises:
        InferenceError: an axis is out of range, or there are more than two with an ``ord``.
        UnsupportedError: the order is another one, such as 2 or "nuc" of matrices.

    >>> run(flow.linalg.norm, [[3, 4], [0, 2]], axis=1)
    array([5., 2.], dtype=float32)
    """
    x = checked_blob(x, "norm")
    check(x.dtype.is_floating, "flow.norm", f"{x}", "a floating-point blob")
    given: Any = range(len(x.shape)) if axis is None else axis
    axes = [given] if hasattr(given, "__index__") else list(given)
    axes = [checked_axis(_check, "norm", x, a) for a in axes]
    if ord is None or (ord == "fro" and len(axes) == 2) or (ord == 2 and len(axes) == 1):
        return reduce_euclidean_norm(x, axes, keepdims, name)
    _check(len(set(axes)) in (1, 2), "norm", f"ord={ord!r} with axes {axes}", "one or two axes")
    if len(axes) == 1:
        return in_float32(_vectors(ord), x, axes, keepdims, name)
    return _matrices(x, ord, axes, keepdims, name)


def _unsupported(ord: object, allowed: str) -> UnsupportedError:
    return UnsupportedError.at_caller("flow.norm", found=f"ord={ord!r}", allowed=allowed)


def _vectors(ord: Any) -> Any:
    """Return the function of a blob, axes, keepdims and a name for an order."""
    if ord in (inf, -inf):
        extreme = reduce_max if ord > 0 else reduce_min
        return lambda x, *others: extreme(abs(x), *others)
    if not isinstance(ord, Real) or not float(ord) >= 1:
        raise _unsupported(ord, "of vectors None, inf, -inf, or a number of at least 1")
    if ord == 1:
        return lambda x, *others: reduce_sum(abs(x), *others)

    def powers(x: Blob, axes: list[int], keepdims: bool, name: str | None) -> BlobDef:
        sums = reduce_sum(pow(abs(x), float(ord)), axes, keepdims)
        return root(sums, lambda total: pow(total, 1 / float(ord)), name)

    return powers


def _matrices(x: BlobDef, ord: Any, axes: list[int], keepdims: bool, name: str | None) -> BlobDef:
    if ord not in (1, -1, inf, -inf):
        raise _unsupported(ord, 'of matrices None, "fro", 1, -1, inf or -inf')
    inner, outer = axes if ord in (1, -1) else axes[::-1]
    extreme = reduce_max if ord > 0 else reduce_min

    def function(x: Blob, _: Any, __: bool, name: str | None) -> BlobDef:
        sums = reduce_sum(abs(x), inner, True)
        if keepdims:
            return extreme(sums, outer, True, name)
        return extreme(sums, axes, False, name)

    return in_float32(function, x, axes, keepdims, name)
