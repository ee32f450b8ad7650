"""``flow.nn``: convolutions and transposed convolutions; pooling is in `pool`.

Args:
    input: a floating-point blob (batch, channels, ...), or with the channels last.
    filters: a blob (filters, channels / groups, ...) of the same element type, or with the channels
        last.
    value: blob (batch, channels, height, width), or with the channels last for "NHWC"; ``input`` is
        another name of this argument.
    filter: filters of the transposed convolution: (channels, output channels, height, width), or
        (channels, height, width, output channels) for "NHWC"; ``filters`` is another name of this
        argument.

Returns: A blob (batch, filters, ...), or with the channels last.

Raises:
    InferenceError: the shapes, element types or other arguments do not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from flow_core.api.nn.common import check
from flow_core.base.errors import CompatibilityWarning, user_line
from flow_core.base.shapes import same_padding
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit_one
from flow_core.ops.nn.windows import channel_axis, space_axes

__all__ = [
    "compat_conv2d", "conv1d", "conv2d", "conv2d_transpose", "conv3d", "torch_conv2d_transpose",
]  # fmt: skip

Ints = int | Sequence[int]
Padding = str | int | Sequence[Any]
NAMED_PADDING = ("SAME", "SAME_LOWER", "SAME_UPPER", "VALID")

FORMATS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}

LATER_BIAS = (
    "a bias before data_format is the order of OneFlow 0.5: "
    "import oneflow.compatible.single_client as flow"
)


def per_axis(function: str, what: str, value: Any, dims: int) -> tuple[int, ...]:
    """Return one integer per spatial axis; None means 1 for all axes."""
    values = [1] if value is None else [value] if isinstance(value, Integral) else list(value)
    numbers = all(isinstance(v, Integral) and int(v) > 0 for v in values)
    allowed = f"a positive integer, or {dims} of them"
    check(numbers and len(values) in (1, dims), function, f"{what}={value!r}", allowed)
    return tuple(map(int, values * dims if len(values) == 1 else values))


def layout(function: str, data_format: str, dims: int) -> str:
    """Return the layout attribute for a data format with ``dims`` spatial axes."""
    text = str(data_format).upper()
    allowed = " or ".join(FORMATS[dims])
    hint = LATER_BIAS if isinstance(data_format, BlobDef) else None
    check(text in FORMATS[dims], function, f"data_format={data_format!r}", allowed, hint)
    return "channels_first" if text == FORMATS[dims][0] else "channels_last"


def check_rank(function: str, dims: int, **blobs: Blob) -> None:
    for name, blob in blobs.items():
        rank = len(blob.shape)
        check(rank == dims + 2, function, f"{name} of shape {blob.shape}", f"rank {dims + 2}")


def explicit_padding(
    function: str, padding: Padding, dims: int, form: str
) -> list[tuple[int, int]]:
    """Convert a number, or numbers or pairs for the spatial axes or for all axes of the input, to
    pairs for the spatial axes.
    """
    given = [padding] * dims if isinstance(padding, Integral) else _elements(padding)
    pairs = [(p, p) if isinstance(p, Integral) else tuple(_elements(p)) for p in given]
    space = space_axes(dims + 2, form)
    if len(pairs) == dims:
        placed = dict(zip(space, pairs, strict=True))
        pairs = [placed.get(axis, (0, 0)) for axis in range(dims + 2)]
    ok = len(pairs) == dims + 2 and all(
        _is_pair(p) and (i in space or p == (0, 0)) for i, p in enumerate(pairs)
    )
    allowed = (
        f"{', '.join(NAMED_PADDING)}; a number of at least 0, or {dims} numbers or pairs (before, "
        f"after) for the spatial axes; or {dims + 2} for all axes, (0, 0) on axes other than "
        f"{', '.join(map(str, space))}"
    )
    check(ok, function, f"padding={padding!r:.60}", allowed)
    return [(int(pairs[i][0]), int(pairs[i][1])) for i in space]


def _elements(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []


def _is_pair(given: tuple[Any, ...]) -> bool:
    return len(given) == 2 and all(isinstance(n, Integral) and int(n) >= 0 for n in given)


def padding_name(function: str, padding: str) -> str:
    text = padding.upper()
    allowed = f"{', '.join(NAMED_PADDING)}, a number, or numbers or pairs"
    check(text in NAMED_PADDING, function, f"padding={padding!r}", allowed)
    return "SAME_LOWER" if text == "SAME" else text


def _conv(
    dims: int,
    x: Blob,
    filters: Blob,
    strides: Ints,
    padding: Padding,
    data_format: str,
    dilations: Ints | None,
    groups: int,
    name: str | None,
) -> BlobDef:
    function = f"conv{dims}d"
    form = layout(function, data_format, dims)
    check_rank(function, dims, input=x, filters=filters)
    step = per_axis(function, "strides", strides, dims)
    dilation = per_axis(function, "dilations", dilations, dims)
    axes = space_axes(dims + 2, form)
    size, kernel = ([blob.shape[i] for i in axes] for blob in (x, filters))
    if isinstance(padding, str):
        mode = padding_name(function, padding)
        columns = zip(size, kernel, step, dilation, strict=True)
        lower = mode == "SAME_LOWER"
        pads = [(0, 0) if mode == "VALID" else same_padding(*c, lower) for c in columns]
    else:
        pads = explicit_padding(function, padding, dims, form)
    channels = x.shape[channel_axis(dims + 2, form)]
    check(
        isinstance(groups, int) and groups > 0 and channels % groups == 0,
        function,
        f"groups={groups!r} for {channels} channels",
        "a positive integer that divides the number of channels",
    )
    return emit_one(
        function, x, filters,
        filters=filters.shape[0], kernel_size=tuple(kernel), strides=step, dilation_rate=dilation,
        padding_before=tuple(p[0] for p in pads), padding_after=tuple(p[1] for p in pads),
        data_format=form, groups=groups, name=name,
    )  # fmt: skip


def conv1d(
    input: Blob,
    filters: Blob,
    strides: Ints,
    padding: Padding,
    data_format: str = "NCW",
    dilations: Ints | None = None,
    groups: int = 1,
    name: str | None = None,
) -> BlobDef:
    """Convolve over one spatial axis.

    >>> run(flow.nn.conv1d, np.ones((1, 2, 8)), np.ones((4, 2, 3)), 1, "SAME").shape
    (1, 4, 8)
    """
    return _conv(1, input, filters, strides, padding, data_format, dilations, groups, name)


def conv2d(
    input: Blob,
    filters: Blob,
    strides: Ints,
    padding: Padding,
    data_format: str = "NCHW",
    dilations: Ints | None = None,
    groups: int = 1,
    name: str | None = None,
) -> BlobDef:
    """Convolve over two spatial axes (by cross-correlation: kernels are not flipped).

    Args:
        input: floating-point blob (batch, channels, height, width) for "NCHW", with the channels
            last for "NHWC".
        filters: blob of the same element type: (filters, channels / groups, height, width) for
            "NCHW", (filters, height, width, channels / groups) for "NHWC".

    Returns: A blob with (size + padding - dilated kernel) // stride + 1 positions on each spatial
        axis.

    >>> run(flow.nn.conv2d, np.ones((1, 2, 8, 8)), np.ones((4, 2, 3, 3)), 1, "SAME").shape
    (1, 4, 8, 8)
    """
    return _conv(2, input, filters, strides, padding, data_format, dilations, groups, name)


def conv3d(
    input: Blob,
    filters: Blob,
    strides: Ints,
    padding: Padding,
    data_format: str = "NCDHW",
    dilations: Ints | None = None,
    groups: int = 1,
    name: str | None = None,
) -> BlobDef:
    """Convolve over three spatial axes.

    >>> run(flow.nn.conv3d, np.ones((1, 2, 8, 8, 8)), np.ones((4, 2, 3, 3, 3)), 1, "SAME").shape
    (1, 4, 8, 8, 8)
    """
    return _conv(3, input, filters, strides, padding, data_format, dilations, groups, name)


def compat_conv2d(
    input: Blob,
    filters: Blob,
    strides: Ints,
    padding: str,
    data_format: str = "NCHW",
    dilations: Ints | None = None,
    groups: int = 1,
    name: str | None = None,
) -> BlobDef:
    """Call `conv2d`, where "SAME" means "SAME_UPPER", as in TensorFlow.

    >>> run(flow.nn.compat_conv2d, np.ones((1, 2, 8, 8)), np.ones((4, 2, 3, 3)), 2, "SAME").shape
    (1, 4, 4, 4)
    """
    if isinstance(padding, str) and padding.upper() == "SAME":
        padding = "SAME_UPPER"
    return conv2d(input, filters, strides, padding, data_format, dilations, groups, name)


# ------------------------------------------------------------------------------ transposed


def _one_of(function: str, old: Blob | None, new: Blob | None, names: str) -> BlobDef:
    given = [blob for blob in (old, new) if blob is not None]
    check(len(given) == 1, function, f"{len(given)} of them", f"exactly one of {names}")
    return checked_blob(given[0])


def conv2d_transpose(
    value: Blob | None = None,
    filter: Blob | None = None,
    output_shape: Sequence[int] | None = None,
    strides: Ints | None = None,
    padding: str = "VALID",
    data_format: str = "NCHW",
    name: str | None = None,
    input: Blob | None = None,
    filters: Blob | None = None,
    dilations: Ints | None = None,
) -> BlobDef:
    """Apply the transpose (gradient) of a `conv2d`, which maps outputs to the positions of inputs.

    Args:
        output_shape: shape of the result, four numbers.  The channels of the input in place of
            those of the result, as in programs for OneFlow 0.1, are accepted with a warning.
        strides, dilations: those of that convolution.
        padding: "VALID" or "SAME"; with "SAME", odd padding has one element more after the input.
        input, filters: other names of ``value`` and ``filter``.

    Returns: A blob (batch, channels, height, width) with channels first.

    Raises:
        InferenceError: the convolution does not map ``output_shape`` to the shape of ``value``, or
            other arguments do not fit.

    >>> run(
    ...     flow.nn.conv2d_transpose,
    ...     np.ones((1, 2, 4, 4)),
    ...     np.ones((2, 3, 3, 3)),
    ...     (1, 3, 8, 8),
    ...     2,
    ...     "SAME",
    ... ).shape
    (1, 3, 8, 8)
    """
    function = "conv2d_transpose"
    x = _one_of(function, value, input, "value and input")
    weight = _one_of(function, filter, filters, "filter and filters")
    form = layout(function, data_format, 2)
    check_rank(function, 2, input=x, filters=weight)
    given = () if output_shape is None else tuple(output_shape)
    allowed = "four numbers: the batch, channels, height and width of the result"
    check(len(given) == 4, function, f"output_shape={output_shape!r}", allowed)
    _check_transposed_shape(function, given, x, weight, channel_axis(4, form))
    step = per_axis(function, "strides", strides, 2)
    dilation = per_axis(function, "dilations", dilations, 2)
    mode = padding.upper()
    check(mode in ("SAME", "VALID"), function, f"padding={padding!r}", "SAME or VALID")
    pads, extra = [], []
    for i, s, d in zip(space_axes(4, form), step, dilation, strict=True):
        needed = _transposed_padding(given[i], x.shape[i], (weight.shape[i] - 1) * d + 1, s, mode)
        pads.append((needed // 2, needed - needed // 2))
        extra.append(given[i] - ((x.shape[i] - 1) * s + (weight.shape[i] - 1) * d + 1 - needed))
    return _deconv(x, weight, step, dilation, pads, extra, form, name)


def _check_transposed_shape(
    function: str, given: tuple[int, ...], x: BlobDef, weight: BlobDef, axis: int
) -> None:
    """Check the batch and the channels of the requested shape of the result.

    Programs for OneFlow before 0.2 pass the channels of the input, which that release ignores.
    """
    channels = weight.shape[axis]
    found = f"output_shape={given} for input {x.shape}, filters {weight.shape}"
    fits = given[0] == x.shape[0] and given[axis] in (channels, x.shape[axis])
    check(fits, function, found, f"batch {x.shape[0]}, {channels} channels")
    if given[axis] != channels:
        x.job.session.warn(
            f"flow.nn.{function}: {found} has the channels of the input, as in OneFlow 0.1; the "
            f"result has those of the filters, {channels}",
            CompatibilityWarning,
            user_line(),
        )


def _transposed_padding(out: int, size: int, effective: int, stride: int, mode: str) -> int:
    """Return the padding of the convolution from ``out`` to ``size`` positions on one axis."""
    reached = -(-out // stride) if mode == "SAME" else (out - effective) // stride + 1
    check(
        reached == size,
        "conv2d_transpose",
        f"output_shape with {out} positions on an axis where the input has {size}",
        f"a size which a {mode} convolution of stride {stride} maps to {size}",
    )
    return max(0, (size - 1) * stride + effective - out) if mode == "SAME" else 0


def _deconv(
    x: Blob,
    weight: Blob,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: Sequence[tuple[int, int]],
    extra: Sequence[int],
    form: str,
    name: str | None,
) -> BlobDef:
    return emit_one(
        "deconv2d", x, weight,
        filters=weight.shape[channel_axis(4, form)],
        kernel_size=tuple(weight.shape[i] for i in space_axes(4, form)),
        strides=strides, dilation_rate=dilations, output_padding=tuple(extra),
        padding_before=tuple(p[0] for p in pads), padding_after=tuple(p[1] for p in pads),
        data_format=form, name=name,
    )  # fmt: skip


def torch_conv2d_transpose(
    value: Blob | None = None,
    filter: Blob | None = None,
    output_padding: Sequence[int] | None = None,
    strides: Ints | None = None,
    padding_needed: Sequence[int] | None = None,
    data_format: str = "NCHW",
    name: str | None = None,
    input: Blob | None = None,
    filters: Blob | None = None,
    dilations: Ints | None = None,
) -> BlobDef:
    """Do the same as `conv2d_transpose`, given the padding instead of the shape of the result.

    Args:
        input, filters: other names of ``value`` and ``filter``.
        strides, dilations: those of that convolution.
        output_padding: number of positions added at the end of each axis, less than the stride; 0
            by default.
        padding_needed: total padding of both sides of each axis; an even number.

    Returns: A blob with (size - 1) * stride - padding_needed + dilated kernel + output_padding
        positions on each spatial axis.

    Raises: InferenceError: the arguments do not fit.

    >>> run(
    ...     lambda x, w: flow.nn.torch_conv2d_transpose(x, w, [0, 0], 2, [0, 0]),
    ...     np.ones((1, 2, 4, 4)),
    ...     np.ones((2, 3, 2, 2)),
    ... ).shape
    (1, 3, 8, 8)
    """
    function = "torch_conv2d_transpose"
    x = _one_of(function, value, input, "value and input")
    weight = _one_of(function, filter, filters, "filter and filters")
    form = layout(function, data_format, 2)
    check_rank(function, 2, input=x, filters=weight)
    needed = () if padding_needed is None else tuple(padding_needed)
    ok = len(needed) == 2 and all(p >= 0 and p % 2 == 0 for p in needed)
    check(ok, function, f"padding_needed={padding_needed!r}", "two even numbers")
    step = per_axis(function, "strides", strides, 2)
    dilation = per_axis(function, "dilations", dilations, 2)
    pads = [(p // 2, p // 2) for p in needed]
    extra = (0, 0) if output_padding is None else tuple(output_padding)
    return _deconv(x, weight, step, dilation, pads, extra, form, name)


# ------------------------------------------------------------------------------ pooling
