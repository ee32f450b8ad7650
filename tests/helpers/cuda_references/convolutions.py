"""Convolutions in NumPy, which iterate over the kernel positions, and their samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flow_core.authoring.specs import AttrValue, Sample
from flow_core.base.arrays import Array
from flow_core.base.shapes import window_output
from flow_cuda.ops import WINDOW

Attrs = Mapping[str, AttrValue]
Ints = tuple[int, ...]
WORKSPACE = 1 << 20
"""A workspace size in bytes that is enough for every plan of the samples."""


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


def conv(x: Array, weight: Array, *more: Array, **attrs: AttrValue) -> Array:
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


def data_grad(dy: Array, weight: Array, **attrs: AttrValue) -> Array:
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


def filter_grad(dy: Array, x: Array, **attrs: AttrValue) -> Array:
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


def conv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for i, (x, w, bias, attrs) in enumerate(_cases(rng)):
        workspace = {"workspace": (0, WORKSPACE)[i % 2]}
        yield Sample((x, w), {**attrs, "activation": "", **workspace}, gradient=False)
        more = {"activation": ("relu", "")[i % 2], "workspace": WORKSPACE}
        yield Sample((x, w, bias), attrs | more, gradient=False)
        if attrs["data_format"] == "channels_last" and x.ndim == 4 and attrs["groups"] == 1:
            addend = rng.uniform(-1, 1, conv(x, w, activation="", **attrs).shape)
            yield Sample((x, w, bias, addend), attrs | more, gradient=False)


def _case_grads(
    rng: np.random.Generator,
) -> Iterator[tuple[Array, Array, Array, dict[str, AttrValue]]]:
    """Yield input, weights, output gradient, and the attributes of the gradient ops."""
    for x, w, _, attrs in _cases(rng):
        shape = conv(x, w, activation="", **attrs).shape
        dy: Array = rng.uniform(-1, 1, (*shape,))
        yield x, w, dy, {k: v for k, v in attrs.items() if k in WINDOW}


def data_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, w, dy, attrs in _case_grads(rng):
        space = _to_channels_first(x, attrs).shape[2:]
        more = {"space": space, "workspace": WORKSPACE}
        yield Sample((dy, w), attrs | more, gradient=False)


def filter_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, _, dy, attrs in _case_grads(rng):
        yield Sample((dy, x), attrs | {"workspace": WORKSPACE}, gradient=False)
