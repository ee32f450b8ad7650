"""``flow.nn``: softmax, dropout, bias, normalisation, rearrangement.

Functions with inner steps name these after ``name``, as in OneFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from flow_core.api import math as flow_math
from flow_core.api.math import fused_scale_tril, relu, tril
from flow_core.api.nn.common import check, inner
from flow_core.base.errors import UnsupportedError, user_line
from flow_core.base.shapes import normal_axis
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.emit import emit
from flow_core.frontend.trace.job_build import current_job

__all__ = [
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "Module",
    "PixelShuffle",
    "PixelShufflev2",
    "batch_normalization",
    "bias_add",
    "dropout",
    "fused_scale_tril",
    "layer_norm",
    "logsoftmax",
    "moments",
    "random_mask_like",
    "relu",
    "softmax",
    "softmax_grad",
    "tril",
]


def _axis(x: BlobDef, axis: int, function: str) -> int:
    rank = len(x.shape)
    fits = hasattr(axis, "__index__") and -rank <= axis < rank
    check(fits, function, f"axis {axis!r} for shape {x.shape}", f"-{rank} to {rank - 1}")
    return normal_axis(axis, rank)


def _reshape(x: BlobDef, shape: Sequence[int], name: str | None = None) -> BlobDef:
    blob: BlobDef = emit("reshape", x, shape=tuple(shape), name=name)
    return blob


# --- softmax, bias, dropout


def softmax(logits: BlobDef, axis: int | None = None, name: str | None = None) -> BlobDef:
    """``exp(logits)`` divided by its sums along an axis, the last by default.

    Returns:
        A blob of the shape and type of ``logits``; slices along ``axis`` add up to 1.

    Raises:
        InferenceError: an axis out of range, or nothing along it, or integers.
    """
    axis = _axis(logits, -1 if axis is None else axis, "softmax")
    blob: BlobDef = emit("softmax", logits, axis=axis, name=name)
    return blob


def logsoftmax(logits: BlobDef, axis: int | None = None, name: str | None = None) -> BlobDef:
    """The logarithm of `softmax`, exact also where the softmax itself underflows.

    Args:
        logits: a floating blob.
        axis: along which the softmax adds up to 1; the last by default.
        name: name of the op.

    Returns:
        A blob like ``logits``.

    Raises:
        InferenceError: as `softmax`.
    """
    axis = _axis(logits, -1 if axis is None else axis, "logsoftmax")
    blob: BlobDef = emit("log_softmax", logits, axis=axis, name=name)
    return blob


def softmax_grad(
    y: BlobDef, dy: BlobDef, axis: int | None = None, name: str | None = None
) -> BlobDef:
    """The gradient of the input of a softmax.

    Args:
        y: what the softmax has given.
        dy: the gradient of that, of its shape and element type.
        axis: the softmax's axis; the last by default.
        name: name of the op.

    Returns:
        A blob like ``y``.

    Raises:
        InferenceError: an axis out of range, or ``dy`` of another type.
    """
    axis = _axis(y, -1 if axis is None else axis, "softmax_grad")
    blob: BlobDef = emit("softmax_grad", y, dy, axis=axis, name=name)
    return blob


def bias_add(
    value: BlobDef, bias: BlobDef, data_format: str | None = None, name: str | None = None
) -> BlobDef:
    """Adds a vector along the channel axis.

    Args:
        value: a blob with a channel axis.
        bias: shape (channels,), same element type.
        data_format: "NC..." (channels on axis 1, also the default) or "N...C" (on the last).
        name: name of the op.

    Raises:
        InferenceError: another data format, or a bias that does not fit.
    """
    formats = '"NC...", such as "NCHW", or "N...C", such as "NHWC"'
    text = "NC" if data_format is None else data_format
    channels_last = text.startswith("N") and text.endswith("C") and text != "NC"
    known = channels_last or text.startswith("NC")
    check(known, "bias_add", f"data_format={data_format!r}", formats)
    axis = len(value.shape) - 1 if channels_last else 1
    blob: BlobDef = emit("bias_add", value, bias, axis=axis, name=name)
    return blob


def random_mask_like(
    like: BlobDef,
    rate: float,
    seed: int | None = None,
    noise_shape: Sequence[int] | None = None,
    name: str | None = None,
) -> BlobDef:
    """A random int8 mask: 0 with probability ``rate``, else 1, drawn anew in each step.

    The numbers depend on the seed, the step and the element's place in the logical tensor only,
    not on how the tensor is laid out.  Without ``seed`` they follow from the job's seed and the
    op's name; two ops with the same ``seed`` draw the same numbers.

    Args:
        like: gives the shape.
        rate: share of zeros, in [0, 1).
        seed: seed of this op.
        noise_shape: not supported, as in OneFlow.
        name: name of the op.

    Raises:
        InferenceError: ``rate`` out of range.
        UnsupportedError: ``noise_shape`` was given.
    """
    _check_rate("random_mask_like", rate)
    if noise_shape is not None:
        raise UnsupportedError(
            "flow.nn.random_mask_like",
            at=user_line(),
            found=f"noise_shape={noise_shape!r}",
            allowed="None: one number per element",
            hint="make a mask of the small shape, and multiply with it",
        )
    blob: BlobDef = emit("random_mask_like", like, rate=float(rate), seed=seed, name=name)
    return blob


def _check_rate(function: str, rate: object) -> None:
    ok = isinstance(rate, int | float) and 0 <= rate < 1
    check(ok, function, f"rate={rate!r}", "0 <= rate < 1, the share of elements to drop")


def dropout(
    x: BlobDef,
    rate: float,
    noise_shape: Sequence[int] | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> BlobDef:
    """In train jobs, zeroes elements with probability ``rate`` and scales up the others.

    Elements that stay are multiplied by ``1 / (1 - rate)``, so that the mean stays.  In predict
    jobs, and for ``rate=0``, the result is ``x`` itself.

    Args:
        x: a floating point blob.
        rate: share of elements to drop, in [0, 1).
        noise_shape: not supported, as in OneFlow.
        seed: see `random_mask_like`.
        name: name of the op.

    Raises:
        InferenceError: ``rate`` out of range, or integers.
        UnsupportedError: ``noise_shape`` was given.
    """
    _check_rate("dropout", rate)
    if current_job("flow.nn.dropout").kind != "train" or rate == 0:
        return x
    mask_name = None if name is None else f"{name}-dropout_random_mask_like"
    mask = random_mask_like(x, rate, seed, noise_shape, mask_name)
    blob: BlobDef = emit("dropout", x, mask, scale=1.0 / (1.0 - rate), name=name)
    return blob


# --- normalisation


def moments(
    x: BlobDef, axes: Sequence[int], keepdims: bool = False, name: str | None = None
) -> tuple[BlobDef, BlobDef]:
    """Mean and (biased) variance over some axes.

    Args:
        x: a floating point blob.
        axes: axes to reduce.
        keepdims: whether these stay, with size 1.
        name: prefix of the names of the ops.

    Example:
        ``mean, variance = flow.nn.moments(x, axes=[0])`` of [1, 2, 3, 4, 5] gives 3 and 2.
    """
    axes = [axes] if isinstance(axes, int) else list(axes)
    return (
        flow_math.reduce_mean(x, axis=axes, keepdims=keepdims, name=inner(name, "mean")),
        flow_math.reduce_variance(x, axis=axes, keepdims=keepdims, name=inner(name, "variance")),
    )


def batch_normalization(
    x: BlobDef,
    mean: BlobDef,
    variance: BlobDef,
    offset: BlobDef | None = None,
    scale: BlobDef | None = None,
    variance_epsilon: float = 1e-5,
    axis: int = 1,
    name: str | None = None,
) -> BlobDef:
    """``(x - mean) / sqrt(variance + variance_epsilon) * scale + offset``.

    Gradients flow to all inputs.  ``flow.layers.batch_normalization`` also keeps statistics.

    Args:
        x: a floating point blob.
        mean, variance: vectors along ``axis``, or blobs of x's rank that broadcast to it.
        offset, scale: likewise, or None for none.
        variance_epsilon: added to the variance.
        axis: axis of the vectors.
        name: name of the last op.

    Raises:
        InferenceError: shapes that fit neither way.
    """
    axis = _axis(x, axis, "batch_normalization")
    m, v, k, b = (_along(x, p, axis) for p in (mean, variance, scale, offset))
    result = (x - m) * flow_math.rsqrt(v + float(variance_epsilon))
    result = result if k is None else result * k
    return _named(result if b is None else result + b, name)


def _along(x: BlobDef, vector: BlobDef | None, axis: int) -> Any:
    """A parameter as it broadcasts against x."""
    if vector is None or len(vector.shape) == len(x.shape) != 1:
        return vector
    size = x.shape[axis]
    check(
        vector.shape == (size,),
        "batch_normalization",
        f"a parameter of shape {vector.shape} for x of shape {x.shape}",
        f"shape ({size},) along axis {axis}, or rank {len(x.shape)}",
    )
    return _reshape(vector, [size if i == axis else 1 for i in range(len(x.shape))])


def _named(x: BlobDef, name: str | None) -> BlobDef:
    """The same values under the name that the user gave."""
    if name is None:
        return x
    blob: BlobDef = emit("identity", x, name=name)
    return blob


def layer_norm(
    inputs: BlobDef,
    gamma: BlobDef | None = None,
    beta: BlobDef | None = None,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> BlobDef:
    """Shifts and scales each row to mean 0 and variance 1, then applies ``* gamma + beta``.

    Args:
        inputs: a floating point blob; a row is all of the axes from ``begin_norm_axis`` on.
        gamma, beta: of shape ``inputs.shape[begin_params_axis:]``, or None for none.
        begin_norm_axis: first axis of a row.
        begin_params_axis: first axis of the parameters.
        epsilon: added to the variance.
        name: name of the op.

    Raises:
        InferenceError: parameters of another shape or type, or an axis out of range.
    """
    params = [p for p in (beta, gamma) if p is not None]
    y: BlobDef = emit(
        "layer_norm",
        inputs,
        *params,
        center=beta is not None,
        scale=gamma is not None,
        begin_norm_axis=_axis(inputs, begin_norm_axis, "layer_norm"),
        begin_params_axis=_axis(inputs, begin_params_axis, "layer_norm"),
        epsilon=float(epsilon),
        name=name,
    )[0]
    return y


def InstanceNorm1d(
    x: BlobDef, eps: float = 1e-05, affine: bool = True, name: str | None = None
) -> BlobDef:
    """Normalises each channel of each example of shape (examples, channels, length).

    Args:
        x: a floating point blob of rank 3.
        eps: added to the variance.
        affine: whether variables ``<name>_gamma`` and ``<name>_beta`` scale and shift each
            channel.
        name: name of the layer; jobs that give the same one share the variables.

    Raises:
        InferenceError: another rank.
    """
    return _instance_norm("InstanceNorm1d", x, 3, eps, affine, name)


def InstanceNorm2d(
    x: BlobDef, eps: float = 1e-05, affine: bool = True, name: str | None = None
) -> BlobDef:
    """`InstanceNorm1d` for blobs of shape (examples, channels, height, width)."""
    return _instance_norm("InstanceNorm2d", x, 4, eps, affine, name)


def InstanceNorm3d(
    x: BlobDef, eps: float = 1e-05, affine: bool = True, name: str | None = None
) -> BlobDef:
    """`InstanceNorm1d` for blobs of shape (examples, channels, depth, height, width)."""
    return _instance_norm("InstanceNorm3d", x, 5, eps, affine, name)


def GroupNorm(
    x: BlobDef,
    num_groups: int = 32,
    eps: float = 1e-05,
    affine: bool = True,
    name: str | None = None,
) -> BlobDef:
    """Normalises each group of neighbouring channels of each example.

    Args:
        x: a floating point blob (examples, channels, ...) of rank 3 or more.
        num_groups: number of groups; divides the number of channels.
        eps: added to the variance.
        affine: whether variables ``<name>_gamma`` and ``<name>_beta`` scale and shift each
            group (as in OneFlow 0.3.4: one number per group, not per channel).
        name: name of the layer; jobs that give the same one share the variables.

    Raises:
        InferenceError: a lower rank, or groups that do not divide the channels.
    """
    check(len(x.shape) >= 3, "GroupNorm", f"rank {len(x.shape)}", "rank 3 or more")
    channels = x.shape[1]
    check(
        num_groups > 0 and channels % num_groups == 0,
        "GroupNorm",
        f"{num_groups} groups of {channels} channels",
        "a number of groups that divides the channels",
    )
    grouped = _reshape(x, (x.shape[0], num_groups, prod(x.shape[1:]) // num_groups))
    return _reshape(_instance_norm("GroupNorm", grouped, 3, eps, affine, name), x.shape)


def _layer_name(kind: str, name: str | None) -> str:
    """The given name, or one that no variable of the job has yet."""
    if name is not None:
        return name
    taken = current_job(f"flow.nn.{kind}").variables
    number = 0
    while any(key.endswith(f"{kind}_{number}_gamma") for key in taken):
        number += 1
    return f"{kind}_{number}"


def _instance_norm(
    kind: str, x: BlobDef, rank: int, eps: float, affine: bool, name: str | None
) -> BlobDef:
    check(len(x.shape) == rank, kind, f"rank {len(x.shape)}", f"rank {rank}")
    y = layer_norm(x, begin_norm_axis=2, epsilon=eps)
    if not affine:
        return _named(y, name)
    name = _layer_name(kind, name)
    gamma = _channel_variable(f"{name}_gamma", x, 1.0)
    beta = _channel_variable(f"{name}_beta", x, 0.0)
    return y * gamma + beta


def _channel_variable(name: str, x: BlobDef, value: float) -> BlobDef:
    """A variable of one number per channel, stored as (1, channels, 1) as in OneFlow."""
    from flow_core.api.array.initializers import constant_initializer

    shape = (1, x.shape[1], 1)
    variable = get_variable(
        name, shape, dtype=x.dtype, initializer=constant_initializer(value), trainable=True
    )
    more = len(x.shape) - len(shape)
    return _reshape(variable, (*shape, *(1,) * more)) if more else variable


# --- rearrangement


def PixelShuffle(input: BlobDef, upscale_factor: int, name: str | None = None) -> BlobDef:
    """`PixelShufflev2` with one factor for height and width."""
    return PixelShufflev2(input, upscale_factor, upscale_factor, name)


def PixelShufflev2(
    input: BlobDef, h_upscale_factor: int, w_upscale_factor: int, name: str | None = None
) -> BlobDef:
    """Moves channels into space: (n, c*h*w, H, W) to (n, c, H*h, W*w).

    Args:
        input: a blob of rank 4.
        h_upscale_factor: h, at least 1.
        w_upscale_factor: w, at least 1.
        name: prefix of the names of the ops.

    Raises:
        InferenceError: another rank, or channels that h*w does not divide.
    """
    h, w = h_upscale_factor, w_upscale_factor
    check(len(input.shape) == 4, "PixelShuffle", f"rank {len(input.shape)}", "rank 4")
    check(h > 0 and w > 0, "PixelShuffle", f"factors {h} and {w}", "factors of at least 1")
    n, channels, height, width = input.shape
    check(
        channels % (h * w) == 0,
        "PixelShuffle",
        f"{channels} channels for factors {h} and {w}",
        f"a multiple of {h * w} channels",
    )
    c = channels // (h * w)
    apart = _reshape(input, (n, c, h, w, height, width), inner(name, "reshape1"))
    moved = emit("transpose", apart, perm=(0, 1, 4, 2, 5, 3), name=inner(name, "transpose"))
    return _reshape(moved, (n, c, height * h, width * w), inner(name, "reshape2"))


class Module:
    """A callable with a name that counts its calls: override `forward`, never ``__call__``.

    >>> class Twice(Module):
    ...     def forward(self, x):
    ...         return 2 * x
    >>> twice = Twice("twice")
    >>> twice(3), twice.call_seq_no, twice.module_name
    (6, 1, 'twice')
    """

    _unnamed = 0

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            name = f"Module_{Module._unnamed}"
            Module._unnamed += 1
        self._name = name
        self._calls = 0

    @property
    def module_name(self) -> str:
        """The module's name."""
        return self._name

    @property
    def call_seq_no(self) -> int:
        """How many calls have finished."""
        return self._calls

    def forward(self, *args: Any) -> Any:
        """What a call does; for subclasses to define."""
        raise UnsupportedError(
            f"calling module {self._name!r}",
            at=user_line(),
            found=f"class {type(self).__name__} without forward",
            allowed="a subclass of flow.nn.Module that defines forward(self, *args)",
        )

    def __call__(self, *args: Any) -> Any:
        result = self.forward(*args)
        self._calls += 1
        return result
