"""Matrix products, with scale, bias and activation in the same primitive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.specs import (
    Attrs,
    AttrValue,
    BindContext,
    KernelQuery,
    KernelSpec,
    TensorType,
)
from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_onednn import binding
from flow_onednn.kernels.upcast import product
from flow_onednn.library import library
from flow_onednn.primitives import Md, PostOps, create, plain
from flow_onednn.recipes import Implementation, Operand, Problem, Recipe, RecipeSequence, recipe

ACTIVATIONS = {"": None, "relu": binding.RELU, "gelu": binding.GELU_ERF}

PANEL, SHORT_PANEL, MAX_TILES = 3 << 20, 3 << 19, 8
"""Maximum bytes of a tile of row-major weights if they are split along K, and along N; maximum
number of tiles. A tile stays in a core's cache while all rows of the left operand are multiplied
by it. 256 x 768 x 3072 takes 7.3 ms as one product and 4.2 ms as four tiles along K."""
WHOLE = 5 << 18
"""Bytes of weights above which two tiles are faster, although a core's cache holds all of them.

100 x 784 x 512 takes 547 us as one product and 508 us as two tiles; 256 x 768 x 768 takes 1950 us
and 1770 us."""
DEEP = 512
"""Minimum number of columns of the left operand for tiles along K."""
TALL = 1 << 14
"""Minimum number of rows of a transposed left operand for tiles along M."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand, viewed as a matrix or a stack of matrices."""

    shape: tuple[int, ...]  # logical sizes, after transposition
    strides: tuple[int, ...]  # in elements
    dtype: str = "float32"

    @property
    def md(self) -> Md:
        """The memory descriptor of the operand."""
        return plain(self.shape, self.dtype, self.strides)

    def part(self, axis: int, span: Span) -> tuple[Matrix, int]:
        """Return the rows (axis -2) or columns (axis -1) in a span, and their offset in bytes."""
        sizes = list(self.shape)
        sizes[axis] = span[1] - span[0]
        step = self.strides[axis] * as_dtype(self.dtype).itemsize
        return replace(self, shape=tuple(sizes)), span[0] * step


Span = tuple[int, int]


def matrix(type_: TensorType, transpose: bool) -> Matrix:
    """View an operand as a matrix or a stack of matrices."""
    (*batch, rows, columns), dtype = type_.shape, type_.dtype.name
    stack = (prod(batch),) if batch else ()
    step = (rows * columns,) if batch else ()
    if transpose:
        return Matrix((*stack, columns, rows), (*step, 1, columns), dtype)
    return Matrix((*stack, rows, columns), (*step, columns, 1), dtype)


def build(p: Problem) -> Recipe | RecipeSequence | None:
    """Build ``matmul``, ``batch_matmul`` or ``onednn_matmul``."""
    attrs = p.attrs
    if len(p.inputs) == 3 and attrs["alpha"] != 1.0:
        return None  # the library would scale the bias as well
    a = matrix(p.inputs[0], attrs["transpose_a"])
    b = matrix(p.inputs[1], attrs["transpose_b"])
    axis, spans = _tiles(a, b, attrs)
    found = [_tile(p, a, b, axis, span, spans) for span in spans]
    made = tuple(r for r in found if r is not None)
    if len(made) < len(found):
        return None
    return made[0] if len(made) == 1 else RecipeSequence(made)


