"""The cases of the kernel kit: a kernel with inputs, also enlarged, sliced or concatenated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import InferenceError
from flow_core.ir.graph import TensorType
from flow_core.plugins import batchable
from flow_core.plugins.specs import KernelQuery, KernelSpec, OpSpec, SbpContext
from flow_core.sharding.sbp import Partial, Signature, Split
from flow_core.testing.checks import overwritten, query, written


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel and its inputs.

    Attributes:
        spec, kernel: the op and the kernel.
        asked: the kernel query, which is the op with concrete types.
        arrays: host arrays for the inputs.
    """

    spec: OpSpec
    kernel: KernelSpec
    asked: KernelQuery
    arrays: tuple[Any, ...]

    @property
    def size(self) -> int:
        """Number of elements of inputs and outputs."""
        return sum(t.size for t in (*self.asked.inputs, *self.asked.outputs))

    @property
    def mutates(self) -> tuple[int, ...]:
        """Inputs that the op overwrites."""
        return overwritten(self.spec, self.asked)

    @property
    def written(self) -> tuple[TensorType, ...]:
        """Types of the outputs and of the overwritten inputs."""
        return written(self.spec, self.asked)

    def of(self, arrays: Sequence[Array]) -> Case | None:
        """Return the case with other arrays; None if the op or the kernel rejects the arrays."""
        try:
            asked = replace(query(self.spec, arrays, self.asked.attrs), find=self.asked.find)
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
