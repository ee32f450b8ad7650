"""Gradients of convolutions' weights, as sums over shares of the images.

The library would divide the images among the threads, and the bits of the sum with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from flow_core.base.alignment import aligned
from flow_core.base.dtypes import float32
from flow_core.device import Launch
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import BindContext
from flow_onednn import threads
from flow_onednn.kernels.loops import FLOAT_BYTES, null
from flow_onednn.kernels.shares import at_once, here
from flow_onednn.native import compiler
from flow_onednn.primitives import (
    Prepared,
    Tensor,
    address,
    nbytes,
    prepared,
    reorder,
    same,
)
from flow_onednn.recipes import Cooked, Operand, Problem, Recipe

PIXELS = 1 << 10
"""Pixels of a result that are a share worth having: adding its weights up is little beside it."""
WIDTH = 256
"""Floats of a row in which shares are added up."""
WEIGHTS, BIAS = "diff_weights", "diff_bias"


@dataclass(frozen=True, slots=True)
class Batches:
    """The same gradient of several runs of images, added up in order.

    Attributes:
        parts: a recipe of one thread per share.
        starts: of each share, its first image.
        given: the op's outputs.
    """

    parts: tuple[Recipe, ...]
    starts: tuple[int, ...]
    given: tuple[Operand, ...]

    @property
    def workspace(self) -> int:
        """Bytes for the sums of all shares, and for what primitives need."""
        return self._sums * len(self.parts) + sum(map(_scratch, self.parts))

    @property
    def _sums(self) -> int:
        """Bytes of the sums of a share: whole rows."""
        row = WIDTH * FLOAT_BYTES
        return -(-sum(aligned(nbytes(o.md)) for o in self._results()) // row) * row

    def _results(self) -> tuple[Operand, ...]:
        """The outputs, in the layouts of the primitive."""
        first = self.parts[0]
        found = (o for o in first.operands if o.result)
        return tuple(replace(o, md=_own(first, o)) for o in found)

    @property
    def reorders(self) -> int:
        """Bytes that are copied: the sum, into the layout of the weights."""
        return self._sums

    @property
    def allocates(self) -> bool:
        """Whether the library takes memory at each launch."""
        return any(r.allocates for r in self.parts)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """The launches: all shares at once, then the copies of their sum."""
        at = address(ctx.workspace)
        with threads.alone():
            ready = list(self._prepared(ctx, at))
        launches = [at_once(partial(self._call, at), self.parts[0].primitive, ready)]
        for own, operand in zip(self._results(), self.given, strict=True):
            target = (operand.md, address(ctx.outputs[operand.index]))
            launches.append(reorder((own.md, at), target))
            at += aligned(nbytes(own.md))
        return launches

    def _prepared(self, ctx: BindContext, at: int) -> Iterator[Prepared]:
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
            yield prepared(part.primitive, tensors, scratch)
            at += self._sums
            scratch += _scratch(part)

    def _call(self, at: int, *parts: object) -> Callable[[], int]:
        make = compiler.ffi(compiler.CDEF)
        sums, more = (make.cast("float *", p) for p in (at, at + self._sums))
        rows = self._sums // (WIDTH * FLOAT_BYTES)
        return partial(compiler.native().run_sums, *parts, sums, more, null(), rows, WIDTH, False)


def _scratch(part: Recipe) -> int:
    return aligned(part.primitive.scratchpad)


def _own(part: Recipe, operand: Operand) -> object:
    """The layout in which the primitive makes an output."""
    return part.primitive.md(operand.role) if operand.role == WEIGHTS else operand.md


def _image(images: np.ndarray, start: int) -> int:
    return address(images) + start * images.strides[0]


def filter_grad(p: Problem, cook: Callable[[Problem], Recipe | None]) -> Cooked | None:
    """The recipe in shares, None where there are too few pixels for any.

    Args:
        p: the problem.
        cook: makes the recipe of one primitive.
    """
    dy, x = (t.shape for t in p.inputs)
    count = threads.shares(min(prod(dy[:-1]), dy[0] * PIXELS), PIXELS)
    if count == 1 or not here():
        return None
    outputs = tuple(tensor_type(t.shape, float32) for t in p.outputs)
    type_ = p.inputs[0].dtype
    ends = [dy[0] * k // count for k in range(count + 1)]
    parts = []
    with threads.alone():
        for low, high in pairwise(ends):
            inputs = tuple(tensor_type((high - low, *shape[1:]), type_) for shape in (dy, x))
            parts.append(cook(replace(p, inputs=inputs, outputs=outputs)))
    made = tuple(part for part in parts if part is not None)
    alike = len(made) == count and all(map(partial(_alike, made[0]), made))
    whole = cook(p) if alike else None
    if whole is None:
        return None
    return Batches(made, tuple(ends[:-1]), tuple(o for o in whole.operands if o.result))


def _alike(first: Recipe, part: Recipe) -> bool:
    """Whether a share makes sums in the layout of the first, of images as they lie."""
    plain = (same(part.primitive.md(o.role), o.md) for o in part.operands if not o.result)
    return all(plain) and same(part.primitive.md(WEIGHTS), first.primitive.md(WEIGHTS))
