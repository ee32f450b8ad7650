"""Kernels for convolutions and pooling over two spatial axes."""

from functools import partial
from types import SimpleNamespace

import torch

from flow_torch.arrays import carve
from flow_torch.kernels.binding import tensors
from flow_torch.table import pool_padding

aten = torch.ops.aten


def _settings(attrs):
    """Return the arguments of torch's convolutions, starting with the stride."""
    windows = (attrs["strides"], attrs["padding_before"], attrs["dilation_rate"])
    return (*map(list, windows), False, [0, 0], attrs["groups"])


def conv2d(ctx):
    """Convolve; torch allocates the result, which is copied."""
    (x, weight), (y,) = tensors(ctx)
    settings = _settings(ctx.attrs)

    def launch():
        y.copy_(torch.convolution(x, weight, None, *settings))

    return launch


def conv_data_grad(ctx):
    """Compute the gradient of a convolution's input."""
    (dy, weight, x), (dx,) = tensors(ctx)
    settings = (None, *_settings(ctx.attrs), [True, False, False])

    def launch():
        dx.copy_(aten.convolution_backward(dy, x, weight, *settings)[0])

    return launch


def conv_filter_grad(ctx):
    """Compute the gradient of a convolution's weights."""
    (dy, x), (dw,) = tensors(ctx)
    settings = (None, *_settings(ctx.attrs), [False, True, False])

    def launch():
        dw.copy_(aten.convolution_backward(dy, x, dw, *settings)[1])

    return launch


def _pool_settings(attrs, x, y):
    padding = pool_padding(attrs, x.shape[2:], y.shape[2:])
    return list(attrs["pool_size"]), list(attrs["strides"]), padding, [1, 1], False


def max_pool_2d(ctx):
    """Compute the maximum of each window."""
    (x,), (y,) = tensors(ctx)
    (indices,) = carve(ctx.workspace, (tuple(y.shape), "int64"))
    settings = _pool_settings(ctx.attrs, x, y)
    return partial(aten.max_pool2d_with_indices.out, x, *settings, out=y, indices=indices)


def max_pool_2d_grad(ctx):
    """Find the maxima again, and add dy at the places of the maxima."""
    (x, y, dy), (dx,) = tensors(ctx)
    indices, again = carve(
        ctx.workspace, (tuple(y.shape), "int64"), (tuple(y.shape), ctx.inputs[1].dtype)
    )
    settings = _pool_settings(ctx.attrs, x, y)
    back = aten.max_pool2d_with_indices_backward.grad_input
    return (
        partial(aten.max_pool2d_with_indices.out, x, *settings, out=again, indices=indices),
        partial(back, dy, x, *settings, indices, grad_input=dx),
    )


def torch_conv2d(ctx):
    """Convolve and add the bias; relu is applied while the result is copied."""
    (x, weight, bias), (y,) = tensors(ctx)
    settings = _settings(ctx.attrs)
    finish = partial(torch.clamp_min, min=0, out=y) if ctx.attrs["relu"] else y.copy_

    def launch():
        finish(torch.convolution(x, weight, bias, *settings))

    return launch


def _own_pool_settings(attrs):
    sizes = (attrs["pool_size"], attrs["strides"], attrs["padding"])
    return (*map(list, sizes), [1, 1], False)


def torch_max_pool_2d(ctx):
    """Compute the maximum of each window, and the place of the maximum."""
    (x,), (y, indices) = tensors(ctx)
    settings = _own_pool_settings(ctx.attrs)
    return partial(aten.max_pool2d_with_indices.out, x, *settings, out=y, indices=indices)


def torch_max_pool_2d_grad(ctx):
    """Add dy at the places of the maxima."""
    (x, indices, dy), (dx,) = tensors(ctx)
    settings = _own_pool_settings(ctx.attrs)
    back = aten.max_pool2d_with_indices_backward.grad_input
    return partial(back, dy, x, *settings, indices, grad_input=dx)


KERNELS = SimpleNamespace(
    conv2d=conv2d,
    conv_data_grad=conv_data_grad,
    conv_filter_grad=conv_filter_grad,
    max_pool_2d=max_pool_2d,
    max_pool_2d_grad=max_pool_2d_grad,
    torch_conv2d=torch_conv2d,
    torch_max_pool_2d=torch_max_pool_2d,
    torch_max_pool_2d_grad=torch_max_pool_2d_grad,
)
