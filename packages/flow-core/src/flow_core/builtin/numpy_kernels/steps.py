"""Elementwise kernels that consist of several NumPy calls.

The calls are written once, as a body, for whole arrays, tiles and 16-bit types.  A body is a
function that calls a `Steps` object; each call records one bound NumPy call.  `composite` builds a
kernel from a body.  The kernel computes float16 and bfloat16 in a wider type, and large arrays in
tiles that stay in cache.  Temporaries are in a workspace whose size a dry run of the body
determines, so that body and workspace always agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array, NumpyType, Operand
from flow_core.base.dtypes import DType
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ir.graph import AttrValue
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

TILE = 16384
"""Elements per tile; several float32 tiles of this size fit in the L2 cache."""

INTEGER_OF = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


class Scratch:
    """An allocator of aligned parts of a workspace, which records their total size."""

    def __init__(self, workspace: Any = None) -> None:
        self._workspace = workspace
        self.used = 0

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return an uninitialized array in the workspace, or a new one in a dry run."""
        fresh = np.empty(shape, dtype) if self._workspace is None else None
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        start, self.used = self.used, self.used + aligned(nbytes)
        if fresh is not None:
            return fresh
        return self._workspace[start : start + nbytes].view(dtype).reshape(shape)


@dataclass
class Steps:
    """The object that a body calls: it has the arrays of the op and records NumPy calls."""

    # The inputs; those with the output's element type are in the computation type.
    inputs: tuple[Any, ...]
    out: Any  # the output, in the computation type
    attrs: Mapping[str, Any]
    scratch: Scratch  # the allocator of temporaries
    launches: list[Launch] = field(default_factory=list)

    def __call__(self, function: Callable[..., object], *arguments: Operand, out: Array) -> Array:
        """Record ``function(*arguments, out)``; pass numbers as 0-d arrays; return ``out``."""
        like = next((a for a in arguments if isinstance(a, np.ndarray)), out)
        bound = [a if isinstance(a, np.ndarray) else np.array(a, like.dtype) for a in arguments]
        self.launches.append(call(function, *bound, out=out))
        return out

    def copy(self, target: Array, source: Array) -> Array:
        """Record a copy that converts the element type; return ``target``."""
        self.launches.append(partial(np.copyto, target, source, casting="unsafe"))
        return target

    def temp(self, dtype: Any = None) -> Any:
        """Return a temporary of the output's shape, and by default of its element type."""
        return self.scratch.take(self.out.shape, dtype or self.out.dtype)

    def test(self, function: Callable[..., object], x: Operand, y: Operand) -> Array:
        """Record a comparison; return a temporary that is True where it holds."""
        return self(function, x, y, out=self.temp(np.bool_))

    def indicator(self, function: Callable[..., object], x: Operand, y: Operand) -> Array:
        """Record a comparison; return a temporary that is 1 where it holds, else 0."""
        return self.copy(self.temp(), self.test(function, x, y))

    def bits(self, mask: Array) -> Array:
        """Return integers as wide as the output's elements, with all bits set where a mask is True.

        This overwrites the mask.  Selecting elements with these bits has no branches, whereas
        masked copies mispredict a branch for many elements.
        """
        small = mask.view(np.int8)
        self(np.negative, small, out=small)
        wide = INTEGER_OF[self.out.itemsize]
        return small if wide is np.int8 else self.copy(self.temp(wide), small)

    def keep(self, mask: Array, x: Array, out: Array) -> Array:
        """Write ``x`` where a mask is True, else 0, to ``out``; this overwrites the mask."""
        wide = INTEGER_OF[self.out.itemsize]
        self(np.bitwise_and, x.view(wide), self.bits(mask), out=out.view(wide))
        return out

    def select(self, mask: Array, x: Array, y: Array, out: Array) -> Array:
        """Write ``x`` where a mask is True, else ``y``, to ``out``; this overwrites the mask."""
        wide = INTEGER_OF[self.out.itemsize]
        mixed = self(np.bitwise_xor, x.view(wide), y.view(wide), out=self.temp(wide))
        self(np.bitwise_and, mixed, self.bits(mask), out=mixed)
        self(np.bitwise_xor, mixed, y.view(wide), out=out.view(wide))
        return out

    def polynomial(self, coefficients: Sequence[float], x: Array, out: Array) -> Array:
        """Evaluate a polynomial by Horner's rule; ``out`` must not be ``x``.

        The coefficients start with that of the highest degree.
        """
        self(np.multiply, x, coefficients[0], out=out)
        for coefficient in coefficients[1:-1]:
            self(np.add, out, coefficient, out=out)
            self(np.multiply, out, x, out=out)
        return self(np.add, out, coefficients[-1], out=out)


