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
from flow_cuda.device.launch import (
    ProductLaunch,
    Read,
    Struct,
    Write,
    ZeroLaunch,
    call,
    space,
    strides,
)
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
    """Return the name of the epilogue that an op requires."""
    attrs = query.attrs
    if query.op == "cuda_matmul":
        name = f"{attrs['activation']}_bias" if attrs["activation"] else "bias"
        return f"{name}_saved" if attrs["saved"] else name
    if query.op == "cuda_matmul_grad":
        return f"{attrs['activation']}_grad" + ("_sum" if attrs["summed"] else "")
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
    (a, b, *more), (c, *made) = ctx.inputs, ctx.outputs
    product, forward = product_of(ctx.query), ctx.query.op == "cuda_matmul"
    bias, saved = (*more, *made, None)[:2] if forward else (*made, None)[:1] + (*more, None)[:1]
    workspace = ctx.workspace
    fused = ProductLaunch(c.hardware, product, a, b, c, bias, saved, workspace)
    if c.hardware.supports(product, fused.operands()):
        yield fused
        return
    plain = replace(product, epilogue="")
    yield ProductLaunch(c.hardware, plain, a, b, c, workspace=workspace)
    if ctx.query.op == "cuda_matmul_sum":
        yield _operand_sum(ctx, product, a, b, bias)
        return
    yield _apply_epilogue(ctx, product, c, bias, saved)
    if not forward and bias is not None:
        yield _sum_axis(
            c, bias, (product.n, 1), (product.m, product.n), c_type(ctx.query.outputs[0])
        )


def _apply_epilogue(
    ctx: BindContext, product: Product, c: DeviceArray, bias: Any, saved: DeviceArray | None
) -> Launch:
    """Return a launch that applies bias and activation, or an activation's gradient."""
    activation: Any = ctx.attrs["activation"]
    kind, extent = c_type(ctx.query.outputs[0]), (product.m, product.n, product.saved_lead)
    mask, numbers = (saved, None) if activation == "relu" else (None, saved)
    if ctx.query.op == "cuda_matmul":
        number = ACTIVATIONS.index(activation)
        lists = (Write(mask, "u8"), Write(numbers, kind))
        values = (c, Read(bias), *lists, *extent, number)
        return call("finish", HEADER, (kind,), *values, items=c.size)
    given = (Read(mask, "u8"), Read(numbers, kind))
    return call("finish_grad", HEADER, (kind,), c, *given, *extent, items=c.size)


def _operand_sum(
    ctx: BindContext, p: Product, a: DeviceArray, b: DeviceArray, out: DeviceArray
) -> Launch:
    """Return a launch that sums one operand over k."""
    kind = c_type(ctx.query.outputs[0])
    if ctx.attrs["side"] == "a":
        kept, gone = ((p.m, 1), (p.k, p.m)) if p.transpose_a else ((p.m, p.k), (p.k, 1))
        return _sum_axis(a, out, kept, gone, kind)
    kept, gone = ((p.n, p.k), (p.k, 1)) if p.transpose_b else ((p.n, 1), (p.k, p.n))
    return _sum_axis(b, out, kept, gone, kind)


def _sum_axis(
    x: DeviceArray, y: DeviceArray, kept: tuple[int, int], gone: tuple[int, int], kind: str
) -> Launch:
    """Return a launch that sums over the axis ``gone`` of two axes, given by size and stride."""
    spaces = tuple(
        struct
        for size, step in (kept, gone)
        for struct in (Struct("Space", space((size,))), Struct("Strides", strides((step,))))
    )
    types = ("Sum", "Plain", kind, kind)
    return call("reduce", "reduce.h", types, Read(x), y, *spaces, items=kept[0])


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
        for op in ("cuda_matmul", "cuda_matmul_grad", "cuda_matmul_sum")
    ),
)
