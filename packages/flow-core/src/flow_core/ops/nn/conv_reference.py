"""Numpy semantics of the convolution family, one kernel position at a time, and sample cases.

The functions take the ops' attributes, but ignore ``filters``, so that they also apply to parts of
split tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import window_output
from flow_core.ir.graph import AttrValue
from flow_core.ops.nn.windows import Ints, from_first, taps, to_first
from flow_core.plugins.specs import Sample

SHARED = ("padding_before", "data_format", "kernel_size", "strides", "dilation_rate", "groups")
"""Return the attributes that a convolution shares with its gradients."""


def padding_after(attrs: Mapping[str, AttrValue]) -> Ints:
    """Return the padding after the end of each axis."""
    after = attrs.get("padding_after")
    return tuple(attrs["padding_before"] if after is None else after)


def deconv_space(attrs: Mapping[str, AttrValue], size: list[int]) -> Ints:
    """Return the output sizes of a transposed convolution."""
    names = ("kernel_size", "strides", "dilation_rate", "padding_before", "output_padding")
    columns = zip(size, *(attrs[k] for k in names), padding_after(attrs), strict=True)
    return tuple(
        (n - 1) * stride + (kernel - 1) * dilation + 1 - before - after + extra
        for n, kernel, stride, dilation, before, extra, after in columns
    )


def _grouped(array: Array, groups: int, axis: int) -> Array:
    shape = array.shape
    return array.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def _pad_widths(size: Ints, kernel: Ints, out: Ints, attrs: Mapping[str, AttrValue]) -> list[Ints]:
    columns = zip(
        size, kernel, out, attrs["strides"], attrs["dilation_rate"], attrs["padding_before"],
        strict=True,
    )  # fmt: skip
    return [
        (before, max(0, (o - 1) * s + (k - 1) * d + 1 - n - before))
        for n, k, o, s, d, before in columns
    ]


def conv_reference(x: Array, weight: Any, **attrs: AttrValue) -> Array:
    """Return the sum, over all kernel positions, of the shifted inputs times the weights."""
    form, groups = attrs["data_format"], attrs["groups"]
    x, weight = to_first(x, form), to_first(weight, form)
    kernel = weight.shape[2:]
    pads = zip(attrs["padding_before"], padding_after(attrs), strict=True)
    windows = zip(x.shape[2:], kernel, attrs["strides"], pads, attrs["dilation_rate"], strict=True)
    out = tuple(window_output(*window) for window in windows)
    widths = _pad_widths(x.shape[2:], kernel, out, attrs)
    padded = _grouped(np.pad(x, [(0, 0), (0, 0), *widths]), groups, 1)
    weight = _grouped(weight, groups, 0)
    y = np.zeros((x.shape[0], groups, weight.shape[1], *out), x.dtype)
    for tap, space in taps(kernel, out, attrs["strides"], attrs["dilation_rate"]):
        part = weight[(..., *tap)]
        y += np.einsum("ngc...,gfc->ngf...", padded[(slice(None),) * 3 + space], part)
    return from_first(_flat(y), form)


def _flat(y: Array) -> Array:
    """Merge the axes of groups and channels, even if the array is empty."""
    return y.reshape(y.shape[0], y.shape[1] * y.shape[2], *y.shape[3:])


def data_grad_reference(dy: Array, weight: Any, x_like: Array, **attrs: AttrValue) -> Array:
    """Return the transpose of `conv_reference` as a linear function of its first argument."""
    form, groups = attrs["data_format"], attrs["groups"]
    dy, weight = to_first(dy, form), to_first(weight, form)
    shape = to_first(x_like, form).shape
    if shape[:2] != (dy.shape[0], weight.shape[1] * groups):
        raise ValueError(f"x_like {shape} for dy {dy.shape}, weights {weight.shape}")
    kernel, out = weight.shape[2:], dy.shape[2:]
    widths = _pad_widths(shape[2:], kernel, out, attrs)
    space_shape = [n + a + b for n, (a, b) in zip(shape[2:], widths, strict=True)]
    weight, dy = _grouped(weight, groups, 0), _grouped(dy, groups, 1)
    padded = np.zeros((shape[0], groups, weight.shape[2], *space_shape), dy.dtype)
    for tap, space in taps(kernel, out, attrs["strides"], attrs["dilation_rate"]):
        part = weight[(..., *tap)]
        padded[(slice(None),) * 3 + space] += np.einsum("ngf...,gfc->ngc...", dy, part)
    inner = tuple(slice(a, a + n) for n, (a, _) in zip(shape[2:], widths, strict=True))
    return from_first(_flat(padded[(slice(None),) * 3 + inner]), form)


def filter_grad_reference(dy: Array, x: Array, **attrs: AttrValue) -> Array:
    """Return the transpose of `conv_reference` as a linear function of its second argument."""
    form, groups, kernel = attrs["data_format"], attrs["groups"], attrs["kernel_size"]
    dy, x = to_first(dy, form), to_first(x, form)
    out = dy.shape[2:]
    widths = _pad_widths(x.shape[2:], kernel, out, attrs)
    padded = _grouped(np.pad(x, [(0, 0), (0, 0), *widths]), groups, 1)
    dy = _grouped(dy, groups, 1)
    grad: Any = np.zeros((groups, dy.shape[2], padded.shape[2], *kernel), x.dtype)
    for tap, space in taps(kernel, out, attrs["strides"], attrs["dilation_rate"]):
        window = padded[(slice(None),) * 3 + space]
        flat, rows = (a.reshape(*a.shape[:3], prod(a.shape[3:])) for a in (window, dy))
        grad[(..., *tap)] = np.einsum("ngfp,ngcp->gfc", rows, flat)
    return from_first(grad.reshape(grad.shape[0] * grad.shape[1], *grad.shape[2:]), form)


def deconv_reference(x: Array, weight: Array, **attrs: AttrValue) -> Array:
    """Return `data_grad_reference` with the input as dy."""
    form, channels = attrs["data_format"], to_first(weight, attrs["data_format"]).shape[1]
    first = to_first(x, form)
    space = deconv_space(attrs, list(first.shape[2:]))
    like = np.broadcast_to(x.dtype.type(0), (x.shape[0], channels * attrs["groups"], *space))
    return data_grad_reference(x, weight, from_first(like, form), **attrs)


def _case(
    dims: int, n: int, channels: int, filters: int, size: Ints, kernel: Ints, **changes: AttrValue
) -> tuple[Ints, Ints, dict[str, AttrValue]]:
    """Return the shape of x, the weights' shape, and the attributes, for channels first."""
    attrs: dict[str, AttrValue] = {
        "filters": filters, "padding_before": (0,) * dims, "data_format": "channels_first",
        "kernel_size": kernel, "strides": (1,) * dims, "dilation_rate": (1,) * dims, "groups": 1,
    } | changes  # fmt: skip
    return (n, channels, *size), (filters, channels // attrs["groups"], *kernel), attrs


def _cases(dims: int) -> Iterator[tuple[Ints, Ints, dict[str, AttrValue]]]:
    size, two = ((7,), (6, 5), (4, 3, 3))[dims - 1], (2,) * dims
    yield _case(dims, 2, 3, 4, size, (3, 2, 2)[:dims])
    yield _case(
        dims, 3, 2, 3, size, (3, 3, 2)[:dims],
        padding_before=(2, 1, 1)[:dims], padding_after=(1, 0, 2)[:dims], strides=(2, 1, 3)[:dims],
    )  # fmt: skip
    yield _case(
        dims, 1, 4, 6, size, two,
        groups=2, dilation_rate=(2, 3, 1)[:dims], strides=(1, 2, 2)[:dims], padding_before=two,
    )  # fmt: skip
    yield _case(dims, 2, 3, 3, size, (3, 1, 1)[:dims], groups=3, padding_before=(1, 0, 0)[:dims])
    yield _case(dims, 2, 3, 5, size, (1,) * dims)
    yield _case(dims, 2, 3, 2, size, (1,) * dims, strides=two)


def _last(array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def _both_formats(
    arrays: tuple[Array, ...], attrs: dict[str, AttrValue], **more: AttrValue
) -> Iterator[Sample]:
    yield Sample(arrays, attrs, **more)
    yield Sample(tuple(map(_last, arrays)), attrs | {"data_format": "channels_last"}, **more)


def _out_shape(x: Ints, weight: Ints, attrs: dict[str, AttrValue]) -> Ints:
    return np.shape(conv_reference(np.zeros(x), np.zeros(weight), **attrs))


def _grad_attrs(attrs: dict[str, AttrValue]) -> dict[str, AttrValue]:
    dims = len(attrs["kernel_size"])
    return {"num_spatial_dims": dims} | {k: attrs[k] for k in SHARED}


def data_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield the samples of the gradient with respect to the input."""
    for dims in (1, 2, 3):
        for x, weight, attrs in _cases(dims):
            dy = rng.normal(size=_out_shape(x, weight, attrs))
            arrays = (dy, rng.normal(size=weight), rng.normal(size=x))
            yield from _both_formats(arrays, _grad_attrs(attrs), gradient=dims < 3)


def filter_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield the samples of the gradient with respect to the weights."""
    for dims in (1, 2, 3):
        for x, weight, attrs in _cases(dims):
            dy = rng.normal(size=_out_shape(x, weight, attrs))
            arrays = (dy, rng.normal(size=x))
            yield from _both_formats(arrays, _grad_attrs(attrs), gradient=dims < 3)


def conv_samples(dims: int, rng: np.random.Generator) -> Iterator[Sample]:
    """Yield the samples of a convolution with ``dims`` spatial axes."""
    for x, weight, attrs in _cases(dims):
        yield from _both_formats((rng.normal(size=x), rng.normal(size=weight)), attrs)


def deconv_samples(dims: int, rng: np.random.Generator) -> Iterator[Sample]:
    """Yield the samples of a transposed convolution with ``dims`` spatial axes."""
    for i, (_, weight, attrs) in enumerate(_cases(dims)):
        x = rng.normal(size=(2, weight[0], *(3, 2, 3)[:dims]))
        spare = tuple(i % 2 if s > 1 else 0 for s in attrs["strides"])
        filters = weight[1] * attrs["groups"]
        attrs = attrs | {"filters": filters, "output_padding": spare}
        yield from _both_formats((x, rng.normal(size=weight)), attrs)
