"""The cases of the kernel kit: a kernel with inputs, also enlarged, sliced or concatenated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import InferenceError
from flow_core.ir.graph import Attrs, TensorType
from flow_core.plugins import batchable
from flow_core.plugins.specs import KernelQuery, KernelSpec, OpSpec, SbpContext
from flow_core.sharding.sbp import Partial, Signature, Split
from flow_core.testing.checks import (
    TOLERANCE,
    is_floating,
    overwritten,
    query,
    reference_results,
    written,
)
from flow_core.testing.prover_cases import NONSENSE, REFUSED, numbers, replaced
from flow_core.testing.special import finfo
from flow_rules.draws import draw


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel and its inputs."""

    spec: OpSpec
    kernel: KernelSpec
    asked: KernelQuery  # the kernel query, which is the op with concrete types
    arrays: tuple[Any, ...]  # host arrays for the inputs

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Types of inputs and outputs."""
        return (*self.asked.inputs, *self.asked.outputs)

    @property
    def size(self) -> int:
        """Number of elements of inputs and outputs."""
        return sum(t.size for t in self.types)

    @property
    def mutates(self) -> tuple[int, ...]:
        """Inputs that the op overwrites."""
        return overwritten(self.spec, self.asked)

    @property
    def written(self) -> tuple[TensorType, ...]:
        """Types of the outputs and of the overwritten inputs."""
        return written(self.spec, self.asked)

    def of(self, arrays: Sequence[Array], attrs: Any = None) -> Case | None:
        """Return the case with other arrays; None if the op or the kernel rejects the arrays."""
        attrs = self.asked.attrs if attrs is None else attrs
        try:
            asked = replace(query(self.spec, arrays, attrs), find=self.asked.find)
        except InferenceError:
            return None
        if self.kernel.accepts is None or self.kernel.accepts(asked):
            return Case(self.spec, self.kernel, asked, tuple(arrays))
        return None

    def grown(self, copies: int) -> Case:
        """Return the case with some axes ``copies`` times as long.

        The axes are those that the first applicable SBP rule of the op splits: an op that can be
        split along an axis also accepts the concatenation of more parts along that axis.
        """
        asked = self.asked
        context = SbpContext(asked.inputs, asked.outputs, asked.attrs)
        for rule in self.spec.sbp(context) if self.size else ():
            if any(isinstance(s, Partial) for s in rule.inputs):
                continue
            rows = zip(self.arrays, rule.inputs, strict=True)
            found = self.of([_repeated(*row, copies) for row in rows])
            if found is not None and _fits(asked, found.asked, rule, copies):
                return found
        return self


def _repeated(array: Array, sbp: object, copies: int) -> Array:
    return np.concatenate([array] * copies, sbp.axis) if isinstance(sbp, Split) else array


def _fits(small: KernelQuery, large: KernelQuery, rule: Signature, copies: int) -> bool:
    """Return whether the outputs grew according to the rule, and at least one of them grew."""
    wanted = []
    for type_, sbp in zip(small.outputs, rule.outputs, strict=True):
        axis = sbp.axis if isinstance(sbp, Split) else None
        wanted.append(tuple(n * copies if i == axis else n for i, n in enumerate(type_.shape)))
    return large.inputs != small.inputs and [t.shape for t in large.outputs] == wanted


INDICES = (np.dtype("int32"), np.dtype("int64"))
"""The types of indices, whose ranges grow with the sizes that they refer to."""
LADDER = (
    2_147_483_651,
    67_108_867,
    2_097_155,
    262_147,
    65_539,
    32_771,
    4099,
    1027,
    515,
    259,
    131,
    67,
    35,
    19,
)
"""Sizes of large cases, 3 modulo 16.  The i-th size of a case is 2 i larger, so all are odd."""


def large_cases(case: Case, elements: int) -> Iterator[Case]:
    """Yield a case with large odd sizes: all sizes replaced, then each of them alone.

    Equal sizes are replaced by equal sizes, as long as no tensor exceeds a number of elements.
    Values are within the range of those of the case; floating point values are multiples of 1/16,
    whose sums are exact, or if these do not suit the op, any values.  Cases are left out that the
    op, the kernel or the reference rejects, and those whose results are not reliable: NaN, too
    large for their type, or discontinuous within the rounding of the inputs.
    """
    attrs = case.asked.attrs
    named = [attrs.get("shape")] if case.arrays else attrs.values()
    given = {n for x in case.arrays for n in x.shape} | {n for v in named for n in numbers(v)}
    sizes = sorted(n for n in given if n > 1) if case.size else []
    seen: set[tuple[int, ...]] = {()}
    for chosen in (tuple(sizes), *((n,) for n in reversed(sizes))):
        if chosen not in seen:
            seen.add(chosen)
            found = next(_enlarged(case, chosen, elements), None)
            if found is not None:
                yield found


def _enlarged(case: Case, sizes: Sequence[int], elements: int) -> Iterator[Case]:
    """Yield the case with some sizes replaced, the largest first."""
    attrs = case.asked.attrs
    for base in LADDER:
        new = {n: base + 2 * i for i, n in enumerate(sizes) if n < base}
        shapes = [tuple(new.get(n, n) for n in x.shape) for x in case.arrays]
        if new and max(map(prod, shapes), default=0) <= elements:
            for changed in (attrs, Attrs({k: replaced(v, new) for k, v in attrs.items()})):
                blank = _blank(case, shapes, changed)
                if blank is not None and max(t.size for t in blank.types) <= elements:
                    yield from _redrawn(case, blank, new)


def _blank(case: Case, shapes: Sequence[tuple[int, ...]], attrs: Any) -> Case | None:
    """Return the case with zeros of given shapes; None if an attribute contradicts the shapes."""
    pairs = zip(case.arrays, shapes, strict=True)
    try:
        return case.of([np.broadcast_to(np.zeros((), x.dtype), s) for x, s in pairs], attrs)
    except NONSENSE:
        return None


def _redrawn(case: Case, blank: Case, new: Mapping[int, int]) -> Iterator[Case]:
    """Yield a case of the types of ``blank``, with results that are reliable, if there is one."""
    named = {n for value in blank.asked.attrs.values() for n in numbers(value)}
    limits = {n: n for n in named} | {n: new.get(n, n) for x in case.arrays for n in x.shape}
    for exact in (True, False) if any(map(is_floating, case.arrays)) else (True,):
        for far in (True, False) if any(x.dtype in INDICES for x in case.arrays) else (False,):
            rng = np.random.default_rng(11)
            arrays = []
            for x, type_ in zip(case.arrays, blank.asked.inputs, strict=True):
                if far and x.dtype in INDICES and x.size:
                    arrays.append(_indices(x, type_, limits, rng))
                elif x.shape == type_.shape:
                    arrays.append(x)
                else:
                    arrays.append(draw(x, type_.shape, False, rng, exact))
            found = replace(blank, arrays=tuple(arrays))
            try:
                if _is_reliable(found):
                    yield found
            except REFUSED:
                continue


def _indices(
    x: Array, type_: TensorType, limits: Mapping[int, int], rng: np.random.Generator
) -> Array:
    """Draw integers below all sizes below which a sample's are; lengths stay in their range."""
    last = int(x.max(initial=0))
    ends = [last + 1] if last in limits else [new for old, new in limits.items() if old > last]
    end = max(min(ends, default=0), last + 1)
    return rng.integers(int(x.min(initial=last)), end, type_.shape).astype(x.dtype)


