"""Kernels for ops that move or create elements, whatever the element type."""

from functools import partial
from types import SimpleNamespace

from flow_torch.kernels.binding import tensors


def constant(ctx):
    """Fill with a number."""
    _, (y,) = tensors(ctx)
    return partial(y.fill_, ctx.attrs["value"])


def zeros(ctx):
    """Fill with zeros."""
    return ctx.outputs[0].tensor.zero_


def reshaped(ctx):
    """Copy the elements; this is needed only if the output cannot share the input's memory."""
    (x, *_), (y,) = tensors(ctx)
    return partial(y.copy_, x.view(y.shape))


def transpose(ctx):
    """Permute the axes."""
    (x,), (y,) = tensors(ctx)
    return partial(y.copy_, x.permute(ctx.attrs["perm"]))


KERNELS = SimpleNamespace(
    constant=constant,
    copy=reshaped,
    expand_dims=reshaped,
    flatten=reshaped,
    identity=reshaped,
    reshape=reshaped,
    squeeze=reshaped,
    transpose=transpose,
    zero_like=zeros,
)
