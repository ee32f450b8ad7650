"""Kernels of matrix products and bias_add; BLAS multiplies views, without copies of operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel, scalar
from flow_core.builtin.numpy_kernels.widening import as_launches, widened
from flow_core.device import Launch
from flow_core.ir.graph import TensorType
from flow_core.ops.math.matmul import bias_axis
from flow_core.plugins.batchable import rowwise, rowwise_in_first
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec, load
from flow_core.plugins.trials import bitwise_equal_in_trials, canceling_operands, multiplications


def _operand(array: Array, transpose: bool) -> Array:
    return np.swapaxes(array, -1, -2) if transpose else array


def _matmul(ctx: BindContext) -> Sequence[Launch]:
    """Multiply; transposed operands are strided views, which BLAS reads without a copy."""
    (a, b), (out,), attrs = ctx.inputs, ctx.outputs, ctx.attrs
    left, right = _operand(a, attrs["transpose_a"]), _operand(b, attrs["transpose_b"])
    multiply = partial(np.matmul, left, right, out)
    if attrs["alpha"] == 1:
        return (multiply,)
    return multiply, call(np.multiply, out, scalar(attrs["alpha"], out), out=out)


def _product_rows(whole: KernelQuery, parts: Sequence[KernelQuery]) -> bool:
    """Return whether a trial shows that products of row blocks have the bits of one product."""
    if whole.attrs["transpose_a"] or not rowwise_in_first(whole, parts):
        return False
    counts = tuple(part.inputs[0].shape[0] for part in parts)
    return _same_rows(whole.inputs, bool(whole.attrs["transpose_b"]), counts)


@cache
def _same_rows(types: tuple[TensorType, ...], transpose: bool, counts: tuple[int, ...]) -> bool:
    def same(rng: np.random.Generator) -> bool:
        a, b = canceling_operands(rng, types, False, transpose)
        right = _operand(b, transpose)
        parts = np.split(a, np.cumsum(counts)[:-1])
        apart = np.concatenate([np.matmul(part, right) for part in parts])
        return np.array_equal(apart, np.matmul(a, right))

    return bitwise_equal_in_trials(multiplications(types, transpose), same)


def _onto_parts(query: KernelQuery) -> tuple[KernelQuery, KernelSpec]:
    """Return the query of the product without the addition, and the product's kernel."""
    product = replace(query, op="matmul", inputs=query.inputs[:2])
    if query.find is None:
        raise LookupError(f"{query.op} needs a registry to find the kernel of its product")
    return product, query.find(product)


def _onto_bytes(query: KernelQuery) -> int:
    product, found = _onto_parts(query)
    (out,) = query.outputs
    own = carved_bytes((out.shape, out.dtype.numpy))
    return own + (found.workspace(product) if found.workspace else 0)


def _matmul_onto(ctx: BindContext) -> Sequence[Launch]:
    """Compute the product in scratch memory with the kernel for matmul, then add it to the base."""
    product, found = _onto_parts(ctx.query)
    (*operands, base), (out,) = ctx.inputs, ctx.outputs
    part = (out.shape, out.dtype)
    (scratch,) = carve(ctx.workspace, part)
    rest = ctx.workspace[carved_bytes(part) :] if found.workspace else None
    inner = replace(ctx, query=product, inputs=tuple(operands), outputs=(scratch,), workspace=rest)
    return (*as_launches(load(found.load)(inner)), call(np.add, base, scratch, out=out))


def _bias_rows(whole: KernelQuery, parts: Sequence[KernelQuery]) -> bool:
    rank = len(whole.inputs[0].shape)
    return rowwise_in_first(whole, parts) and bias_axis(rank, whole.attrs) > 0


def _bias_add(ctx: BindContext) -> Launch:
    (a, b), (out,) = ctx.inputs, ctx.outputs
    shape = [1] * a.ndim
    shape[bias_axis(a.ndim, ctx.attrs)] = b.size
    return call(np.add, a, b.reshape(shape), out=out)


KERNELS: tuple[KernelSpec, ...] = (
    widened("matmul", _matmul, batchable=_product_rows),
    widened("batch_matmul", _matmul, batchable=rowwise),
    kernel("matmul_onto", _matmul_onto, workspace=_onto_bytes),
    kernel("bias_add", _bias_add, batchable=_bias_rows),
)
