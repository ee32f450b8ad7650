"""``flow.nn``: softmax, dropout, bias, normalization, and rearrangement of elements.

As in OneFlow, functions that emit several ops derive the ops' names from ``name``.

Args:
    x: a floating-point blob.
    logits: a floating-point blob.

Returns: A blob of the shape and type of ``x``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flow_core.api import math as flow_math
from flow_core.api.arguments import checked_axis, inner
from flow_core.api.array.shape import reshape
from flow_core.api.math import fused_scale_tril, relu, tril
from flow_core.api.nn.common import check
from flow_core.base.errors import UnsupportedError
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.frontend.trace.job_build import current_job

__all__ = [
    "Module", "PixelShuffle", "PixelShufflev2", "batch_normalization", "bias_add", "dropout",
    "fused_scale_tril", "layer_norm", "logsoftmax", "moments", "random_mask_like", "relu",
    "softmax", "softmax_grad", "tril",
]  # fmt: skip


# --- softmax, bias, dropout


def softmax(logits: Blob, axis: int | None = None, name: str | None = None) -> BlobDef:
    """Return ``exp(logits)`` divided by its sums along an axis, by default the last.

    Args:
        axis: the axis of the sums; None for the last axis.

    Returns: A blob of the shape and type of ``logits`` whose sums along ``axis`` are 1.

    Raises: InferenceError: the axis is out of range or of size 0, or ``logits`` are integers.

    >>> run(flow.nn.softmax, [[0, 0], [0, 1]]).round(4)
    array([[0.5   , 0.5   ],
           [0.2689, 0.7311]], dtype=float32)
    """
    axis = checked_axis(check, "softmax", logits, -1 if axis is None else axis)
    return emit_one("softmax", logits, axis=axis, name=name)


def logsoftmax(logits: Blob, axis: int | None = None, name: str | None = None) -> BlobDef:
    """Return the logarithm of `softmax`, accurate even where the softmax underflows.

    Args:
        axis: axis along which the softmax adds up to 1, by default the last.

    Returns: A blob of the shape and element type of ``logits``.

    Raises: InferenceError: as for `softmax`.

    >>> run(flow.nn.logsoftmax, [[0, 0], [0, 1]]).round(4)
    array([[-0.6931, -0.6931],
           [-1.3133, -0.3133]], dtype=float32)
    """
    axis = checked_axis(check, "logsoftmax", logits, -1 if axis is None else axis)
    return emit_one("log_softmax", logits, axis=axis, name=name)


def softmax_grad(y: Blob, dy: Blob, axis: int | None = None, name: str | None = None) -> BlobDef:
    """Return the gradient of the input of a softmax.

    Args:
        y: the result of the softmax.
        dy: the gradient of ``y``, of the same shape and element type.
        axis: the axis of the softmax, by default the last.

    Returns: A blob of the shape and element type of ``y``.

    Raises: InferenceError: the axis is out of range, or ``dy`` has another type.

    >>> run(flow.nn.softmax_grad, [[0.5, 0.5]], [[1, 0]])
    array([[ 0.25, -0.25]], dtype=float32)
    """
    axis = checked_axis(check, "softmax_grad", y, -1 if axis is None else axis)
    return emit_one("softmax_grad", y, dy, axis=axis, name=name)


def bias_add(
    value: Blob, bias: Blob, data_format: str | None = None, name: str | None = None
) -> BlobDef:
    """Add a vector along the channel axis.

    Args:
        value: a blob with a channel axis.
        bias: a blob of shape (channels,) and of the element type of ``value``.
        data_format: "NC..." (channels on axis 1, also the default) or "N...C" (on the last).

    Returns: A blob of the shape and type of ``value``.

    Raises: InferenceError: the data format is unknown, or ``bias`` has another shape.

    >>> run(flow.nn.bias_add, [[1, 2], [3, 4]], [10, 20])
    array([[11., 22.],
           [13., 24.]], dtype=float32)
    """
    formats = '"NC...", such as "NCHW", or "N...C", such as "NHWC"'
    text = "NC" if data_format is None else data_format
    channels_last = text.startswith("N") and text.endswith("C") and text != "NC"
    known = channels_last or text.startswith("NC")
    check(known, "bias_add", f"data_format={data_format!r}", formats)
    axis = len(value.shape) - 1 if channels_last else 1
    return emit_one("bias_add", value, bias, axis=axis, name=name)


def random_mask_like(
    like: Blob,
    rate: float,
    seed: int | None = None,
    noise_shape: Sequence[int] | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return a random int8 mask, drawn anew in each step: 0 with probability ``rate``, otherwise 1.

    The numbers depend only on the seed, the step and the element's index in the logical tensor, not
    on the tensor's SBP.  The default seed derives from the job's seed and the op's name; two ops
    with the same ``seed`` draw the same numbers.

    Args:
        like: a blob of the mask's shape.
        rate: fraction of zeros, in [0, 1).
        seed: seed of this op, or None for the default.

    Returns: An int8 blob of the shape of ``like``.

    Raises:
        InferenceError: ``rate`` is out of range.
        UnsupportedError: ``noise_shape`` was given.

    >>> run(flow.nn.random_mask_like, [1, 2], rate=0.0)
    array([1, 1], dtype=int8)
    """
    _check_rate("random_mask_like", rate)
    if noise_shape is not None:
        raise UnsupportedError.at_caller(
            "flow.nn.random_mask_like",
            found=f"noise_shape={noise_shape!r}",
            allowed="None: one number per element",
            hint="create a mask of the smaller shape, and multiply by it",
        )
    return emit_one("random_mask_like", like, rate=float(rate), seed=seed, name=name)


