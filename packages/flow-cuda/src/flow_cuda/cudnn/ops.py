"""Convolution ops that run cuDNN graphs with a chosen execution plan.

The ops have no gradients and no SBP rules, because a pass creates them after differentiation,
one op per device.
The NumPy references iterate over the kernel positions of tensors in channels-first layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.authoring.op_rules import conv_work
from flow_core.authoring.specs import (
    REQUIRED,
    AttrValue,
    InferContext,
    OpSpec,
    Sample,
    SbpContext,
    TensorType,
    tensor_type,
)
from flow_core.base.arrays import Array
from flow_core.base.dtypes import float32
from flow_core.base.shapes import window_output

Types = tuple[TensorType, ...]
Attrs = Mapping[str, AttrValue]
Ints = tuple[int, ...]

PLAN = {"plan": "", "workspace": 0}
"""The library's name of the plan, and the plan's workspace in bytes. With an empty name, the
library's first plan that fits the workspace is used."""

WORKSPACE = 1 << 20
"""A workspace size in bytes that is enough for every plan of the samples."""

WINDOW = {
    "data_format": REQUIRED, "kernel_size": REQUIRED, "strides": REQUIRED,
    "padding_before": REQUIRED, "dilation_rate": REQUIRED, "groups": 1, "compute": "", **PLAN,
}  # fmt: skip
"""Attributes of all convolutions; an empty ``compute`` means float32, or float64 for float64
tensors."""


# --- types


def _channels_first_shape(shape: Sequence[int], attrs: Attrs) -> Ints:
    """Return a shape in channels-first order."""
    if attrs["data_format"] == "channels_first":
        return tuple(shape)
    return (shape[0], shape[-1], *shape[1:-1])


def _with_sizes(like: TensorType, sizes: Ints, attrs: Attrs) -> TensorType:
    """Return the type with the given channels-first sizes, in the layout of the attributes."""
    if attrs["data_format"] == "channels_last":
        sizes = (sizes[0], *sizes[2:], sizes[1])
    return tensor_type(sizes, like.dtype)


def _conv_type(ctx: InferContext) -> Types:
    attrs, (x, w) = ctx.attrs, ctx.inputs[:2]
    sizes, filters = _channels_first_shape(x.shape, attrs), w.shape[0]
    pads = zip(attrs["padding_before"], attrs["padding_after"], strict=True)
    rows = zip(
        sizes[2:], attrs["kernel_size"], attrs["strides"], pads, attrs["dilation_rate"], strict=True
    )
    space = tuple(window_output(*row) for row in rows)
    return (_with_sizes(x, (sizes[0], filters, *space), attrs),)


def _sums_type(ctx: InferContext) -> Types:
    row = tensor_type(ctx.inputs[1].shape[:1], float32)
    return (*_conv_type(ctx), row, row)


def _data_grad_type(ctx: InferContext) -> Types:
    dy, w = ctx.inputs
    channels = _channels_first_shape(w.shape, ctx.attrs)[1] * ctx.attrs["groups"]
    return (_with_sizes(dy, (dy.shape[0], channels, *ctx.attrs["space"]), ctx.attrs),)