def _is_reliable(case: Case) -> bool:
    """Return whether the types hold the results, which depend continuously on floating inputs."""
    results = reference_results(case.spec, case.asked, case.arrays)
    if not all(map(_is_held, case.written, results)):
        return False
    if not all(t.dtype.is_floating for t in case.written):
        return True
    rng = np.random.default_rng(13)
    for _ in range(2):
        near = [_nearby(x, rng) if is_floating(x) else x for x in case.arrays]
        found = reference_results(case.spec, case.asked, near)
        rows = zip(case.written, results, found, strict=True)
        if not all(np.allclose(a, b, *TOLERANCE[type_.dtype]) for type_, a, b in rows):
            return False
    return True


def _nearby(array: Array, rng: np.random.Generator) -> Array:
    """Change numbers by half a unit in the last place of their type."""
    epsilon = float(finfo(as_dtype(array.dtype)).eps) / 2
    return np.asarray(array.astype(np.float64) * (1 + epsilon * rng.choice((-1, 1), array.shape)))


def _is_held(type_: TensorType, result: Array) -> bool:
    """Return whether a type holds a result: without NaN and without overflow."""
    with np.errstate(all="ignore"):
        rounded = np.asarray(result).astype(type_.dtype.numpy)
    if type_.dtype.is_floating:
        return bool(np.all(np.isfinite(rounded.astype(np.float64)) | np.isinf(result)))
    return np.array_equal(rounded, result)


def tilings(case: Case) -> Iterator[list[Array]]:
    """Yield inputs of a case, sliced to a part of the elements or to a part of the leading axis."""
    shape = case.asked.outputs[0].shape
    size = case.asked.outputs[0].size
    if size > 2:
        yield [_flat(x, shape)[: None if x.size == 1 else size - 1][-size:] for x in case.arrays]
        yield [_flat(x, shape)[0 if x.size == 1 else 1 :] for x in case.arrays]
    if shape and shape[0] > 1 and size:
        wide = [x.reshape((1,) * (len(shape) - x.ndim) + x.shape) for x in case.arrays]
        yield [x if x.shape[0] == 1 else x[1:] for x in wide]


def side_by_side(case: Case) -> Iterator[tuple[Case, list[Case]]]:
    """Yield a case of many rows and the cases of its parts.

    One, some, or all of the inputs that have rows are split among the parts.
    """
    count = len(case.arrays)
    choices = {tuple(range(count)), (0,), (count - 1,)}
    for split in choices if count else ():
        if not all(case.arrays[i].ndim and len(case.arrays[i]) for i in split):
            continue
        arrays = [[x, x[:1], x[::-1]] if i in split else [x] * 3 for i, x in enumerate(case.arrays)]
        joined = [np.concatenate(a) if i in split else a[0] for i, a in enumerate(arrays)]
        whole, *parts = map(case.of, (joined, *map(list, zip(*arrays, strict=True))))
        found = [part for part in parts if part is not None]
        if whole is not None and len(found) == len(parts) and _are_rows(whole, found):
            yield whole, found


def _are_rows(whole: Case, parts: Sequence[Case]) -> bool:
    """Return whether the concatenated results of the parts have the type of the whole result."""
    made = zip(whole.asked.outputs, *(part.asked.outputs for part in parts), strict=True)
    return all(batchable.side_by_side(types) == out for out, *types in made)


def _flat(array: Array, shape: tuple[int, ...]) -> Array:
    """Flatten an input in the order of the output's elements; keep an input of one element."""
    return array.reshape(1) if array.size == 1 else np.broadcast_to(array, shape).reshape(-1)


def stretchings(case: Case) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Yield, for each input of the output's shape, inputs in which that input is constant."""
    result = case.asked.outputs[0]
    for k, x in enumerate(case.arrays):
        if x.shape == result.shape and x.size > 1 and k < len(case.arrays):
            one = np.broadcast_to(x.reshape(-1)[:1], x.shape)
            yield k, tuple(one if i == k else y for i, y in enumerate(case.arrays))
