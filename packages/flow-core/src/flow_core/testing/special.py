"""Checks of kernels for special values: NaN, infinities, zeros, subnormals and extremes of a type.

A *trial* puts one kind of value into one input of a case, or several kinds into all inputs.  A
kernel agrees with the reference, computed in float64 and rounded to the output's type, if

- NaN is at the same positions, with any sign and payload;
- infinities are at the same positions, with the same signs;
- subnormal numbers do not become zero;
- other numbers are equal within the tolerance of the type;
- zeros have the same sign, if the op is elementwise (the sign of a sum depends on its order).

With the largest inputs, intermediate results of an op that is not elementwise may overflow.  In
such trials, the result must only be non-finite wherever the reference is non-finite; that of
float64 numbers is not compared, because the intermediate results of the reference overflow, too.

A deliberate difference is a `Deviation`: a row with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any, Literal
from zlib import crc32

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType, as_dtype, float64
from flow_core.testing.checks import Tolerance

Aspect = Literal["lost", "nan", "infinity", "zero_sign", "subnormal", "finite", "refused"]
"""The kind of a difference; "lost" means a finite number instead of NaN or infinity."""

FLOATING: Mapping[str, Callable[[Any], float]] = {
    "nan": lambda info: nan,
    "-nan": lambda info: -nan,
    "inf": lambda info: inf,
    "-inf": lambda info: -inf,
    "zero": lambda info: 0.0,
    "-zero": lambda info: -0.0,
    "subnormal": lambda info: float(info.smallest_normal) / 4,
    "-subnormal": lambda info: -float(info.smallest_normal) / 4,
    "largest": lambda info: float(info.max),
    "lowest": lambda info: float(info.min),
}
"""The special values of a floating point type, given its ``finfo``."""

INTEGERS: Mapping[str, Callable[[Any], int]] = {
    "integer_zero": lambda info: 0,
    "integer_max": lambda info: int(info.max),
    "integer_min": lambda info: int(info.min),
}
"""The special values of an integer type, given its ``iinfo``."""

HUGE = ("largest", "lowest")
MIXED = "mixed"
"""The name for trials with all kinds of special values in all inputs."""
EVERYWHERE = ("nan", "inf", "-inf", "zero", "-zero", "subnormal")
"""Values that some trials put into all elements of an input."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A special value and its positions."""

    value: str  # a key of `FLOATING` or `INTEGERS`, or `MIXED`
    index: int | None  # number of the input; None for all inputs
    everywhere: bool = False  # whether all elements have the value, instead of some

    def __str__(self) -> str:
        where = "all inputs" if self.index is None else f"input {self.index}"
        return f"{self.value} {'everywhere ' if self.everywhere else ''}in {where}"


