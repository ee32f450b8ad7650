"""Matrix products, with scale, bias and activation in the same primitive."""

from __future__ import annotations

from math import prod

from flow_core.plugins.specs import KernelSpec
from flow_onednn import binding
from flow_onednn.library import library
from flow_onednn.primitives import Md, PostOps, chosen, create, plain
from flow_onednn.recipes import Operand, Problem, Recipe, kernel, recipe

ACTIVATIONS = {"": None, "relu": binding.RELU, "gelu": binding.GELU_ERF}

REPACK_ROWS, REPACK_COLUMNS = 64, 2048
"""Rows of weights of so many columns fall on few sets of the cache: for products of so many rows
a copy in the primitive's own layout costs less (256 x 768 x 3072: 4.3 instead of 11.3 ms)."""


def operand(shape: tuple[int, ...], transpose: bool) -> tuple[tuple[int, ...], Md]:
    """Logical size and descriptor of an operand seen as a matrix or a stack of matrices."""
    *batch, rows, columns = shape
    stack = (prod(batch),) if batch else ()
    step = (rows * columns,) if batch else ()
    if transpose:
        return (*stack, columns, rows), plain(
            (*stack, columns, rows), "float32", (*step, 1, columns)
        )
    return (*stack, rows, columns), plain((*stack, rows, columns), "float32", (*step, columns, 1))


def cook(p: Problem) -> Recipe | None:
    """The recipe of ``matmul``, ``batch_matmul`` and ``onednn_matmul``."""
    attrs = p.attrs
    left, a = operand(p.inputs[0].shape, attrs["transpose_a"])
    right, b = operand(p.inputs[1].shape, attrs["transpose_b"])
    shape = (*left[:-1], right[-1])
    c = plain(shape, "float32")
    operands = [Operand("src", 0, a), Operand("weights", 1, b), Operand("dst", 0, c, True)]
    bias = library().ffi.NULL
    if len(p.inputs) == 3:
        bias = plain((*(1,) * (len(shape) - 1), shape[-1]), "float32")
        operands.append(Operand("bias", 2, bias))
    post = PostOps(scale=attrs["alpha"], activation=ACTIVATIONS[attrs.get("activation", "")])
    packs = not attrs["transpose_b"] and repacks(left, right)
    weights = chosen(right, "float32") if packs else b
    made = create("matmul", a, weights, bias, c, post=post)
    return recipe(made, operands)


def repacks(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether row-major weights are copied into the primitive's own layout at each launch."""
    wide = right[-1] >= REPACK_COLUMNS and right[-1] % 64 == 0
    return len(left) == 2 and left[0] >= REPACK_ROWS and wide


KERNELS: tuple[KernelSpec, ...] = tuple(
    kernel(op, cook) for op in ("matmul", "batch_matmul", "onednn_matmul")
)
