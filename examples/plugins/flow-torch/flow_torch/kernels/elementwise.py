"""Kernels for elementwise ops; most of them call a single torch function."""

from functools import partial
from types import SimpleNamespace

import torch

from flow_torch.kernels.binding import into, tensors
from flow_torch.table import SAME_NAME


def relu(ctx):
    """Compute max(x, 0)."""
    (x,), (y,) = tensors(ctx)
    return partial(torch.clamp_min, x, 0, out=y)


def relu_grad(ctx):
    """Select dy where y > 0, else 0."""
    (y, dy), (dx,) = tensors(ctx)
    return partial(torch.ops.aten.threshold_backward.grad_input, dy, y, 0, grad_input=dx)


def gradient_from_y(function):
    """Return the bind function for a gradient that reads the output of the op."""

    def bind(ctx):
        (y, dy), (dx,) = tensors(ctx)
        return partial(function, dy, y, grad_input=dx)

    return bind


def with_operand(function):
    """Return the bind function for an op of which one operand is a constant of the graph."""

    def bind(ctx):
        (x,), (y,) = tensors(ctx)
        return partial(function, x, torch.tensor(ctx.attrs["operand"], dtype=x.dtype), out=y)

    return bind


def bias_add(ctx):
    """Add a bias along one axis."""
    (x, bias), (y,) = tensors(ctx)
    shape = [1] * x.ndim
    shape[ctx.attrs["axis"]] = -1
    return partial(torch.add, x, bias.view(shape), out=y)


def add_n(ctx):
    """Add the inputs in order; the output may share the memory of the first input."""
    (first, *others), (y,) = tensors(ctx)
    if not others:
        return partial(y.copy_, first)
    start = partial(torch.add, first, others[0], out=y)
    return (start, *(partial(y.add_, other) for other in others[1:]))


KERNELS = SimpleNamespace(
    **{name: into(getattr(torch, name)) for name in SAME_NAME},
    add_n=add_n,
    bias_add=bias_add,
    broadcast_add=into(torch.add),
    broadcast_div=into(torch.div),
    broadcast_maximum=into(torch.maximum),
    broadcast_minimum=into(torch.minimum),
    broadcast_mul=into(torch.mul),
    broadcast_sub=into(torch.sub),
    elementwise_maximum=into(torch.maximum),
    elementwise_minimum=into(torch.minimum),
    multiply=into(torch.mul),
    negative=into(torch.neg),
    relu=relu,
    relu_grad=relu_grad,
    rint=into(torch.round),
    scalar_add=with_operand(torch.add),
    scalar_add_by_tensor=into(torch.add),
    scalar_mul=with_operand(torch.mul),
    scalar_mul_by_tensor=into(torch.mul),
    sigmoid_grad=gradient_from_y(torch.ops.aten.sigmoid_backward.grad_input),
    sigmoid_v2=into(torch.sigmoid),
    tanh_grad=gradient_from_y(torch.ops.aten.tanh_backward.grad_input),
)