@dataclass(frozen=True, slots=True)
class Deviation:
    """A deliberate difference between kernels and the reference.

    The kit fails if a deviation is no longer needed.

    Attributes:
        op: type of the op.
        aspects: the kinds of differences.
        reason: why the difference is correct, or cannot be avoided.
        values: values of trials (`Trial.value`); empty for all.
        dtypes: element types of samples, as in `KernelKit.dtypes`; empty for all.
        everywhere: whether the difference occurs on every machine.  Only in this case, the kit
            checks that the deviation is needed.

    >>> row = Deviation("relu", ("zero_sign",), "max(0, -0) may be either", ("-zero",))
    >>> row.covers(Difference("relu", "float32", Trial("-zero", 0), "zero_sign", 0, ""))
    True
    """

    op: str
    aspects: tuple[Aspect, ...]
    reason: str
    values: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    everywhere: bool = True

    def covers(self, found: Difference) -> bool:
        """Return whether this deviation covers a difference."""
        return (
            self.op == found.op
            and found.aspect in self.aspects
            and (not self.values or found.trial.value in self.values)
            and (not self.dtypes or found.dtype in self.dtypes)
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a kernel and the reference in one aspect of one output."""

    op: str
    dtype: str  # element type of the op's samples
    trial: Trial
    aspect: Aspect  # the first aspect in which kernel and reference differ
    output: int  # number of the output; mutated inputs are numbered after the outputs
    words: str  # description of the kernel's and the reference's values

    def __str__(self) -> str:
        return f"{self.op} {self.dtype}, {self.trial}: {self.aspect}: {self.words}"


def values_of(dtype: DType) -> dict[str, Any]:
    """Return the special values of an element type by name; none for bool and objects.

    >>> values_of(as_dtype("int8"))["integer_min"], values_of(as_dtype("bool"))
    (-128, {})
    """
    if dtype.is_floating:
        return {name: make(finfo(dtype)) for name, make in FLOATING.items()}
    if dtype.is_integer:
        return {name: make(np.iinfo(dtype.numpy)) for name, make in INTEGERS.items()}
    return {}


def finfo(dtype: DType) -> Any:
    """Return the limits of a floating point type, bfloat16 included."""
    info: Any = np.finfo
    if dtype.name == "bfloat16":
        import ml_dtypes

        info = ml_dtypes.finfo
    return info(dtype.numpy)


def trials(arrays: Sequence[Array]) -> list[Trial]:
    """Return all trials for the inputs of an op."""
    found = []
    for index, array in enumerate(arrays):
        names = values_of(as_dtype(array.dtype)) if array.size else {}
        found += [Trial(name, index) for name in names]
        found += [Trial(name, index, True) for name in names if name in EVERYWHERE]
    return found + [Trial(MIXED, None)] * (2 if found else 0)


def placed(trial: Trial, arrays: Sequence[Array], seed: str) -> tuple[Array, ...]:
    """Return the input arrays of a trial; a huge number is put into one element only."""
    rng = np.random.default_rng(crc32(f"{seed} {trial}".encode()))
    chosen = range(len(arrays)) if trial.index is None else (trial.index,)
    return tuple(
        _changed(trial, x, rng) if i in chosen and x.size else x for i, x in enumerate(arrays)
    )


def _changed(trial: Trial, array: Array, rng: np.random.Generator) -> Array:
    known, made = values_of(as_dtype(array.dtype)), array.copy()
    if trial.value != MIXED and trial.value not in known:
        return made
    flat = made.reshape(-1)
    if trial.value == MIXED:
        kinds = [v for name, v in known.items() if name not in HUGE]
        for place in np.flatnonzero(rng.random(flat.size) < 0.4) if kinds else ():
            flat[place] = kinds[rng.integers(len(kinds))]
    elif trial.everywhere:
        flat[:] = known[trial.value]
    elif trial.value in HUGE:
        flat[rng.integers(flat.size)] = known[trial.value]
    else:
        flat[rng.random(flat.size) < 0.3] = known[trial.value]
        flat[rng.integers(flat.size)] = known[trial.value]
    return made


def difference(
    dtype: DType, want: Array, have: Array, tolerance: Tolerance, skipped: Collection[Aspect] = ()
) -> tuple[Aspect, str] | None:
    """Return the first aspect in which a result differs from the reference, and the location.

    Args:
        want: the reference's result, in float64 if floating point.
        tolerance: relative and absolute tolerance for numbers that are not special.
    """
    if not dtype.is_floating:
        return _first("finite", np.asarray(want) != have, want, have)
    wide, found = np.asarray(want, np.float64), np.asarray(have).astype(np.float64)
    for aspect, wrong in _wrong(dtype, wide, found, tolerance):
        differs = None if aspect in skipped else _first(aspect, wrong, wide, found)
        if differs is not None:
            return differs
    return None


def skipped(trial: Trial, elementwise: bool, dtype: DType) -> tuple[Aspect, ...]:
    """Return the aspects that a trial of an op does not compare for a result of a type."""
    if elementwise:
        return ()
    if trial.value not in HUGE:
        return ("zero_sign",)
    rest: tuple[Aspect, ...] = ("nan", "infinity", "subnormal", "finite", "zero_sign")
    return ("lost", *rest) if dtype is float64 else rest


def _wrong(
    dtype: DType, want: Array, have: Array, tolerance: Tolerance
) -> Iterator[tuple[Aspect, Array]]:
    """Yield each aspect with a mask of differences, assuming that earlier aspects agree."""
    info, (relative, absolute) = finfo(dtype), tolerance
    with np.errstate(all="ignore"):
        rounded = want.astype(dtype.numpy).astype(np.float64)
        top = float(info.max)
        near_top = (np.abs(want) > top * (1 - relative)) & (np.abs(want) < top * (1 + relative))
        yield "lost", ~np.isfinite(rounded) & np.isfinite(have) & ~near_top
        yield "nan", np.isnan(rounded) != np.isnan(have)
        infinite = np.isinf(rounded) | np.isinf(have)
        yield "infinity", infinite & (rounded != have) & ~near_top & ~np.isnan(have)
        yield "zero_sign", (want == 0) & (have == 0) & (np.signbit(want) != np.signbit(have))
        tiny = float(info.smallest_normal)
        yield "subnormal", (have == 0) & (np.abs(want) > tiny / 8) & (np.abs(want) < tiny)
        finite = np.isfinite(rounded) & np.isfinite(have)
        yield "finite", finite & (np.abs(have - want) > absolute + relative * np.abs(want))


def _first(aspect: Aspect, wrong: Array, want: Array, have: Array) -> tuple[Aspect, str] | None:
    where = np.argwhere(wrong)
    if not len(where):
        return None
    at = tuple(map(int, where[0]))
    place = f" at {list(at)}" if at else ""
    return aspect, f"{have[at]!s} for {np.asarray(want)[at]!s}{place} ({len(where)} elements)"
