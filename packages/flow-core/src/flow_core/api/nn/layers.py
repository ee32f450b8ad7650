"""``flow.layers``: functions that create variables.

The variables of a layer named "conv1" are "conv1-weight", "conv1-bias" and so on, below the current
name scope, as in OneFlow's checkpoints.  Every layer creates its variables, so layer names must be
unique within a job.  Layers without a name are numbered in the order of their calls: "Dense",
"Dense_1" and so on; jobs that share such variables call their layers in the same order.

Args:
    inputs: a floating-point blob.
    filters: number of channels of the result.
    kernel_size: sizes of the kernel: one integer for all spatial axes, or one for each.
    activation: function that is called with the result, and with ``name=`` if it has that
        parameter.
    use_bias: whether to add a bias.
    kernel_initializer, kernel_regularizer: initializer and regularizer of the weight.
    bias_initializer, bias_regularizer: initializer and regularizer of the bias.
    trainable: whether optimizers update the variables.
    name: name of the layer.
    weight_name, bias_name: names of the variables instead of ``<name>-weight`` and ``<name>-bias``.

Returns: A blob (batch, filters, ...) for channels first.

Raises:
    InferenceError: the arguments do not fit.
    VariableError: the job already has a layer of this name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flow_core.api.array.initializers import constant_initializer, xavier_uniform_initializer
from flow_core.api.array.regularizers import Regularizer
from flow_core.api.array.shape import reshape, transpose
from flow_core.api.nn import layers_norm
from flow_core.api.nn.basic import bias_add
from flow_core.api.nn.conv import Ints, Padding, layout
from flow_core.api.nn.conv import conv1d as nn_conv1d
from flow_core.api.nn.conv import conv2d as nn_conv2d
from flow_core.api.nn.conv import conv3d as nn_conv3d
from flow_core.api.nn.layers_common import (
    BROADCAST,
    DefaultName,
    activated,
    check,
    check_input,
    layer_name,
    new_variable,
)
from flow_core.api.nn.layers_norm import *  # noqa: F403 - a star join, by __all__
from flow_core.api.session.distribute import Distribution
from flow_core.base.dtypes import DType
from flow_core.base.errors import LayoutWarning, user_line, warn
from flow_core.frontend.config.scope import name_scope
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.ir.initializers import Initializer
from flow_core.ops.nn.windows import channel_axis

__all__ = [*layers_norm.__all__, "conv1d", "conv2d", "conv3d", "dense", "prelu", "upsample_2d"]

Activation = Callable[..., BlobDef]

LEAST_IMAGE = 8
"""The least height and width of what may be an image with the channels last."""


# ------------------------------------------------------------------------------ dense


def dense(
    inputs: Blob,
    units: int,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer | None = None,
    bias_initializer: Initializer | None = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    trainable: bool = True,
    name: str = DefaultName("Dense"),
    model_distribute: Distribution = BROADCAST,
) -> BlobDef:
    """Multiply the last axis by a weight matrix, and add a bias.

    Variables: ``weight`` (units, inputs.shape[-1]) and ``bias`` (units,), zeros by default.

    Args:
        inputs: a floating-point blob of rank 2 or more.
        units: size of the last axis of the result.
        model_distribute: distribution of the variables: broadcast, split(0) (rank 2 only) or auto.

    Returns: A blob of shape (*inputs.shape[:-1], units).

    >>> ones = flow.ones_initializer()
    >>> run(flow.layers.dense, [[1, 2, 3], [-1, -2, -3]], 2, flow.nn.relu, kernel_initializer=ones)
    array([[6., 6.],
           [0., 0.]], dtype=float32)
    """
    check_input("dense", inputs)
    shape = inputs.shape
    check(len(shape) >= 2, "dense", f"inputs of shape {shape}", "rank 2 or more")
    _check_distribution(model_distribute, len(shape))
    x = inputs if len(shape) == 2 else reshape(inputs, (-1, shape[-1]))
    shared = {"trainable": trainable, "distribute": model_distribute}
    with name_scope(layer_name(name)):
        weight = new_variable(
            "weight", (units, shape[-1]), x.dtype, kernel_initializer or constant_initializer(0),
            regularizer=kernel_regularizer, **shared,
        )  # fmt: skip
        flags = {"transpose_a": False, "transpose_b": True, "alpha": 1.0}
        y: BlobDef = emit("matmul", x, weight, name="matmul", **flags)
        if use_bias:
            bias = new_variable(
                "bias", (units,), x.dtype, bias_initializer or constant_initializer(0),
                regularizer=bias_regularizer, **shared,
            )  # fmt: skip
            y = bias_add(y, bias, name="bias_add")
        y = activated("dense", y, activation)
    return y if len(shape) == 2 else reshape(y, (*shape[:-1], units))


def _check_distribution(distribute: Distribution, rank: int) -> None:
    split = distribute == Distribution("split", 0)
    check(
        split or getattr(distribute, "kind", None) in ("auto", "broadcast"),
        "dense",
        f"model_distribute={distribute!r:.60}",
        "flow.distribute.broadcast(), split(0) or auto()",
    )
    check(rank == 2 or not split, "dense", f"split(0) and inputs of rank {rank}", "rank 2")


# ------------------------------------------------------------------------------ convolutions

_CONVOLUTIONS = {1: nn_conv1d, 2: nn_conv2d, 3: nn_conv3d}


def _conv(
    dims: int,
    x: Blob,
    filters: int,
    sizes: tuple[Ints, Ints, Ints | None],
    padding: Padding,
    data_format: str,
    groups: int,
    activation: Activation | None,
    use_bias: bool,
    kernel: tuple[Initializer | None, Regularizer | None, str | None],
    bias: tuple[Initializer | None, Regularizer | None, str | None],
    trainable: bool,
    name: str,
) -> BlobDef:
    """Apply a convolution layer with ``dims`` spatial axes.

    ``sizes`` contains the kernel size, strides and dilation; ``kernel`` and ``bias`` contain the
    initializer, regularizer and name of the two variables.
    """
    name = layer_name(name)
    kernel_size, strides, dilation = sizes
    data_format = data_format.upper()
    shape = _weight_shape(dims, x, filters, kernel_size, data_format, groups)
    default = xavier_uniform_initializer(data_format=data_format)
    weight = _layer_variable(name, "weight", shape, x.dtype, kernel, default, trainable)
    convolution = _CONVOLUTIONS[dims]
    y = convolution(x, weight, strides, padding, data_format, dilation, groups=groups, name=name)
    if use_bias:
        zeros = constant_initializer(0)
        vector = _layer_variable(name, "bias", (filters,), x.dtype, bias, zeros, trainable)
        with name_scope(name):
            y = bias_add(y, vector, data_format, name="bias_add")
    with name_scope(name):
        return activated(f"conv{dims}d", y, activation)


def _weight_shape(
    dims: int, x: Blob, filters: int, kernel_size: Ints, data_format: str, groups: int
) -> tuple[int, ...]:
    function = f"conv{dims}d"
    check_input(function, x)
    form = layout(function, data_format, dims)
    check(len(x.shape) == dims + 2, function, f"inputs of shape {x.shape}", f"rank {dims + 2}")
    kernel = tuple(kernel_size) if isinstance(kernel_size, Iterable) else (kernel_size,) * dims
    whole = len(kernel) == dims and all(hasattr(n, "__index__") for n in kernel)
    check(whole, function, f"kernel_size={kernel_size!r}", f"{dims} integers")
    if dims == 2 and form == "channels_first":
        _warn_of_channels_last(x.shape)
    channels = x.shape[channel_axis(dims + 2, form)]
    check(
        isinstance(groups, int) and groups > 0 and filters % groups == channels % groups == 0,
        function,
        f"groups={groups!r} for {channels} channels and {filters} filters",
        "a positive integer that divides both",
    )
    depth = channels // groups
    return (filters, depth, *kernel) if form == "channels_first" else (filters, *kernel, depth)


def _warn_of_channels_last(shape: Sequence[int]) -> None:
    """Warn if what is called NCHW has a last axis of 3 behind two axes of more."""
    if shape[3] == 3 and min(shape[1:3]) >= LEAST_IMAGE:
        warn(
            f"flow.layers.conv2d takes inputs of shape {tuple(shape)} as NCHW: images of "
            f"{shape[1]} channels, {shape[2]} rows and 3 columns. For images with the channels "
            'last, pass data_format="NHWC"',
            LayoutWarning,
            user_line(),
        )


def _layer_variable(
    layer: str,
    name: str,
    shape: Sequence[int],
    dtype: DType,
    how: tuple[Initializer | None, Regularizer | None, str | None],
    default: Initializer,
    trainable: bool,
) -> BlobDef:
    """Return a variable named after the layer, or under a given full name."""
    initializer, regularizer, full = how
    more = {"regularizer": regularizer, "trainable": trainable}
    initializer = initializer or default
    if full is not None:
        return new_variable(full, shape, dtype, initializer, **more)
    with name_scope(layer):
        return new_variable(name, shape, dtype, initializer, **more)


def conv1d(
    inputs: Blob,
    filters: int,
    kernel_size: Ints = 1,
    strides: Ints = 1,
    padding: Padding = "VALID",
    data_format: str = "NCW",
    dilation_rate: Ints | None = None,
    groups: int = 1,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer | None = None,
    bias_initializer: Initializer | None = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    trainable: bool = True,
    name: str = DefaultName("Conv1d"),
    weight_name: str | None = None,
    bias_name: str | None = None,
) -> BlobDef:
    """Create the variables of a convolution over one spatial axis, and apply it; see `conv2d`.

    >>> run(flow.layers.conv1d, np.ones((1, 2, 8)), 4, 3, padding="SAME", name="conv").shape
    (1, 4, 8)
    """
    return _conv(
        1, inputs, filters, (kernel_size, strides, dilation_rate), padding, data_format, groups,
        activation, use_bias, (kernel_initializer, kernel_regularizer, weight_name),
        (bias_initializer, bias_regularizer, bias_name), trainable, name,
    )  # fmt: skip


def conv2d(
    inputs: Blob,
    filters: int,
    kernel_size: Ints = 1,
    strides: Ints = 1,
    padding: Padding = "VALID",
    data_format: str = "NCHW",
    dilation_rate: Ints | None = None,
    groups: int = 1,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer | None = None,
    bias_initializer: Initializer | None = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    trainable: bool = True,
    name: str = DefaultName("Conv2d"),
    weight_name: str | None = None,
    bias_name: str | None = None,
) -> BlobDef:
    """Create the variables of a convolution over two spatial axes; apply it, a bias and an
    activation.

    Variables: ``weight`` (filters, channels / groups, *kernel), with the channels last for "NHWC",
    initialized by ``xavier_uniform_initializer`` by default; ``bias`` (filters,), zeros by default.
    A `LayoutWarning` is issued for inputs that are called NCHW, but have the shape of images with
    three channels last.

    Args:
        inputs: a floating-point blob of rank 4.

    >>> run(flow.layers.conv2d, np.ones((1, 2, 8, 8)), 4, 3, padding="SAME", name="conv").shape
    (1, 4, 8, 8)
    """
    return _conv(
        2, inputs, filters, (kernel_size, strides, dilation_rate), padding, data_format, groups,
        activation, use_bias, (kernel_initializer, kernel_regularizer, weight_name),
        (bias_initializer, bias_regularizer, bias_name), trainable, name,
    )  # fmt: skip


def conv3d(
    inputs: Blob,
    filters: int,
    kernel_size: Ints = 1,
    strides: Ints = 1,
    padding: Padding = "VALID",
    data_format: str = "NCDHW",
    dilation_rate: Ints | None = None,
    groups: int = 1,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer | None = None,
    bias_initializer: Initializer | None = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    trainable: bool = True,
    name: str = DefaultName("Conv3d"),
    weight_name: str | None = None,
    bias_name: str | None = None,
) -> BlobDef:
    """Create the variables of a convolution over three spatial axes, and apply it; see `conv2d`.

    For compatibility with OneFlow's checkpoints, the weight has the channels first even for
    "NDHWC". Explicit padding is given in the order of "NCDHW".

    >>> run(flow.layers.conv3d, np.ones((1, 2, 8, 8, 8)), 4, 3, padding="SAME", name="conv").shape
    (1, 4, 8, 8, 8)
    """
    last = data_format.upper() == "NDHWC"
    y = _conv(
        3, transpose(inputs, (0, 4, 1, 2, 3)) if last else inputs, filters,
        (kernel_size, strides, dilation_rate), padding, "NCDHW" if last else data_format, groups,
        activation, use_bias, (kernel_initializer, kernel_regularizer, weight_name),
        (bias_initializer, bias_regularizer, bias_name), trainable, name,
    )  # fmt: skip
    return transpose(y, (0, 2, 3, 4, 1)) if last else y


# ------------------------------------------------------------------------------ others


def prelu(
    inputs: Blob,
    alpha_initializer: Initializer | None = None,
    alpha_regularizer: Regularizer | None = None,
    shared_axes: Sequence[int] | None = None,
    trainable: bool = True,
    name: str = DefaultName("PRelu"),
    model_distribute: Distribution = BROADCAST,
) -> BlobDef:
    """Return ``inputs`` where they are positive, otherwise ``alpha * inputs``.

    Variable: ``alpha`` of shape ``inputs.shape[1:]``, with size 1 on the shared axes; zeros by
    default.

    Args:
        alpha_initializer, alpha_regularizer: initializer and regularizer of alpha.
        shared_axes: axes of the input along which alpha is shared.
        trainable: whether optimizers update alpha.
        model_distribute: distribution of alpha.

    Returns: A blob of the shape and type of ``inputs``.

    Raises: InferenceError: a shared axis is out of range.

    >>> run(flow.layers.prelu, [[-4, 4]], flow.constant_initializer(0.25))
    array([[-1.,  4.]], dtype=float32)
    """
    shape, shared, rank = inputs.shape, tuple(shared_axes or ()), len(inputs.shape)
    ok = all(1 <= i < rank for i in shared)
    check(ok, "prelu", f"shared_axes={shared} for shape {shape}", f"axes 1 to {rank - 1}")
    sizes = [1 if i in shared else n for i, n in enumerate(shape)][1:]
    name = layer_name(name)
    with name_scope(name):
        alpha = new_variable(
            "alpha", sizes, inputs.dtype, alpha_initializer or constant_initializer(0),
            regularizer=alpha_regularizer, trainable=trainable, distribute=model_distribute,
        )  # fmt: skip
    return emit_one("prelu", inputs, alpha, name=name)


def upsample_2d(
    x: Blob,
    size: Ints = (2, 2),
    data_format: str = "NCHW",
    interpolation: str = "nearest",
    name: str = "Upsample2D",
) -> BlobDef:
    """Upsample height and width of images.

    Args:
        x: a floating-point blob of rank 4.
        size: the two factors for height and width, or one factor for both.
        data_format: "NCHW" or "NHWC".
        interpolation: "nearest", or "bilinear", which interpolates between the centers of elements.

    Returns: A blob with larger height and width.

    Raises: InferenceError: the arguments do not fit.

    >>> run(flow.layers.upsample_2d, np.ones((1, 2, 4, 4))).shape
    (1, 2, 8, 8)
    """
    factors = (size, size) if isinstance(size, int | float) else tuple(size)
    check(len(factors) == 2, "upsample_2d", f"size={size!r}", "one or two factors")
    last = layout("upsample_2d", data_format, 2) == "channels_last"
    source = transpose(x, (0, 3, 1, 2)) if last else x
    y: BlobDef = emit(
        "upsample", source,
        height_scale=float(factors[0]), width_scale=float(factors[1]),
        data_format="channels_first", interpolation=interpolation, name=name,
    )  # fmt: skip
    return transpose(y, (0, 2, 3, 1)) if last else y
