"""Layouts and spatial windows of convolutions and pooling.

The layouts are ``channels_first`` (batch, channels, *space) and ``channels_last`` (batch, *space,
channels).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.plugins.specs import InferContext, SbpContext

Ints = tuple[int, ...]

FORMATS = ("channels_first", "channels_last")


def space_axes(rank: int, data_format: str) -> Ints:
    """Return the spatial axes of a tensor.

    >>> space_axes(4, "channels_first"), space_axes(4, "channels_last")
    ((2, 3), (1, 2))
    """
    first = 2 if data_format == "channels_first" else 1
    return tuple(range(first, first + rank - 2))


def channel_axis(rank: int, data_format: str) -> int:
    """Return the channel axis of a tensor; for weights, the axis of channels per group.

    >>> channel_axis(4, "channels_first"), channel_axis(4, "channels_last")
    (1, 3)
    """
    return 1 if data_format == "channels_first" else rank - 1


def check_data_format(ctx: InferContext) -> None:
    """Fail unless the attribute ``data_format`` is one of `FORMATS`."""
    found = ctx.attrs["data_format"]
    ctx.check(found in FORMATS, f"data_format={found!r}", " or ".join(FORMATS))


def check_per_axis(ctx: InferContext, dims: int, **lowest: int) -> None:
    """Fail unless each named attribute has one integer per spatial axis, none below the given
    bound.
    """
    for name, low in lowest.items():
        values = ctx.attrs[name]
        ctx.check(
            isinstance(values, tuple) and len(values) == dims and min(values, default=low) >= low,
            f"{name}={values!r}",
            f"{dims} integers of at least {low}",
        )


def check_rank(ctx: InferContext, dims: int) -> None:
    """Fail unless all inputs have a batch, a channel and ``dims`` spatial axes."""
    for type_ in ctx.inputs:
        ctx.check(
            len(type_.shape) == dims + 2,
            f"inputs {', '.join(map(str, ctx.inputs))}",
            f"tensors of {dims + 2} axes: batch, channels and {dims} of space",
        )


def with_space(like: TensorType, data_format: str, channels: int, space: Ints) -> TensorType:
    """Return a type with other channels and spatial sizes."""
    body = (channels, *space) if data_format == "channels_first" else (*space, channels)
    return tensor_type((like.shape[0], *body), like.dtype)


def pointwise_axes(
    ctx: SbpContext, kernel: Ints, before: Ints, big: TensorType, small: TensorType
) -> list[int]:
    """Return the spatial axes on which output position i depends only on input position i."""
    axes = space_axes(len(big.shape), ctx.attrs["data_format"])
    columns = zip(axes, kernel, ctx.attrs["strides"], before, strict=True)
    return [
        axis
        for axis, *window in columns
        if window == [1, 1, 0] and big.shape[axis] == small.shape[axis]
    ]


def to_first(array: Array, data_format: str) -> Array:
    """Return an array's channels-first view."""
    return array if data_format == "channels_first" else np.moveaxis(array, -1, 1)


def from_first(array: Array, data_format: str) -> Array:
    """Return a view of a channels-first array in the layout ``data_format``; inverts `to_first`."""
    return array if data_format == "channels_first" else np.moveaxis(array, 1, -1)


def taps(
    kernel: Ints, out: Ints, strides: Ints, dilation: Ints
) -> Iterator[tuple[Ints, tuple[slice, ...]]]:
    """Yield every kernel position with the slices of the padded spatial axes that the position
    reads.
    """
    for tap in product(*map(range, kernel)):
        columns = zip(tap, out, strides, dilation, strict=True)
        yield tap, tuple([slice(t * d, t * d + (o - 1) * s + 1, s) for t, o, s, d in columns])