def _check_rate(function: str, rate: object) -> None:
    ok = isinstance(rate, int | float) and 0 <= rate < 1
    check(ok, function, f"rate={rate!r}", "0 <= rate < 1, the fraction of elements to drop")


def dropout(
    x: Blob,
    rate: float,
    noise_shape: Sequence[int] | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> BlobDef:
    """In train jobs, set elements to 0 with probability ``rate``, and scale the others.

    The other elements are multiplied by ``1 / (1 - rate)``, which preserves the mean.  In predict
    jobs, and for ``rate=0``, the result is ``x`` itself.

    Args:
        rate: fraction of elements to drop, in [0, 1).
        seed: see `random_mask_like`.

    Raises:
        InferenceError: ``rate`` is out of range, or ``x`` has an integer type.
        UnsupportedError: ``noise_shape`` was given.

    >>> run(flow.nn.dropout, [1, 2], rate=0.5)
    array([1., 2.], dtype=float32)
    """
    x = checked_blob(x)
    _check_rate("dropout", rate)
    if current_job("flow.nn.dropout").kind != "train" or rate == 0:
        return x
    mask_name = None if name is None else f"{name}-dropout_random_mask_like"
    mask = random_mask_like(x, rate, seed, noise_shape, mask_name)
    return emit_one("dropout", x, mask, scale=1.0 / (1.0 - rate), name=name)


# --- normalization


def moments(
    x: Blob, axes: Sequence[int], keepdims: bool = False, name: str | None = None
) -> tuple[BlobDef, BlobDef]:
    """Return the mean and the (biased) variance over some axes.

    Args:
        axes: axes to reduce.
        keepdims: whether to keep the reduced axes with size 1.

    Returns: The mean and the variance, as two blobs.

    >>> run(lambda x: flow.nn.moments(x, [0]), [1, 2, 3, 4, 5])
    (array([3.], dtype=float32), array([2.], dtype=float32))
    """
    axes = [axes] if isinstance(axes, int) else list(axes)
    return (
        flow_math.reduce_mean(x, axis=axes, keepdims=keepdims, name=inner(name, "mean")),
        flow_math.reduce_variance(x, axis=axes, keepdims=keepdims, name=inner(name, "variance")),
    )


def batch_normalization(
    x: Blob,
    mean: Blob,
    variance: Blob,
    offset: Blob | None = None,
    scale: Blob | None = None,
    variance_epsilon: float = 1e-5,
    axis: int = 1,
    name: str | None = None,
) -> BlobDef:
    """Return ``(x - mean) / sqrt(variance + variance_epsilon) * scale + offset``.

    Gradients flow to all inputs.  To maintain moving statistics as well, use
    ``flow.layers.batch_normalization``.

    Args:
        mean, variance: vectors along ``axis``, or blobs of the rank of ``x`` that broadcast to its
            shape.
        offset, scale: as for ``mean`` and ``variance``; None omits the term.
        variance_epsilon: added to the variance.
        axis: axis of the vectors.
        name: name of the last op.

    Raises: InferenceError: the shape of a parameter is neither of the two.

    >>> run(flow.nn.batch_normalization, [[1, 20], [3, 40]], [2, 30], [1, 100]).round(4)
    array([[-1., -1.],
           [ 1.,  1.]], dtype=float32)
    """
    axis = checked_axis(check, "batch_normalization", x, axis)
    m, v, k, b = (_along(x, p, axis) for p in (mean, variance, scale, offset))
    result = (x - m) * flow_math.rsqrt(v + float(variance_epsilon))
    result = result if k is None else result * k
    return named(result if b is None else result + b, name)


def _along(x: Blob, vector: Blob | None, axis: int) -> Any:
    """Return a parameter in a shape that broadcasts to that of ``x``."""
    if vector is None or len(vector.shape) == len(x.shape) != 1:
        return vector
    size = x.shape[axis]
    check(
        vector.shape == (size,),
        "batch_normalization",
        f"a parameter of shape {vector.shape} for x of shape {x.shape}",
        f"shape ({size},) along axis {axis}, or rank {len(x.shape)}",
    )
    return reshape(vector, [size if i == axis else 1 for i in range(len(x.shape))])


def named(x: Blob, name: str | None) -> BlobDef:
    """Return ``x`` under a name, or ``x`` itself if no name is given."""
    x = checked_blob(x)
    if name is None:
        return x
    return emit_one("identity", x, name=name)


def layer_norm(
    inputs: Blob,
    gamma: Blob | None = None,
    beta: Blob | None = None,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> BlobDef:
    """Normalize each row to mean 0 and variance 1, then apply ``* gamma + beta``.

    Args:
        inputs: a floating-point blob; a row spans the axes from ``begin_norm_axis`` on.
        gamma, beta: blobs of shape ``inputs.shape[begin_params_axis:]``; None omits the term.
        begin_norm_axis: first axis of a row.
        begin_params_axis: first axis of the parameters.

    Returns: A blob of the shape and type of ``inputs``.

    Raises: InferenceError: a parameter has another shape or type, or an axis is out of range.

    >>> run(flow.nn.layer_norm, [[1, 3], [10, 30]]).round(4)
    array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """
    params = [p for p in (beta, gamma) if p is not None]
    y: BlobDef = emit(
        "layer_norm",
        inputs,
        *params,
        center=beta is not None,
        scale=gamma is not None,
        begin_norm_axis=checked_axis(check, "layer_norm", inputs, begin_norm_axis),
        begin_params_axis=checked_axis(check, "layer_norm", inputs, begin_params_axis),
        epsilon=float(epsilon),
        name=name,
    )[0]
    return y


# --- rearrangement


def PixelShuffle(input: Blob, upscale_factor: int, name: str | None = None) -> BlobDef:
    """Call `PixelShufflev2` with the same factor for height and width.

    Args:
        input: a blob of shape (n, c*f*f, H, W).
        upscale_factor: the factor f.

    Returns: A blob of shape (n, c, H*f, W*f).

    >>> run(flow.nn.PixelShuffle, np.ones((2, 4, 3, 3)), 2).shape
    (2, 1, 6, 6)
    """
    return PixelShufflev2(input, upscale_factor, upscale_factor, name)


def PixelShufflev2(
    input: Blob, h_upscale_factor: int, w_upscale_factor: int, name: str | None = None
) -> BlobDef:
    """Move channels into the spatial axes: from shape (n, c*h*w, H, W) to (n, c, H*h, W*w).

    Args:
        input: a blob of rank 4.
        h_upscale_factor: h, at least 1.
        w_upscale_factor: w, at least 1.

    Returns: A blob of shape (n, c, H*h, W*w).

    Raises: InferenceError: the rank is not 4, or h*w does not divide the number of channels.

    >>> run(flow.nn.PixelShufflev2, np.ones((2, 4, 3, 3)), 2, 1).shape
    (2, 2, 6, 3)
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
    apart = reshape(input, (n, c, h, w, height, width), inner(name, "reshape1"))
    moved = emit("transpose", apart, perm=(0, 1, 4, 2, 5, 3), name=inner(name, "transpose"))
    return reshape(moved, (n, c, height * h, width * w), inner(name, "reshape2"))


class Module:
    """A named callable that counts its calls; override `forward`, not ``__call__``.

    It holds no parameters and no other modules, unlike ``torch.nn.Module``: variables belong to
    the session, by the names of layers such as `flow.layers.dense`.  A network is a plain function.

    Args:
        name: the name of the module.

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
        """Number of finished calls."""
        return self._calls

    def forward(self, *args: Any) -> Any:
        """Compute the result of a call; defined by subclasses."""
        raise UnsupportedError.at_caller(
            f"calling module {self._name!r}",
            found=f"class {type(self).__name__} without forward",
            allowed="a subclass of flow.nn.Module that defines forward(self, *args)",
        )

    def __call__(self, *args: Any) -> Any:
        result = self.forward(*args)
        self._calls += 1
        return result
