"""Weight gradients of convolutions, split along the batch into a fixed number of partial sums.

The library would split the batch into as many parts as there are threads, so that the bits of the
sum would depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, tensor_type
from flow_core.base.alignment import aligned
from flow_core.base.dtypes import float32
from flow_onednn import threads
from flow_onednn.kernels.concurrent import concurrent_launch, supported
from flow_onednn.kernels.loops import FLOAT_BYTES, null
from flow_onednn.native import compiler
from flow_onednn.primitives import (
    BoundPrimitive,
    Tensor,
    address,
    bind_primitive,
    nbytes,
    reorder,
    same_layout,
)
from flow_onednn.recipes import Implementation, Operand, Problem, Recipe

PIXELS = 1 << 10
"""Minimum output pixels of a part, so that adding its partial sum is a small part of the time."""
WIDTH = 256
"""Number of floats in a row of the loop that adds partial sums."""
WEIGHTS, BIAS = "diff_weights", "diff_bias"


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """The weight gradients of several ranges of images, which are added in order."""

    parts: tuple[Recipe, ...]  # a single-threaded recipe per range
    starts: tuple[int, ...]  # the first image of each range
    given: tuple[Operand, ...]  # the op's outputs

    @property
    def workspace(self) -> int:
        """Bytes for the partial sums and scratchpads of all parts."""
        return self._sums * len(self.parts) + sum(map(_scratch, self.parts))

    @property
    def _sums(self) -> int:
        """Return the bytes of the partial sums of a part, rounded up to whole rows."""
        row = WIDTH * FLOAT_BYTES
        return -(-sum(aligned(nbytes(o.md)) for o in self._results()) // row) * row

    def _results(self) -> tuple[Operand, ...]:
        """Return the outputs in the layouts of the primitive."""
        first = self.parts[0]
        found = (o for o in first.operands if o.result)
        return tuple(replace(o, md=_own(first, o)) for o in found)

    @property
    def reorders(self) -> int:
        """Bytes copied between layouts: the sum is copied to the layout of the weights."""
        return self._sums

    @property
    def allocates(self) -> bool:
        return any(r.allocates for r in self.parts)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches: one runs all parts concurrently, the others copy their sum."""
        at = address(ctx.workspace)
        with threads.single_threaded():
            ready = list(self._prepared(ctx, at))
        make, rows = compiler.ffi(compiler.CDEF), self._sums // (WIDTH * FLOAT_BYTES)
        sums = [make.cast("float *", p) for p in (at, at + self._sums)]
        rest = (*sums, null(), rows, WIDTH, False)
        first = self.parts[0].primitive
        launches = [concurrent_launch("run_split_k", ready, *rest, primitive=first)]
        for own, operand in zip(self._results(), self.given, strict=True):
            target = (operand.md, address(ctx.outputs[operand.index]))
            launches.append(reorder((own.md, at), target))
            at += aligned(nbytes(own.md))
        return launches

    def _prepared(self, ctx: BindContext, at: int) -> Iterator[BoundPrimitive]:
        scratch = at + self._sums * len(self.parts)
        for part, start in zip(self.parts, self.starts, strict=True):
            tensors: dict[str, Tensor] = {
                o.role: (o.md, _image(ctx.inputs[o.index], start))
                for o in part.operands
                if not o.result
            }
            sums = at
            for own in self._results():
                tensors[own.role] = (own.md, sums)
                sums += aligned(nbytes(own.md))
            yield bind_primitive(part.primitive, tensors, scratch)
            at += self._sums
            scratch += _scratch(part)


def _scratch(part: Recipe) -> int:
    return aligned(part.primitive.scratchpad)


def _own(part: Recipe, operand: Operand) -> object:
    """Return the layout in which the primitive writes an output."""
    return part.primitive.md(operand.role) if operand.role == WEIGHTS else operand.md


def _image(images: np.ndarray, start: int) -> int:
    return address(images) + start * images.strides[0]


def filter_grad(p: Problem, build: Callable[[Problem], Recipe | None]) -> Implementation | None:
    """Build the gradient in parts; return None if the output has too few pixels."""
    dy, x = (t.shape for t in p.inputs)
    count = threads.partition_count(min(prod(dy[:-1]), dy[0] * PIXELS), PIXELS)
    if count == 1 or not supported():
        return None
    outputs = tuple(tensor_type(t.shape, float32) for t in p.outputs)
    type_ = p.inputs[0].dtype
    ends = [dy[0] * k // count for k in range(count + 1)]
    parts = []
    with threads.single_threaded():
        for low, high in pairwise(ends):
            inputs = tuple(tensor_type((high - low, *shape[1:]), type_) for shape in (dy, x))
            parts.append(build(replace(p, inputs=inputs, outputs=outputs)))
    made = tuple(part for part in parts if part is not None)
    alike = len(made) == count and all(map(partial(_alike, made[0]), made))
    whole = build(p) if alike else None
    if whole is None:
        return None
    return SplitBatch(made, tuple(ends[:-1]), tuple(o for o in whole.operands if o.result))


def _alike(first: Recipe, part: Recipe) -> bool:
    """Return whether a part reads images without reorders and writes the first part's layout."""
    plain = (same_layout(part.primitive.md(o.role), o.md) for o in part.operands if not o.result)
    return all(plain) and same_layout(part.primitive.md(WEIGHTS), first.primitive.md(WEIGHTS))
