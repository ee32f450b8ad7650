"""Matrix products: the library's."""

from __future__ import annotations

from math import prod

from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec
from flow_cuda.config import settings
from flow_cuda.hardware import Product
from flow_cuda.kernels.binding import kernel
from flow_cuda.launch import ProductLaunch, ZeroLaunch


def is_floating(query: KernelQuery) -> bool:
    """Whether all types are one floating type."""
    return query.outputs[0].dtype.is_floating and len(set(query.dtypes)) == 1


def _matmul(ctx: BindContext) -> Launch:
    (a, b), (c,) = ctx.inputs, ctx.outputs
    t_a, t_b = bool(ctx.attrs["transpose_a"]), bool(ctx.attrs["transpose_b"])
    m, n = c.shape[-2:]
    k = a.shape[-2] if t_a else a.shape[-1]
    if not k:
        return ZeroLaunch(c.hardware, c)
    product = Product(
        m, n, k, t_a, t_b, ctx.query.outputs[0].dtype.name, prod(c.shape[:-2]),
        float(ctx.attrs["alpha"]), (m * k, k * n, m * n), settings().tf32,
    )  # fmt: skip
    return ProductLaunch(c.hardware, product, a, b, c)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("matmul", _matmul, is_floating),
    kernel("batch_matmul", _matmul, is_floating),
)
