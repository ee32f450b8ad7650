"""Differences between arrays that should be equal except for the order of roundings."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import TensorType
from flow_core.observe.isolated_run import same_bits

ALLOWED = {2: 2.0**-4, 4: 2.0**-13, 8: 2.0**-42}
"""The allowed difference relative to the largest element, by bytes per element.

It is about a thousand roundings; fewer for 16-bit types, whose sums are accumulated in float32.
"""

MANY = 16
"""The allowed ratio between the change of results that passes cause and the change that a few
roundings of weights and inputs cause."""


def drift(found: Array, wanted: Array) -> float:
    """Return the largest difference, relative to the largest element; 0.0 if bitwise equal.

    >>> one = np.array([1.0, 2.0], np.float32)
    >>> drift(one, one), drift(one + np.float32(1), one), drift(one[:1], one)
    (0.0, 0.5, inf)
    """
    if same_bits(found, wanted):
        return 0.0
    if found.shape != wanted.shape or found.dtype.kind in "iubO":
        return inf
    a, b = (x.astype(np.float64) for x in (found, wanted))
    finite = np.isfinite(b)
    if (
        not np.array_equal(a[~finite], b[~finite], equal_nan=True)
        or not np.isfinite(a[finite]).all()
    ):
        return inf
    return float(
        np.abs(a - b)[finite].max() / max(np.abs(b[finite]).max(), np.finfo(np.float32).tiny)
    )


def allowed(types: Iterable[TensorType]) -> float:
    """Return the largest drift that reordered roundings explain in computations with these types.

    >>> from flow_core.base.dtypes import float16, float32, int32
    >>> from flow_core.ir.graph import tensor_type
    >>> allowed([tensor_type((), float32), tensor_type((), int32)]) == 2**-13
    True
    >>> allowed([tensor_type((), float32), tensor_type((), float16)]) == 2**-4
    True
    """
    sizes = {t.dtype.itemsize for t in types if t.dtype.is_floating}
    return max((ALLOWED.get(size, 0.0) for size in sizes), default=0.0)


def explained(apart: float, moved: float) -> bool:
    """Return whether roundings explain a drift, given how far a few roundings change the results.

    >>> explained(1e-2, 2e-3), explained(1e-1, 2e-3), explained(inf, inf)
    (True, False, False)
    """
    return apart <= MANY * moved < inf


# ----------------------------------------------------------------------------------- elements


def is_float(array: Array) -> bool:
    """Return whether rounding can change the elements of an array."""
    return array.dtype.kind not in "iubOSU"


def floating(array: Any) -> bool:
    """Return whether a value is an array of floating-point numbers."""
    return isinstance(array, np.ndarray) and is_float(array)


def widened(array: Any) -> Any:
    """Convert an array of floating-point numbers to float64; return other values unchanged."""
    return as_type(array, np.float64) if floating(array) else array


def as_type(array: Any, dtype: Any) -> Any:
    """Convert an array of floating-point numbers to a type; numbers beyond it are infinite."""
    if not floating(array) or array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def epsilon(array: Array) -> float:
    """Return the machine epsilon of an array's type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]  # of its stubs


def difference(a: Array, b: Array) -> Array:
    """Return the absolute differences of elements.

    A difference is infinite if only one of the two elements is NaN, or if infinities differ.
    """
    x, y = (np.asarray(v).astype(np.float64) for v in (a, b))
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(same, 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf, posinf=np.inf))


def largest(array: Array) -> float:
    """Return the largest finite magnitude."""
    wide = np.abs(np.asarray(array).astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


def relative_error(one: Array, many: Array) -> float:
    """Return the largest difference, relative to the largest element of the first array.

    >>> relative_error(np.array([1.0, 4.0]), np.array([1.0, 3.0]))
    0.25
    """
    error = float(difference(one, many).max(initial=0.0))
    return error / (largest(one) or 1.0)


def over(error: Array, bound: float) -> float:
    """Return the ratio of the largest error to the bound; infinite for an error if it is 0."""
    worst = float(error.max(initial=0.0))
    return worst / bound if bound else float("inf") if worst else 0.0


def disturb(array: Array, size: Any, rng: np.random.Generator) -> Any:
    """Perturb each element of an array by about one rounding of the terms of which it is the sum.

    Args:
        size: for each element, the magnitude of the terms that were added up to it.
    """
    if not is_float(array):
        return array
    noise = rng.uniform(-1, 1, array.shape) * epsilon(array)
    wide = array.astype(np.float64) + noise * size.astype(np.float64)
    return wide.astype(array.dtype)