def _filter_grad_type(ctx: InferContext) -> Types:
    dy, x = (_channels_first_shape(t.shape, ctx.attrs) for t in ctx.inputs)
    sizes = (dy[1], x[1] // ctx.attrs["groups"], *ctx.attrs["kernel_size"])
    return (_with_sizes(ctx.inputs[0], sizes, ctx.attrs),)


def _work(ctx: SbpContext) -> float:
    """Return the number of floating-point operations: two per multiplication by a weight."""
    if "activation" in ctx.attrs:
        return conv_work(ctx.outputs[0], ctx.inputs[1])
    other = ctx.inputs[1] if "space" in ctx.attrs else ctx.outputs[0]
    return conv_work(ctx.inputs[0], other)


# --- references


Index = tuple[slice | int, ...]
"""An index into an array, with one entry per axis."""
CHANNELS = (slice(None), slice(None))
"""An index that selects everything along the first two axes."""


def _to_channels_first(x: Array, attrs: Attrs) -> Array:
    return x if attrs["data_format"] == "channels_first" else np.moveaxis(x, -1, 1)


def _from_channels_first(x: Array, attrs: Attrs) -> Array:
    return x if attrs["data_format"] == "channels_first" else np.moveaxis(x, 1, -1)


def _taps(attrs: Attrs, out: Ints) -> Iterator[tuple[Index, Index]]:
    """Yield the index of each kernel position, and the index of the padded input that it reads."""
    for tap in itertools.product(*map(range, attrs["kernel_size"])):
        rows = zip(tap, attrs["dilation_rate"], attrs["strides"], out, strict=True)
        part = tuple(slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, s, n in rows)
        yield (*CHANNELS, *tap), (*CHANNELS, *part)


def _padded_extent(space: Ints, attrs: Attrs, out: Ints) -> tuple[Ints, Index]:
    """Return the shape of the padded input, and the slice that the input occupies."""
    rows = zip(
        space, attrs["kernel_size"], attrs["strides"], attrs["dilation_rate"],
        attrs["padding_before"], out, strict=True,
    )  # fmt: skip
    sizes = tuple(max(b + n, (o - 1) * s + (k - 1) * d + 1) for n, k, s, d, b, o in rows)
    inside = zip(attrs["padding_before"], space, strict=True)
    return sizes, (*CHANNELS, *(slice(b, b + n) for b, n in inside))


def _grouped_product(x: Array, w: Array, groups: int) -> Array:
    """Multiply channels by the weights of one kernel position, group by group."""
    inputs, filters = np.split(x, groups, 1), np.split(w, groups, 0)
    parts = (np.einsum("nc...,fc->nf...", a, b) for a, b in zip(inputs, filters, strict=True))
    return np.concatenate(list(parts), 1)


def _conv(x: Array, weight: Array, *more: Array, **attrs: AttrValue) -> Array:
    x, w = _to_channels_first(x, attrs), _to_channels_first(weight, attrs)
    pads = zip(attrs["padding_before"], attrs["padding_after"], strict=True)
    rows = zip(
        x.shape[2:], w.shape[2:], attrs["strides"], pads, attrs["dilation_rate"], strict=True
    )
    out = tuple(window_output(*row) for row in rows)
    sizes, inside = _padded_extent(x.shape[2:], attrs, out)
    padded = np.zeros((*x.shape[:2], *sizes), x.dtype)
    padded[inside] = x
    y = np.zeros((len(x), len(w), *out), x.dtype)
    for tap, part in _taps(attrs, out):
        y = y + _grouped_product(padded[part], w[tap], attrs["groups"])
    if more:
        y = y + more[0].reshape(1, -1, *(1,) * len(out))
    y = _from_channels_first(y, attrs)
    y = y + more[1] if len(more) > 1 else y
    return np.maximum(y, 0) if attrs["activation"] else y


def _conv_sums(x: Array, weight: Array, **attrs: AttrValue) -> tuple[Array, ...]:
    y = _conv(x, weight, **attrs)
    first = _to_channels_first(y, attrs)
    others = (0, *range(2, first.ndim))
    return y, first.sum(others), np.square(first).sum(others)


def _data_grad(dy: Array, weight: Array, **attrs: AttrValue) -> Array:
    dy, w, groups = (
        _to_channels_first(dy, attrs),
        _to_channels_first(weight, attrs),
        attrs["groups"],
    )
    sizes, inside = _padded_extent(attrs["space"], attrs, dy.shape[2:])
    padded = np.zeros((len(dy), w.shape[1] * groups, *sizes), dy.dtype)
    for tap, part in _taps(attrs, dy.shape[2:]):
        blocks = np.split(w[tap], groups, 0)
        across = np.concatenate([b.T for b in blocks], 0)
        padded[part] += _grouped_product(dy, across, groups)
    return _from_channels_first(padded[inside], attrs)


def _filter_grad(dy: Array, x: Array, **attrs: AttrValue) -> Array:
    dy, x, groups = _to_channels_first(dy, attrs), _to_channels_first(x, attrs), attrs["groups"]
    sizes, inside = _padded_extent(x.shape[2:], attrs, dy.shape[2:])
    padded = np.zeros((*x.shape[:2], *sizes), x.dtype)
    padded[inside] = x
    filters, channels = dy.shape[1] // groups, x.shape[1] // groups
    dw: Any = np.zeros((dy.shape[1], channels, *attrs["kernel_size"]), x.dtype)
    for tap, part in _taps(attrs, dy.shape[2:]):
        shapes = (len(dy), groups, filters, -1), (len(dy), groups, channels, -1)
        grads, seen = (a.reshape(s) for a, s in zip((dy, padded[part]), shapes, strict=True))
        dw[(..., *tap)] = np.einsum("ngfp,ngcp->gfc", grads, seen).reshape(dw.shape[:2])
    return _from_channels_first(dw, attrs)


# --- samples

_CASES: tuple[tuple[Ints, int, dict[str, AttrValue]], ...] = (
    ((2, 3, 6, 5), 4, {"kernel_size": (3, 2)}),
    ((3, 2, 6, 5), 3, {
        "kernel_size": (3, 3), "padding_before": (2, 1), "padding_after": (1, 0), "strides": (2, 1),
    }),
    ((1, 4, 6, 5), 6, {
        "kernel_size": (2, 2), "groups": 2, "dilation_rate": (2, 3), "strides": (1, 2),
        "padding_before": (2, 2), "padding_after": (2, 2),
    }),
    ((2, 3, 5, 7), 5, {"kernel_size": (1, 1), "strides": (2, 2)}),
    ((2, 8, 9, 9), 16, {"kernel_size": (3, 3), "padding_before": (1, 1), "padding_after": (1, 1)}),
    ((2, 3, 7), 4, {"kernel_size": (3,), "padding_before": (2,), "padding_after": (1,)}),
    ((2, 2, 4, 3, 3), 4, {"kernel_size": (2, 2, 1), "groups": 2, "strides": (1, 1, 2)}),
)  # fmt: skip


def _cases(rng: np.random.Generator) -> Iterator[tuple[Array, Array, Array, dict[str, AttrValue]]]:
    """Yield input, weights, bias and attributes, in both layouts."""
    for shape, filters, given in _CASES:
        dims = len(shape) - 2
        attrs: dict[str, AttrValue] = {
            "strides": (1,) * dims, "dilation_rate": (1,) * dims, "padding_before": (0,) * dims,
            "padding_after": (0,) * dims, "groups": 1, **given,
        }  # fmt: skip
        x = rng.uniform(-1, 1, shape)
        w = rng.uniform(-1, 1, (filters, shape[1] // attrs["groups"], *attrs["kernel_size"]))
        bias = rng.uniform(-1, 1, filters)
        for form in ("channels_first", "channels_last"):
            attrs = attrs | {"data_format": form}
            image, weights = (np.ascontiguousarray(_from_channels_first(a, attrs)) for a in (x, w))
            yield image, weights, bias, attrs


def _conv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for i, (x, w, bias, attrs) in enumerate(_cases(rng)):
        workspace = {"workspace": (0, WORKSPACE)[i % 2]}
        yield Sample((x, w), {**attrs, "activation": "", **workspace}, gradient=False)
        more = {"activation": ("relu", "")[i % 2], "workspace": WORKSPACE}
        yield Sample((x, w, bias), attrs | more, gradient=False)
        if attrs["data_format"] == "channels_last" and x.ndim == 4 and attrs["groups"] == 1:
            addend = rng.uniform(-1, 1, _conv(x, w, activation="", **attrs).shape)
            yield Sample((x, w, bias, addend), attrs | more, gradient=False)


def _sums_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples whose channel counts are multiples of eight, as cuDNN requires."""
    for size, strides, pads in ((3, (1, 1), (1, 1)), (3, (2, 1), (0, 2)), (1, (2, 2), (0, 0))):
        x, w = rng.uniform(-1, 1, (2, 9, 7, 8)), rng.uniform(-1, 1, (16, size, size, 8))
        attrs = {
            "kernel_size": (size, size), "strides": strides, "dilation_rate": (1, 1),
            "padding_before": pads, "padding_after": pads, "data_format": "channels_last",
            "activation": "", "workspace": WORKSPACE,
        }  # fmt: skip
        yield Sample((x, w), attrs, gradient=False)


def _case_grads(
    rng: np.random.Generator,
) -> Iterator[tuple[Array, Array, Array, dict[str, AttrValue]]]:
    """Yield input, weights, output gradient, and the attributes of the gradient ops."""
    for x, w, _, attrs in _cases(rng):
        shape = _conv(x, w, activation="", **attrs).shape
        dy: Array = rng.uniform(-1, 1, (*shape,))
        yield x, w, dy, {k: v for k, v in attrs.items() if k in WINDOW}


def _data_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, w, dy, attrs in _case_grads(rng):
        space = _channels_first_shape(x.shape, attrs)[2:]
        more = {"space": space, "workspace": WORKSPACE}
        yield Sample((dy, w), attrs | more, gradient=False)


def _filter_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, _, dy, attrs in _case_grads(rng):
        yield Sample((dy, x), attrs | {"workspace": WORKSPACE}, gradient=False)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="cudnn_conv",
        internal=True,
        inputs=("x", "weight", "bias?", "addend?"),
        infer=_conv_type,
        attrs={**WINDOW, "padding_after": REQUIRED, "activation": ""},
        reference=_conv,
        samples=_conv_samples,
        work=_work,
        doc="A convolution with optional bias, addition and activation.",
    ),
    OpSpec(
        type="cudnn_conv_sums",
        internal=True,
        inputs=("x", "weight"),
        outputs=("y", "sum", "squares"),
        infer=_sums_type,
        attrs={**WINDOW, "padding_after": REQUIRED, "activation": ""},
        reference=_conv_sums,
        samples=_sums_samples,
        work=_work,
        doc="A convolution, and the sums of its result and of its squares per channel.",
    ),
    OpSpec(
        type="cudnn_conv_data_grad",
        internal=True,
        inputs=("dy", "weight"),
        outputs=("dx",),
        infer=_data_grad_type,
        attrs={**WINDOW, "space": REQUIRED},
        reference=_data_grad,
        samples=_data_grad_samples,
        work=_work,
        doc="The gradient with respect to the input, whose spatial sizes are ``space``.",
    ),
    OpSpec(
        type="cudnn_conv_filter_grad",
        internal=True,
        inputs=("dy", "x"),
        outputs=("dw",),
        infer=_filter_grad_type,
        attrs=WINDOW,
        reference=_filter_grad,
        samples=_filter_grad_samples,
        work=_work,
        doc="The gradient with respect to the weights.",
    ),
)
