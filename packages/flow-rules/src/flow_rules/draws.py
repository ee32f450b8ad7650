"""Draws of the inputs of ops, such that wrong rules do not hold by chance.

A wrong rule may hold by chance because no number is negative, or because two numbers are equal.
Therefore, inputs are drawn several times: within the range of an example, because the op might
accept only those values, and beyond that range for one input or all inputs.  Floating point values
are multiples of 1/16, so that sums and products of a few of them are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import prod
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_rules.layouts import Array, Shape
from flow_rules.prover import NONSENSE, UNIT, Arrays

ZEROS: tuple[Callable[[int], float], ...] = (
    *(partial(mul, share) for share in (0.4, 0.9, 0.1, 0.0, 1.0)),
    lambda size: 1,
    lambda size: size - 1,
)
"""The numbers of zeros, as functions of the number of elements, in draws of small numbers."""
FEW = 8
"""Cases with fewer elements are drawn more often."""
Evaluate = Callable[[Arrays], Sequence[Array]]
"""A function that computes the results of an op."""
Tells = Callable[[Array], bool]
"""A function that tells whether a result is conclusive."""


def is_floating(array: Array) -> bool:
    """Return whether an array has floating point numbers, bfloat16 included."""
    return bool(array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def multiples(x: Array) -> Array:
    """Round floating point numbers to multiples of 1 / `UNIT`."""
    whole = np.rint(x.astype(np.float64) * UNIT) / UNIT if is_floating(x) else x
    return np.asarray(whole).astype(x.dtype)


def drawn(own: Arrays, shapes: Sequence[Shape], rng: np.random.Generator) -> Iterator[Arrays]:
    """Yield draws within the sample's range, then beyond that range.

    The draws beyond the range are for each floating point input, then for all.  Integers, which may
    be indices, stay in range unless all inputs are integers.

    The last draws have many zeros and equal values, for truth values and comparisons.

    Args:
        own: arrays of an example, whose values are valid.
    """
    rows = list(zip(own, shapes, strict=True))
    wild = [i for i, x in enumerate(own) if is_floating(x)]
    whole = not wild
    wild = wild or [i for i, x in enumerate(own) if x.dtype.kind in "iu"]
    every = tuple(wild) if len(wild) > 1 else ()
    times = max(1, FEW // max(map(prod, shapes), default=FEW))
    for beyond in ((), (), *times * [(i,) for i in wild], *times * (every,)):
        yield tuple(draw(x, s, i in beyond, rng) for i, (x, s) in enumerate(rows))
    for zeros in times * ZEROS if own else ():
        yield tuple(_few(x, s, zeros, whole, rng) for x, s in rows)


def _few(
    x: Array, shape: Any, zeros: Callable[[int], float], whole: bool, rng: np.random.Generator
) -> Any:
    """Draw small whole numbers for a floating point input; keep integers, which may be indices."""
    if not (is_floating(x) or (whole and x.dtype.kind in "iu")):
        return draw(x, shape, False, rng)
    order = rng.permutation(prod(shape)).reshape(shape)
    size = rng.integers(1, 3, shape) * (order >= round(zeros(prod(shape))))
    sign = 1 if x.dtype.kind == "u" else rng.choice((-1, 1), shape)
    return np.asarray(size * sign).astype(x.dtype)


def _any_integers(dtype: DTypeLike, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draw from the full range of a type, with many smallest and largest values."""
    ends = np.iinfo(dtype).min, np.iinfo(dtype).max
    between = rng.integers(*ends, shape, dtype, endpoint=True)
    return np.where(
        rng.integers(0, 5, shape) == 0, rng.choice(np.array(ends, dtype), shape), between
    )


def draw(x: Array, shape: Any, wild: bool, rng: np.random.Generator, exact: bool = True) -> Any:
    """Draw an array of a shape from the range of ``x``, or beyond it if ``wild``.

    Floating point values are multiples of 1 / `UNIT`, unless not ``exact``.
    """
    if x.dtype.kind in "iu" and wild:
        return _any_integers(x.dtype, shape, rng)
    if not is_floating(x):
        return rng.choice(x.reshape(-1), shape).astype(x.dtype)
    if wild:
        size = rng.integers(1, 4 * UNIT + 1, shape) / UNIT
        return np.asarray(size * rng.choice((-1, 1), shape)).astype(x.dtype)
    low, high = (rng.choice(x.reshape(-1), shape) for _ in range(2))
    with np.errstate(invalid="ignore"):
        between = np.where(np.isfinite(high - low), high - low, 0) * rng.uniform(0, 1, shape)
    made = np.asarray(low + between).astype(x.dtype)
    return multiples(made) if exact else made


def conclusive(
    draws: Iterable[Arrays],
    evaluate: Evaluate,
    shapes: Sequence[Shape],  # the shapes of the results
    changed: Sequence[int] = (),  # the inputs that the op changes, if it has no outputs
    # Whether a result tells much: `varied` or `not_zero`.
    tells: Tells = lambda result: varied(result),
) -> tuple[Arrays, ...]:
    """Return the draws that tell something about rules; none if no draw tells much.

    A draw tells nothing if a result is not finite or has another shape, or if the op changes
    nothing; it tells much if all results do.
    """
    rows = [(arrays, _results(arrays, evaluate, shapes, changed)) for arrays in draws]
    sound = [(arrays, results) for arrays, results in rows if results is not None]
    much = any(all(map(tells, results)) for _, results in sound)
    return tuple(arrays for arrays, _ in sound) if much else ()


def _results(
    arrays: Arrays, evaluate: Evaluate, shapes: Sequence[Shape], changed: Sequence[int]
) -> Sequence[Array] | None:
    """Return the results for a draw; None if they tell nothing about rules."""
    try:
        results = evaluate(arrays)
    except NONSENSE:
        return None
    if [np.shape(r) for r in results] != list(shapes):
        return None
    if not all(np.isfinite(np.asarray(r, np.float64)).all() for r in results):
        return None
    old = [arrays[i] for i in changed]
    return None if old and all(map(np.array_equal, results, old)) else results


def varied(result: Array) -> bool:
    """Return whether a result has unequal elements, if it has several, and not only zeros."""
    array = np.asarray(result)
    return bool(array.any()) and (array.size == 1 or len(np.unique(array)) > 1)


def not_zero(result: Array) -> bool:
    """Return whether a result is `varied`, or is floating point, uniform and not 0."""
    return bool(np.any(result)) and (is_floating(result) or varied(result))
