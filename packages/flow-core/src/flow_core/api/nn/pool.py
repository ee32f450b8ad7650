"""``flow.nn``: pooling, that is, the maximum or the mean of the elements of each window.

Args:
    input: a floating-point blob (batch, channels, ...), or with the channels last.
    ksize: sizes of the windows: one integer for all spatial axes, or one for each.
    ceil_mode: whether to keep windows that extend beyond the end; for explicit padding only.

Returns: A blob with one element per window and channel.

Raises:
    InferenceError: the arguments do not fit, or a window contains only padding.
"""

from __future__ import annotations

from flow_core.api.nn.conv import (
    Ints,
    Padding,
    check_rank,
    explicit_padding,
    layout,
    padding_name,
    per_axis,
)
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit_one

__all__ = [
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d",
]  # fmt: skip


def _pool(
    mode: str,
    dims: int,
    x: Blob,
    ksize: Ints,
    strides: Ints | None,
    padding: Padding,
    data_format: str,
    ceil_mode: bool,
    name: str | None,
) -> BlobDef:
    function = f"{mode}_pool{dims}d"
    form = layout(function, data_format, dims)
    check_rank(function, dims, input=x)
    if isinstance(padding, str):
        kind, pads = padding_name(function, padding).lower(), [(0, 0)] * dims
    else:
        kind, pads = "customized", explicit_padding(function, padding, dims, form)
    return emit_one(
        f"{mode}_pool_{dims}d", x,
        pool_size=per_axis(function, "ksize", ksize, dims),
        strides=per_axis(function, "strides", strides, dims),
        padding=kind, padding_before=tuple(p[0] for p in pads),
        padding_after=tuple(p[1] for p in pads),
        data_format=form, ceil_mode=bool(ceil_mode), name=name,
    )  # fmt: skip


def max_pool1d(
    input: Blob,
    ksize: Ints,
    strides: Ints,
    padding: Padding,
    data_format: str = "NWC",
    name: str | None = None,
) -> BlobDef:
    """Return the maximum of every window over one spatial axis; see `max_pool2d`.

    >>> run(flow.nn.max_pool1d, np.ones((1, 2, 8)), 2, 2, "VALID", data_format="NCW").shape
    (1, 2, 4)
    """
    return _pool("max", 1, input, ksize, strides, padding, data_format, False, name)


def max_pool2d(
    input: Blob,
    ksize: Ints,
    strides: Ints,
    padding: Padding,
    data_format: str = "NCHW",
    ceil_mode: bool = False,
    name: str | None = None,
) -> BlobDef:
    """Return the maximum of every window.

    Padding is ignored.  If several elements of a window are the largest, the first of them receives
    the gradient.

    >>> run(flow.nn.max_pool2d, np.ones((1, 2, 8, 8)), 2, 2, "VALID").shape
    (1, 2, 4, 4)
    """
    return _pool("max", 2, input, ksize, strides, padding, data_format, ceil_mode, name)


def max_pool3d(
    input: Blob,
    ksize: Ints,
    strides: Ints,
    padding: Padding,
    data_format: str = "NCDHW",
    ceil_mode: bool = False,
    name: str | None = None,
) -> BlobDef:
    """Return the maximum of every window over three spatial axes; see `max_pool2d`.

    >>> run(flow.nn.max_pool3d, np.ones((1, 2, 8, 8, 8)), 2, 2, "VALID").shape
    (1, 2, 4, 4, 4)
    """
    return _pool("max", 3, input, ksize, strides, padding, data_format, ceil_mode, name)


def avg_pool1d(
    input: Blob,
    ksize: Ints,
    strides: Ints,
    padding: Padding,
    data_format: str = "NCW",
    name: str | None = None,
) -> BlobDef:
    """Return the mean of every window over one spatial axis; see `avg_pool2d`.

    >>> run(flow.nn.avg_pool1d, np.ones((1, 2, 8)), 2, 2, "VALID", data_format="NCW").shape
    (1, 2, 4)
    """
    return _pool("avg", 1, input, ksize, strides, padding, data_format, False, name)


def avg_pool2d(
    input: Blob,
    ksize: Ints,
    strides: Ints,
    padding: Padding,
    data_format: str = "NCHW",
    ceil_mode: bool = False,
    name: str | None = None,
) -> BlobDef:
    """Return the mean of the elements of every window, not counting padding.

    >>> run(flow.nn.avg_pool2d, np.ones((1, 2, 8, 8)), 2, 2, "VALID").shape
    (1, 2, 4, 4)
    """
    return _pool("avg", 2, input, ksize, strides, padding, data_format, ceil_mode, name)


def avg_pool3d(
    input: Blob,
    ksize: Ints,
    strides: Ints,
    padding: Padding,
    data_format: str = "NCDHW",
    ceil_mode: bool = False,
    name: str | None = None,
) -> BlobDef:
    """Return the mean of every window over three spatial axes; see `avg_pool2d`.

    >>> run(flow.nn.avg_pool3d, np.ones((1, 2, 8, 8, 8)), 2, 2, "VALID").shape
    (1, 2, 4, 4, 4)
    """
    return _pool("avg", 3, input, ksize, strides, padding, data_format, ceil_mode, name)
