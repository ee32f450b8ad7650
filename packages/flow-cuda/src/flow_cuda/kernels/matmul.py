"""Kernels of matrix products, which use cuBLASLt and its fused operations where possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.config import allows_tf32
from flow_cuda.device.hardware import Product
from flow_cuda.device.launch import ProductLaunch, Read, Struct, ZeroLaunch, call, space, strides
from flow_cuda.kernels.binding import c_type, collect_launches, kernel

HEADER = "finish.h"
LARGE, WORKSPACE = 1 << 24, 32 << 20
"""Products with at least ``LARGE`` multiplications get a workspace of ``WORKSPACE`` bytes."""
ACTIVATIONS = ("", "relu", "gelu")


def is_floating(query: KernelQuery) -> bool:
    """Whether all tensors have the same floating-point type."""
    return query.outputs[0].dtype.is_floating and len(set(query.dtypes)) == 1


def product_of(query: KernelQuery) -> Product:
    """Return the product of an op, with its epilogue."""
    a, c, attrs = query.inputs[0], query.outputs[0], query.attrs
    t_a, t_b = bool(attrs["transpose_a"]), bool(attrs["transpose_b"])
    m, n = c.shape[-2:]
    k = a.shape[-2] if t_a else a.shape[-1]
    alpha: Any = attrs["alpha"]
    return Product(
        m, n, k, t_a, t_b, c.dtype.name, prod(c.shape[:-2]), float(alpha),
        (m * k, k * n, m * n), allows_tf32(query.settings), epilogue=_epilogue(query),
    )  # fmt: skip


def _epilogue(query: KernelQuery) -> str:
    attrs = query.attrs
    if query.op == "cuda_matmul":
        return f"{attrs['activation']}_bias" if attrs["activation"] else "bias"
    return f"sum_{attrs['side']}" if query.op == "cuda_matmul_sum" else ""


def workspace_bytes(query: KernelQuery) -> int:
    """Return the workspace size in bytes; 0 for small products."""
    p = product_of(query)
    return WORKSPACE if p.m * p.n * p.k * p.batch >= LARGE else 0


def _matmul(ctx: BindContext) -> Launch:
    (a, b), (c,) = ctx.inputs, ctx.outputs
    product = product_of(ctx.query)
    if not product.k:
        return ZeroLaunch(c.hardware, c)
    return ProductLaunch(c.hardware, product, a, b, c, workspace=ctx.workspace)


def _matmul_with_epilogue(ctx: BindContext) -> Iterator[Launch]:
    """Yield a product with a fused epilogue, or else a product and a kernel for the epilogue."""
    (a, b, *given), (c, *made) = ctx.inputs, ctx.outputs
    product, workspace, (row,) = product_of(ctx.query), ctx.workspace, (*given, *made)
    fused = ProductLaunch(c.hardware, product, a, b, c, row, workspace)
    if c.hardware.supports(product, fused.operands()):
        yield fused
        return
    plain = replace(product, epilogue="")
    yield ProductLaunch(c.hardware, plain, a, b, c, workspace=workspace)
    if ctx.query.op == "cuda_matmul_sum":
        yield _operand_sum(ctx, product, a, b, row)
        return
    kind, number = c_type(ctx.query.outputs[0]), ACTIVATIONS.index(str(ctx.attrs["activation"]))
    values = (c, Read(row), c.size, product.n, number)
    yield call("finish", HEADER, (kind,), *values, items=c.size)


def _operand_sum(
    ctx: BindContext, p: Product, a: DeviceArray, b: DeviceArray, out: DeviceArray
) -> Launch:
    """Return a launch that sums one operand over k."""
    kind = c_type(ctx.query.outputs[0])
    if ctx.attrs["side"] == "a":
        x, size, by_column = a, p.m, p.transpose_a
    else:
        x, size, by_column = b, p.n, not p.transpose_b
    kept, gone = ((size, 1), (p.k, size)) if by_column else ((size, p.k), (p.k, 1))
    spaces = tuple(
        struct
        for count, step in (kept, gone)
        for struct in (Struct("Space", space((count,))), Struct("Strides", strides((step,))))
    )
    return call(
        "reduce", "reduce.h", ("Sum", "Plain", kind, kind), Read(x), out, *spaces, items=size
    )


def can_finish(query: KernelQuery) -> bool:
    """Whether the kernels support the types and sizes of a product with an epilogue."""
    out = query.outputs[0]
    floats = {t.dtype for t in (*query.inputs, *query.outputs) if t.dtype.is_floating}
    large = all(t.size for t in (*query.inputs, *query.outputs))
    return floats == {out.dtype} and out.dtype.name != "float64" and large


KERNELS: tuple[KernelSpec, ...] = (
    kernel("matmul", _matmul, is_floating, workspace_bytes),
    kernel("batch_matmul", _matmul, is_floating, workspace_bytes),
    *(
        kernel(op, collect_launches(_matmul_with_epilogue), can_finish, workspace_bytes)
        for op in ("cuda_matmul", "cuda_matmul_sum")
    ),
)