Body = Callable[[Steps], object]
Widen = Callable[[DType], Any]


def half_to_single(dtype: DType) -> NumpyType:
    """Return the computation type: float32 for 16-bit floating-point types, else ``dtype``."""
    return dtype.accumulate.numpy


def to_double(dtype: DType) -> NumpyType:
    """Return the computation type: float64 for floating-point types, else ``dtype``."""
    return np.dtype(np.float64) if dtype.is_floating else dtype.numpy


def _record(
    body: Body, inputs: Sequence[Array], out: Array, attrs: AttrValue, scratch: Scratch, wide: Array
) -> list[Launch]:
    """Return the launches of a body on some arrays, with casts from and to narrow types."""
    narrow = out.dtype
    steps = Steps((), out, attrs, scratch)
    if narrow == wide:
        steps.inputs = tuple(inputs)
    else:
        steps.out = scratch.take(out.shape, wide)
        steps.inputs = tuple([_widened(steps, x, narrow, wide) for x in inputs])
    body(steps)
    if narrow != wide:
        steps.copy(out, steps.out)
    return steps.launches


def _widened(steps: Steps, x: Array, narrow: Any, wide: Any) -> Array:
    return steps.copy(steps.scratch.take(x.shape, wide), x) if x.dtype == narrow else x


def _tiled(query: KernelQuery) -> bool:
    return all(t.shape == query.outputs[0].shape for t in query.inputs)


def _workspace(body: Body, widen: Widen, query: KernelQuery) -> int:
    """Return the workspace bytes that a dry run on arrays as large as the largest tile uses."""
    result = query.outputs[0]
    shape = (min(result.size, TILE),) if _tiled(query) else result.shape
    scratch = Scratch()
    inputs = [np.empty(shape if _tiled(query) else t.shape, t.dtype.numpy) for t in query.inputs]
    out = np.empty(shape, result.dtype.numpy)
    _record(body, inputs, out, query.attrs, scratch, widen(result.dtype))
    return scratch.used


def _bind(body: Body, widen: Widen, ctx: BindContext) -> list[Launch]:
    out, wide = ctx.outputs[0], widen(ctx.query.outputs[0].dtype)
    if not _tiled(ctx.query) or out.size <= TILE:
        return _record(body, ctx.inputs, out, ctx.attrs, Scratch(ctx.workspace), wide)
    launches: list[Launch] = []
    flat, flat_inputs = out.reshape(-1), [x.reshape(-1) for x in ctx.inputs]
    for start in range(0, out.size, TILE):
        part = slice(start, start + TILE)
        inputs = [x[part] for x in flat_inputs]
        launches += _record(body, inputs, flat[part], ctx.attrs, Scratch(ctx.workspace), wide)
    return launches


def composite(op: str, body: Body, widen: Widen = half_to_single) -> KernelSpec:
    """Return the kernel of an elementwise op with one output, from its body."""
    return kernel(
        op,
        lambda ctx: _bind(body, widen, ctx),
        workspace=lambda query: _workspace(body, widen, query),
    )
