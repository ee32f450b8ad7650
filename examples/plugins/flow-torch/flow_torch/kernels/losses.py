"""Kernels for softmax, and for its cross entropy with class numbers."""

from functools import partial
from types import SimpleNamespace

import torch

from flow_core.base.errors import DataError
from flow_torch.arrays import carve
from flow_torch.kernels.binding import tensors

aten = torch.ops.aten


def along_axis(function):
    """Return the bind function for softmax or its logarithm."""

    def bind(ctx):
        (x,), (y,) = tensors(ctx)
        return partial(function, x, ctx.attrs["axis"], False, out=y)

    return bind


def along_axis_grad(function, **result):
    """Return the bind function for a gradient of either op; ``result`` names torch's keyword."""
    (name,) = result

    def bind(ctx):
        (y, dy), (dx,) = tensors(ctx)
        return partial(function, dy, y, ctx.attrs["axis"], y.dtype, **{name: dx})

    return bind


def _gathered(prob, indices, loss):
    """Select the element of each row's label; torch refuses labels outside of the classes."""
    try:
        torch.gather(prob, -1, indices, out=loss)
    except RuntimeError as error:
        raise DataError(
            "running sparse_softmax_cross_entropy",
            found=f"labels from {indices.min()} to {indices.max()}",
            allowed=f"0 to {prob.shape[-1] - 1}",
        ) from error


def _parts(ctx):
    x = ctx.inputs[0]
    return (x.shape[:-1], "int64"), (x.shape, x.dtype)


def sparse_softmax_cross_entropy(ctx):
    """Compute the probabilities, and the negative log-probability of each row's label."""
    (x, labels), (prob, loss) = tensors(ctx)
    indices, _ = carve(ctx.workspace, *_parts(ctx))
    return (
        partial(indices.copy_, labels),
        partial(aten._log_softmax.out, x, -1, False, out=prob),
        partial(_gathered, prob, indices[..., None], loss[..., None]),
        partial(torch.neg, loss, out=loss),
        partial(torch.exp, prob, out=prob),
    )


def sparse_softmax_cross_entropy_grad(ctx):
    """Compute dy * (prob - one_hot(label))."""
    (prob, labels, dy), (dx,) = tensors(ctx)
    indices, mask = carve(ctx.workspace, *_parts(ctx))
    classes = torch.arange(prob.shape[-1], device=prob.device)
    return (
        partial(indices.copy_, labels),
        partial(torch.eq, indices[..., None], classes, out=mask),
        partial(torch.sub, prob, mask, out=dx),
        partial(torch.mul, dx, dy[..., None], out=dx),
    )


KERNELS = SimpleNamespace(
    log_softmax=along_axis(aten._log_softmax.out),
    log_softmax_grad=along_axis_grad(aten._log_softmax_backward_data.out, out=None),
    softmax=along_axis(aten._softmax.out),
    softmax_grad=along_axis_grad(aten._softmax_backward_data.out, grad_input=None),
    sparse_softmax_cross_entropy=sparse_softmax_cross_entropy,
    sparse_softmax_cross_entropy_grad=sparse_softmax_cross_entropy_grad,
)
