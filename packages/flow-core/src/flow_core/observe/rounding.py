"""How far two arrays are apart, where the order of roundings is all that may differ."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import TensorType
from flow_core.observe.isolated_run import same_bits

ALLOWED = {2: 2.0**-4, 4: 2.0**-13, 8: 2.0**-42}
"""By how much of the largest element results of a step may differ, by the bytes of a number: a
thousand roundings, less in half types, whose sums are made in float32."""

MANY = 16
"""How much further than by a few roundings of weights and inputs passes may move results."""


def drift(found: Array, wanted: Array) -> float:
    """The largest difference, relative to the largest element; 0.0 where all bits are the same.

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
    """The drift that roundings in another order explain, where these types are computed with.

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
    """Whether roundings explain a drift in a program in which a few of them move results so far.

    >>> explained(1e-2, 2e-3), explained(1e-1, 2e-3), explained(inf, inf)
    (True, False, False)
    """
    return apart <= MANY * moved < inf


# ----------------------------------------------------------------------------------- elements


def is_float(array: Array) -> bool:
    """Whether an array has elements that rounding can change."""
    return array.dtype.kind not in "iubOSU"


def epsilon(array: Array) -> float:
    """The relative distance of neighbouring numbers of an array's type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]  # of its stubs


def difference(a: Array, b: Array) -> Array:
    """Absolute differences; infinite where only one is NaN, or infinities differ."""
    x, y = (np.asarray(v).astype(np.float64) for v in (a, b))
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(same, 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf, posinf=np.inf))


def largest(array: Array) -> float:
    """The largest finite magnitude."""
    wide = np.abs(np.asarray(array).astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


def relative_error(one: Array, many: Array) -> float:
    """The largest difference relative to the largest element.

    >>> relative_error(np.array([1.0, 4.0]), np.array([1.0, 3.0]))
    0.25
    """
    error = float(difference(one, many).max(initial=0.0))
    return error / (largest(one) or 1.0)


def over(error: Array, bound: float) -> float:
    """The largest error in units of its bound; infinite when there should be none."""
    worst = float(error.max(initial=0.0))
    return worst / bound if bound else float("inf") if worst else 0.0


def disturb(array: Array, size: Any, rng: np.random.Generator) -> Any:
    """An array whose elements are off by about a rounding of what they were made of.

    Args:
        array: the array.
        size: the magnitude of that, per element.
        rng: draws how far each is off.
    """
    if not is_float(array):
        return array
    noise = rng.uniform(-1, 1, array.shape) * epsilon(array)
    wide = array.astype(np.float64) + noise * size.astype(np.float64)
    return wide.astype(array.dtype)
