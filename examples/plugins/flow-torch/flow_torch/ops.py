"""Ops of this package, with which its passes replace ops of flow-core on its devices."""

from math import prod

import numpy as np

from flow_core.authoring.specs import REQUIRED, OpSpec, Sample, tensor_type
from flow_core.base.dtypes import int64

WINDOWS = dict.fromkeys(("kernel_size", "strides", "padding_before", "dilation_rate"), REQUIRED)
POOL = dict.fromkeys(("pool_size", "strides", "padding"), REQUIRED)


def _spaces(sizes, kernel, strides, padding, dilation):
    columns = zip(sizes, kernel, strides, padding, dilation, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in columns)


def _infer_conv(ctx):
    x, weight = ctx.inputs[:2]
    space = _spaces(x.shape[2:], *(ctx.attrs[name] for name in WINDOWS))
    return (tensor_type((x.shape[0], weight.shape[0], *space), x.dtype),)


def _infer_pool(ctx):
    (x,) = ctx.inputs
    attrs = ctx.attrs
    space = _spaces(x.shape[2:], attrs["pool_size"], attrs["strides"], attrs["padding"], (1, 1))
    shape = (*x.shape[:2], *space)
    return tensor_type(shape, x.dtype), tensor_type(shape, int64)


def _windows(x, size, strides, padding, fill):
    """Return a view of all windows, with axes batch, channels, positions and window elements."""
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)], constant_values=fill)
    found = np.lib.stride_tricks.sliding_window_view(padded, size, (2, 3))
    return found[:, :, :: strides[0], :: strides[1]]


def _conv_reference(x, weight, bias, *, relu, groups, **windows):
    dilation = windows["dilation_rate"]
    size = tuple(d * (k - 1) + 1 for d, k in zip(dilation, windows["kernel_size"], strict=True))
    found = _windows(x, size, windows["strides"], windows["padding_before"], 0)
    found = found[..., :: dilation[0], :: dilation[1]]
    parts = [
        np.einsum("ncyxij,fcij->nfyx", part, filters)
        for part, filters in zip(
            np.split(found, groups, 1), np.split(weight, groups, 0), strict=True
        )
    ]
    y = np.concatenate(parts, 1) + bias[:, None, None]
    return np.maximum(y, 0) if relu else y


def _conv_samples(rng):
    for groups, relu, stride in ((1, True, 1), (2, False, 2)):
        attrs = {"kernel_size": (3, 3), "strides": (stride,) * 2, "padding_before": (1, 1)}
        arrays = [rng.uniform(-1, 1, s) for s in ((2, 4, 6, 5), (4, 4 // groups, 3, 3), (4,))]
        attrs |= {"dilation_rate": (1, 1), "groups": groups, "relu": relu}
        yield Sample(tuple(arrays), attrs, gradient=False)


def _pool_reference(x, *, pool_size, strides, padding):
    found = _windows(x, pool_size, strides, padding, -np.inf)
    flat = found.reshape(*found.shape[:4], prod(pool_size))
    best = flat.argmax(-1)
    rows = np.arange(flat.shape[2])[:, None] * strides[0] - padding[0] + best // pool_size[1]
    columns = np.arange(flat.shape[3]) * strides[1] - padding[1] + best % pool_size[1]
    return flat.max(-1), rows * x.shape[3] + columns


def _pool_grad_reference(x, indices, dy, **_):
    dx = np.zeros((*x.shape[:2], prod(x.shape[2:])), dy.dtype)
    for n, c in np.ndindex(*x.shape[:2]):
        np.add.at(dx[n, c], indices[n, c].ravel(), dy[n, c].ravel())
    return dx.reshape(x.shape)


def _pool_samples(rng):
    for size, stride, pad in ((2, 2, 0), (3, 2, 1), (3, 1, 0)):
        attrs = {"pool_size": (size,) * 2, "strides": (stride,) * 2, "padding": (pad,) * 2}
        yield Sample(
            (rng.permutation(140).astype(float).reshape(2, 2, 7, 5),), attrs, gradient=False
        )


def _pool_grad_samples(rng):
    for sample in _pool_samples(rng):
        y, indices = _pool_reference(*sample.inputs, **sample.attrs)
        arrays = (*sample.inputs, indices, rng.uniform(-1, 1, y.shape))
        yield Sample(arrays, sample.attrs, gradient=False)


CONV = OpSpec(
    type="torch_conv2d",
    inputs=("x", "weight", "bias"),
    infer=_infer_conv,
    attrs={**WINDOWS, "groups": 1, "relu": False},
    reference=_conv_reference,
    samples=_conv_samples,
    doc="A convolution with its bias and, if asked for, max(x, 0) of the result.",
)
POOL_OP = OpSpec(
    type="torch_max_pool_2d",
    inputs=("x",),
    outputs=("y", "indices"),
    infer=_infer_pool,
    attrs=POOL,
    reference=_pool_reference,
    samples=_pool_samples,
    doc="The maximum per window, and its place, which the gradient reads.",
)
POOL_GRAD = OpSpec(
    type="torch_max_pool_2d_grad",
    inputs=("x", "indices", "dy"),
    outputs=("dx",),
    infer=lambda ctx: (ctx.inputs[0],),
    attrs=POOL,
    reference=_pool_grad_reference,
    samples=_pool_grad_samples,
    doc="The gradient of `torch_max_pool_2d`, of whose input it reads the shape.",
)
OPS = (CONV, POOL_OP, POOL_GRAD)
