"""Cases for the prover of SBP rules, with shapes that split unevenly and varied data.

A wrong rule may hold by chance, because an axis has fewer elements than devices, because no number
is negative, or because two numbers are equal.  Therefore, the samples of an op are enlarged (each
size is consistently replaced by another size), and their values are drawn again several times:
within the range of the sample, because the op might accept only those values, and beyond that range
for one input or all inputs.  Floating point values are multiples of 1/16, so that sums and products
of a few of them are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import prod
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.base.dtypes import float64
from flow_core.base.errors import FlowError
from flow_core.ir.graph import AttrValue
from flow_core.plugins.specs import KernelQuery, OpSpec, Sample
from flow_core.testing.checks import (
    cast_sample,
    evaluate_op,
    is_floating,
    overwritten,
    query,
    written,
)

SIZES = (5, 6, 7, 9, 10, 11, 13)
"""The sizes that replace those of a sample, in ascending order: some are even, and none is a
multiple of all numbers of devices."""
FLAT_SIZES = (13, 14, 15, 17, 19, 21, 22)
"""The sizes that replace those of vectors and matrices, which would have too few elements with
the other sizes."""
UNIT = 16
"""Floating point values are multiples of the reciprocal of this number."""
ZEROS: tuple[Callable[[int], float], ...] = (
    *(partial(mul, share) for share in (0.4, 0.9, 0.1, 0.0, 1.0)),
    lambda size: 1,
    lambda size: size - 1,
)
"""The numbers of zeros, as functions of the number of elements, in draws of small numbers."""
FEW = 8
"""Cases with fewer elements are drawn more often."""
LARGEST = 4000
"""Largest number of elements of a tensor of a case."""
NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, FlowError)
"""The exceptions that numpy references raise for invalid inputs."""

Arrays = tuple[Any, ...]
Tells = Callable[[Any], bool]
"""A function that tells whether a result is conclusive."""


@dataclass(frozen=True, slots=True)
class Case:
    """An op with types and attributes, and several draws of its inputs.

    Attributes:
        spec: the op.
        asked: the kernel query, with the types and attributes of the op.
        draws: the arrays of the inputs, for each draw.
        note: text about the sample from which the case was derived.
    """

    spec: OpSpec
    asked: KernelQuery
    draws: tuple[Arrays, ...]
    note: str = ""

    def __str__(self) -> str:
        types = ", ".join(map(str, self.asked.inputs))
        return f"{self.spec.type} of {types or 'nothing'} with {dict(self.asked.attrs)}"


def cases(spec: OpSpec, samples: Iterable[Sample], seed: int = 0) -> Iterator[Case]:
    """Yield the cases of an op, which differ in types or attributes.

    Samples without elements are skipped.  Inconclusive samples, with a result whose elements are
    all equal (such as the softmax of one class), are skipped unless the op has no other samples.
    """
    samples = tuple(samples)
    yield from _cases(spec, samples, seed, _varied) or _cases(spec, samples, seed, _not_zero)


def _cases(spec: OpSpec, samples: Iterable[Sample], seed: int, tells: Tells) -> list[Case]:
    found: dict[object, Case] = {}
    for number, sample in enumerate(samples):
        rng = np.random.default_rng((seed, number))
        case = _case(spec, sample, f"sample {number}", rng, tells)
        if case is not None:
            found.setdefault((case.asked.inputs, repr(case.asked.attrs)), case)
    return list(found.values())


def _case(
    spec: OpSpec, sample: Sample, note: str, rng: np.random.Generator, tells: Tells
) -> Case | None:
    own = arrays_of(sample)
    if any(x.size == 0 for x in own):
        return None
    for shapes, attrs in larger(own, sample.attrs):
        asked = asked_of(spec, own, shapes, attrs)
        if asked is None:
            continue
        first = (own,) if shapes == [x.shape for x in own] else ()
        drawn = [(x, _told(spec, asked, x, tells)) for x in (*first, *_drawn(own, shapes, rng))]
        if any(told == "much" for _, told in drawn):
            draws = tuple(x for x, told in drawn if told != "nothing")
            return Case(spec, asked, draws, note)
    return None


def arrays_of(sample: Sample) -> Arrays:
    """Return the inputs of a sample, rounded to multiples of 1 / `UNIT`."""
    return tuple(map(_exact, cast_sample(sample, float64)))


def _exact(x: Array) -> Array:
    whole = np.rint(x.astype(np.float64) * UNIT) / UNIT if is_floating(x) else x
    return np.asarray(whole).astype(x.dtype)


# ------------------------------------------------------------------------------------- larger


def larger(
    arrays: Arrays, attrs: Mapping[str, AttrValue], more: int = 0
) -> Iterator[tuple[list[Any], Any]]:
    """Yield shapes and attributes: first with most sizes replaced, last with none replaced.

    The new sizes are ``more`` larger than those of `SIZES`.
    """
    shapes = [x.shape for x in arrays]
    given = {n for shape in shapes for n in shape} | set(numbers(attrs.get("shape")))
    sizes = sorted(n for n in given if n > 1)[: len(SIZES)]
    flat = max(map(len, shapes), default=0) <= 2
    for count in range(len(sizes), 0, -1):
        for chosen in combinations(range(len(sizes)), count):
            new = {sizes[i]: (FLAT_SIZES if flat else SIZES)[i] + more for i in chosen}
            larger = [tuple(new.get(n, n) for n in shape) for shape in shapes]
            yield larger, attrs
            yield larger, {k: replaced(v, new) for k, v in attrs.items()}
    yield shapes, attrs


def numbers(value: Any) -> Iterator[int]:
    """Yield the positive integers of an attribute: of a tuple, or the value itself."""
    for n in value if isinstance(value, tuple) else (value,):
        if type(n) is int and n > 0:
            yield n


def replaced(value: Any, new: Mapping[int, int]) -> Any:
    """Replace sizes in an attribute.

    >>> replaced((2, (3, -1)), {3: 67}), replaced("max", {3: 67})
    ((2, (67, -1)), 'max')
    """
    if isinstance(value, tuple):
        return tuple(replaced(v, new) for v in value)
    return new.get(value, value) if type(value) is int else value


def asked_of(
    spec: OpSpec, own: Arrays, shapes: Sequence[Array], attrs: AttrValue
) -> KernelQuery | None:
    """Return the query for given shapes; None if too large, or if the op rejects the shapes."""
    try:
        asked = query(spec, [np.empty(s, x.dtype) for s, x in zip(shapes, own, strict=True)], attrs)
    except NONSENSE:
        return None
    types = (*asked.inputs, *asked.outputs)
    return asked if all(0 < t.size <= LARGEST for t in types) else None


# -------------------------------------------------------------------------------------- draws


def _drawn(own: Arrays, shapes: Sequence[Array], rng: np.random.Generator) -> Iterator[Arrays]:
    """Yield draws within the sample's range, then beyond that range.

    The draws beyond the range are for each floating point input, then for all.  Integers, which may
    be indices, stay in range unless all inputs are integers.

    The last draws have many zeros and equal values, for truth values and comparisons.
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
    return _exact(made) if exact else made


def _told(spec: OpSpec, asked: KernelQuery, arrays: Arrays, tells: Tells) -> str:
    """Return how much the results tell about rules: "much", "little" or "nothing".

    They tell little if they are too uniform, and nothing if they are not finite or if the op
    changes nothing.
    """
    try:
        results = evaluate_op(spec, asked, arrays)
    except NONSENSE:
        return "nothing"
    if [np.shape(r) for r in results] != [t.shape for t in written(spec, asked)]:
        return "nothing"
    if not all(np.isfinite(np.asarray(r, np.float64)).all() for r in results):
        return "nothing"
    old = [arrays[i] for i in overwritten(spec, asked)]
    if old and not asked.outputs and all(map(np.array_equal, results, old)):
        return "nothing"
    return "much" if all(map(tells, results)) else "little"


def _varied(result: Array) -> bool:
    """Return whether a result has unequal elements, if it has several, and not only zeros."""
    array = np.asarray(result)
    return bool(array.any()) and (array.size == 1 or len(np.unique(array)) > 1)


def _not_zero(result: Array) -> bool:
    """Return whether a result is `_varied`, or is floating point, uniform and not 0."""
    return bool(np.any(result)) and (is_floating(result) or _varied(result))