def _tiles(a: Matrix, b: Matrix, attrs: dict[str, AttrValue]) -> tuple[str, list[Span]]:
    """Return the axis along which a product is tiled ("m", "n" or "k"), and the tiles' spans."""
    (*stack, rows, deep), columns = a.shape, b.shape[-1]
    size = 4 * deep * columns
    if stack or attrs["transpose_b"] or a.dtype != "float32":  # partial sums would be rounded
        return "n", [(0, columns)]
    if attrs["transpose_a"] and rows >= TALL:
        return "m", _spans(rows, 4)
    if deep >= DEEP and attrs["alpha"] == 1.0:  # no primitive both scales and accumulates
        minimum = 2 if size > WHOLE and not attrs["transpose_a"] else 1
        return "k", _spans(deep, min(MAX_TILES, max(minimum, -(-size // PANEL))))
    return "n", _spans(columns, min(MAX_TILES, -(-size // SHORT_PANEL)))


def _spans(size: int, count: int) -> list[Span]:
    """Split a size into spans of equal size, a multiple of the widest vector, and a remainder."""
    step = max(16, -(-size // count // 16) * 16)
    return [(low, min(low + step, size)) for low in range(0, size, step)]


def _tile(
    p: Problem, a: Matrix, b: Matrix, axis: str, span: Span, spans: list[Span]
) -> Recipe | None:
    """Build one tile; along "k", tiles accumulate, and the last one applies bias and activation."""
    attrs, shape = p.attrs, (*a.shape[:-1], b.shape[-1])
    whole = Matrix(shape, row_major_matrix(a, b), p.outputs[0].dtype.name)
    left, at_left = a.part({"m": -2, "k": -1}[axis], span) if axis != "n" else (a, 0)
    right, at_right = b.part({"n": -1, "k": -2}[axis], span) if axis != "m" else (b, 0)
    c, at = whole.part({"m": -2, "n": -1}[axis], span) if axis != "k" else (whole, 0)
    first, last = (axis != "k" or span == spans[end] for end in (0, -1))
    operands = [
        Operand("src", 0, left.md, offset=at_left),
        Operand("weights", 1, right.md, offset=at_right),
        Operand("dst", 0, c.md, True, at),
    ]
    bias = library().ffi.NULL
    if len(p.inputs) == 3 and last:
        bias = plain((*(1,) * (len(c.shape) - 1), c.shape[-1]), c.dtype)
        operands.append(Operand("bias", 2, bias, offset=at if axis == "n" else 0))
    activation = ACTIVATIONS[attrs.get("activation", "")] if last else None
    math = attrs.get("math", "")
    adds = not first or attrs.get("accumulate", False)
    post = PostOps(scale=attrs["alpha"], accumulate=adds, activation=activation)
    return recipe(create("matmul", left.md, right.md, bias, c.md, post=post, math=math), operands)


def row_major_matrix(a: Matrix, b: Matrix) -> tuple[int, ...]:
    """Return the strides of the row-major product of two operands."""
    rows, columns = a.shape[-2], b.shape[-1]
    return (rows * columns, columns, 1) if len(a.shape) == 3 else (columns, 1)


def run(implementation: Implementation | None, p: Problem, operands: Sequence[Array]) -> Any:
    """Return the product of ``operands``; None if there is no implementation."""
    if implementation is None:
        return None
    (out,) = p.outputs
    made, workspace = np.empty(out.shape, np.float32), np.empty(implementation.workspace, np.uint8)
    query = KernelQuery(p.op, Attrs(p.attrs), p.inputs, p.outputs)
    for launch in implementation.bind(BindContext(query, tuple(operands), (made,), workspace)):
        launch()
    return made


@dataclass(frozen=True, slots=True)
class WithCopy:
    """A product that reads or writes float32 numbers in the workspace, a copy of an array."""

    product: Implementation
    size: int  # the number of elements of the copy

    @property
    def _bytes(self) -> int:
        return aligned(4 * self.size)

    @property
    def workspace(self) -> int:
        """Bytes for the copy and for the product."""
        return self._bytes + self.product.workspace

    @property
    def reorders(self) -> int:
        return 4 * self.size + self.product.reorders

    @property
    def allocates(self) -> bool:
        return self.product.allocates

    def split(self, workspace: Any) -> tuple[Any, Any]:
        """Return the copy, and the workspace of the product."""
        return workspace[: 4 * self.size].view("float32"), workspace[self._bytes :]


KERNELS: tuple[KernelSpec, ...] = (product("batch_matmul", build),)
