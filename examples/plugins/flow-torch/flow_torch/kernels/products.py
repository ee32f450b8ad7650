"""Kernels for matrix products and reductions."""

from functools import partial
from types import SimpleNamespace

import torch

from flow_torch.kernels.binding import tensors


def matmul(ctx):
    """Multiply matrices, or batches of matrices if there are further axes."""
    (a, b), (y,) = tensors(ctx)
    attrs = ctx.attrs
    a = a.transpose(-1, -2) if attrs["transpose_a"] else a
    b = b.transpose(-1, -2) if attrs["transpose_b"] else b
    product = partial(torch.mm if a.ndim == 2 else torch.matmul, a, b, out=y)
    return product if attrs["alpha"] == 1 else (product, partial(y.mul_, attrs["alpha"]))


def reduction(function):
    """Return the bind function of a reduction."""

    def bind(ctx):
        (x, *_), (y,) = tensors(ctx)
        axes = [axis % x.ndim for axis in ctx.attrs["axis"]] if x.ndim else []
        if not axes:
            return partial(y.copy_, x.view(y.shape))
        kept = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
        return partial(function, x, axes, True, out=y.view(kept))

    return bind


KERNELS = SimpleNamespace(
    batch_matmul=matmul,
    matmul=matmul,
    reduce_max=reduction(torch.amax),
    reduce_min=reduction(torch.amin),
    reduce_sum=reduction(torch.sum),
    reduce_sum_like=reduction(torch.sum),
)
