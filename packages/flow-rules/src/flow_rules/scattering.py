"""Functions that split tensors over several devices, and reassemble them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_rules.layouts import Array, Broadcast, Layout, Partial, Ranges, Split, balanced

COMBINE: Mapping[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "avg": np.add}
"""The ufunc that combines the terms of a partial tensor; averages are divided afterwards."""
TOLERANCE: Mapping[str, tuple[float, float]] = {
    "float16": (2e-2, 2e-2),
    "bfloat16": (8e-2, 8e-2),
    "float32": (2e-5, 2e-5),
    "float64": (1e-9, 1e-10),
}
"""The relative and absolute difference that rounding may make."""


def lowest(dtype: DTypeLike) -> Any:
    """Return the identity of max: the lowest value of a numpy type."""
    return -np.inf if np.dtype(dtype).kind not in "iu" else np.iinfo(dtype).min


def highest(dtype: DTypeLike) -> Any:
    """Return the identity of min: the highest value of a numpy type."""
    return np.inf if np.dtype(dtype).kind not in "iu" else np.iinfo(dtype).max


class CannotForm(Exception):
    """An error: an op on parts, or a tensor with given parts, is not valid."""


# ------------------------------------------------------------------------------------- tensors


def scatter(
    array: Array,
    layout: Layout,
    parts: int,
    rng: np.random.Generator,
    unit: float = 1 / 16,
    ranges: Ranges = balanced,
) -> list[Array]:
    """Split an array over devices.

    Partial sums are random terms whose sum is the array.  Partial maxima are random smaller values,
    except that one random device per element has the element itself.  The sum of truth values is
    "or".  The random numbers are multiples of ``unit``, so that sums of a few of them are exact.

    >>> [x.tolist() for x in scatter(np.arange(5), Split(0), 2, None)]
    [[0, 1, 2], [3, 4]]
    >>> sum(scatter(np.arange(3), Partial(), 3, np.random.default_rng(0))).tolist()
    [0, 1, 2]
    """
    if isinstance(layout, Split):
        bounds = ranges(array.shape[layout.axis], parts)
        return [array.take(range(*each), layout.axis) for each in bounds]
    if isinstance(layout, Broadcast):
        return [array] * parts
    if layout.op == "avg":
        return _addends(array * parts, parts, rng, unit)
    if layout.op == "sum" and array.dtype.kind != "b":
        return _addends(array, parts, rng, unit)
    owner = rng.integers(0, parts, array.shape)
    return [np.where(owner == i, array, _worse(array, layout.op, rng, unit)) for i in range(parts)]


def _addends(array: Array, parts: int, rng: np.random.Generator, unit: float) -> list[Array]:
    """Draw one term per device, so that the terms add up to the array; integers wrap around.

    NaN and infinities may be on any device.
    """
    shape = (parts - 1, *array.shape)
    noise = _noise(array, shape, rng, unit) - _noise(array, shape, rng, unit)
    if array.dtype.kind == "f":
        finite = np.where(np.isfinite(array), array, array.dtype.type(0))
        found = [finite - noise.sum(0, dtype=array.dtype), *noise]
        owner, coin = rng.integers(0, parts, array.shape), rng.integers(0, 2, (parts, *array.shape))
        held = ((coin[i] == 0) | (owner == i) for i in range(parts))
        return [np.where(h & (finite != array), array, x) for h, x in zip(held, found, strict=True)]
    far = _between(lowest(array.dtype), highest(array.dtype), array.dtype, shape, rng)
    noise = np.where(rng.integers(0, 4, shape) == 0, far, noise)
    with np.errstate(over="ignore"):
        return [array - noise.sum(0, dtype=array.dtype), *noise]


def _between(
    low: Any, high: Any, dtype: Any, shape: tuple[int, ...], rng: np.random.Generator
) -> Any:
    """Draw random integers between bounds."""
    return rng.integers(low, high, shape, dtype, endpoint=True)


def _noise(array: Array, shape: tuple[int, ...], rng: np.random.Generator, unit: float) -> Array:
    if array.dtype.kind == "f":
        step = np.where(rng.integers(0, 2, shape), 1.0, unit)  # whole numbers produce ties
        return (np.maximum(np.rint(rng.uniform(0, 4.5, shape) / step), 1) * step).astype(
            array.dtype
        )
    return rng.integers(1, 5, shape).astype(array.dtype)


def _worse(array: Any, op: str, rng: np.random.Generator, unit: float) -> Any:
    """Draw values that do not change the maximum or minimum, including the neutral element.

    Boolean arrays are operands of "or", because numpy adds booleans as a logical or.
    """
    if array.dtype.kind == "b":
        chance = rng.integers(0, 2, array.shape).astype(bool)
        return array | chance if op == "min" else array & chance
    last = highest(array.dtype) if op == "min" else lowest(array.dtype)
    noise = _noise(array, array.shape, rng, unit)
    if array.dtype.kind != "f":  # integers must not wrap around
        limit = np.abs(last - array.astype(np.float64))
        noise = np.minimum(noise, limit).astype(array.dtype)
    loses = array + noise if op == "min" else array - noise
    zero_loses = array < 0 if op == "min" else array > 0
    loses = np.where(zero_loses & (rng.integers(0, 4, array.shape) == 0), 0, loses)
    if array.dtype.kind != "f":
        ends = (array, last) if op == "min" else (last, array)
        far = _between(*ends, array.dtype, array.shape, rng)
        loses = np.where(rng.integers(0, 3, array.shape) == 0, far, loses)
    all_lose = rng.integers(0, 4, array.shape) == 0
    return np.where(all_lose, np.array(last, array.dtype), loses).astype(array.dtype)


def gather(parts: Sequence[Array], layout: Layout) -> Array:
    """Reassemble the array from the parts on the devices.

    Raises:
        CannotForm: the replicas on the devices differ.

    >>> [gather([np.ones(2)] * 2, layout).tolist() for layout in (Partial(), Broadcast())]
    [[2.0, 2.0], [1.0, 1.0]]
    """
    if isinstance(layout, Split):
        return np.concatenate(parts, layout.axis)
    if isinstance(layout, Partial):
        with np.errstate(invalid="ignore", over="ignore"):  # invalid combinations may overflow
            whole: Array = reduce(COMBINE[layout.op], parts)
            return whole / len(parts) if layout.op == "avg" else whole
    if not all(part is parts[0] or is_close(part, parts[0]) for part in parts):
        raise CannotForm("the devices hold different replicas")
    return parts[0]


def largest(parts: Sequence[Array]) -> float:
    """Return the largest finite magnitude in the parts, which scales the rounding of their sum."""
    sizes = (np.abs(np.asarray(part, np.float64)) for part in parts if np.size(part))
    return max((float(size[np.isfinite(size)].max(initial=0)) for size in sizes), default=0.0)


def is_close(found: Array, wanted: Array, scale: float = 1.0) -> bool:
    """Return whether shapes are equal, and elements up to the rounding of a few operations.

    ``scale`` is the magnitude of the terms of sums.
    """
    if np.shape(found) != np.shape(wanted):
        return False
    if np.array_equal(found, wanted):
        return True
    name = np.asarray(wanted).dtype.name
    if name not in TOLERANCE:
        return False
    relative, absolute = TOLERANCE[name]
    bounds = relative, absolute * max(scale, 1.0)
    have, want = (np.asarray(x, np.float64) for x in (found, wanted))
    return bool(np.allclose(have, want, *bounds, equal_nan=True))


def is_exact(array: Array) -> bool:
    """Return whether numbers and their sums are exact: multiples of 2**-20 of limited size.

    >>> is_exact(np.array([0.25, 3.0])), is_exact(np.array([0.1]))
    (True, False)
    """
    scaled = np.asarray(array, np.float64) * 2.0**20
    small = np.abs(scaled) < 2.0**50
    return bool(np.all(small & (np.rint(scaled) == scaled)))
