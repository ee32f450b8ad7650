"""``flow.layers``: batch and layer normalization, with the creation of their variables.

Args:
    inputs: a floating-point blob.
    axis: the axis of the channels.
    momentum: weight of the previous moving averages.
    center: whether to add ``beta``.
    scale: whether to multiply by ``gamma``.
    beta_initializer, beta_regularizer: initializer and regularizer of ``beta``.
    gamma_initializer, gamma_regularizer: initializer and regularizer of ``gamma``.
    moving_mean_initializer: initializer of the moving mean.
    moving_variance_initializer: initializer of the moving variance.
    trainable: whether optimizers update the variables.
    training: whether to use the statistics of the batch in train jobs.
    name: name of the layer.

Returns: A blob of the shape and type of ``inputs``.

Raises:
    InferenceError: an axis is out of range.
"""

from __future__ import annotations

from typing import Any

from flow_core.api.array.initializers import ones_initializer, zeros_initializer
from flow_core.api.array.regularizers import Regularizer
from flow_core.api.nn.basic import layer_norm as nn_layer_norm
from flow_core.api.nn.layers_common import DefaultName, layer_axis, layer_name, new_variable
from flow_core.base.dtypes import DType
from flow_core.frontend.config.scope import name_scope
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.frontend.trace.job_build import current_job
from flow_core.ir.initializers import Initializer

__all__ = [
    "batch_normalization", "batch_normalization_add_relu", "batch_normalization_relu",
    "layer_norm", "layer_norm_grad", "layer_norm_param_grad",
]  # fmt: skip


def layer_norm(
    inputs: Blob,
    center: bool = True,
    scale: bool = True,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    epsilon: float = 1e-5,
    name: str = DefaultName("LayerNorm"),
) -> BlobDef:
    """Normalize rows to mean 0 and variance 1, then scale and shift them.

    Variables of shape ``inputs.shape[begin_params_axis:]``: ``beta`` (zeros) if ``center``,
    ``gamma`` (ones) if ``scale``.

    Args:
        inputs: a floating-point blob; a row spans the axes from ``begin_norm_axis`` on.
        begin_norm_axis: first axis of a row.
        begin_params_axis: first axis of the variables.

    >>> run(flow.layers.layer_norm, [[1, 3], [10, 30]]).round(4)
    array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """
    shape = inputs.shape[layer_axis("layer_norm", inputs, begin_params_axis) :]
    params: dict[str, BlobDef] = {}
    more = {"trainable": trainable}
    name = layer_name(name)
    with name_scope(name):
        if center:
            params["beta"] = new_variable("beta", shape, inputs.dtype, zeros_initializer(), **more)
        if scale:
            params["gamma"] = new_variable("gamma", shape, inputs.dtype, ones_initializer(), **more)
    axes = {"begin_norm_axis": begin_norm_axis, "begin_params_axis": begin_params_axis}
    return nn_layer_norm(inputs, **params, **axes, epsilon=epsilon, name=name)  # type: ignore[arg-type]  # mypy joins the dicts' types


def layer_norm_grad(
    dy: Blob,
    x: Blob,
    mean: Blob,
    inv_variance: Blob,
    begin_norm_axis: int = 1,
    name: str = "LayerNormGrad",
) -> BlobDef:
    """Return the gradient of x, computed from the gradient of the normalized values.

    Args:
        dy, x: blobs of one shape and type.
        mean, inv_variance: blobs of shape ``x.shape[:begin_norm_axis]``.
        begin_norm_axis: first normalized axis.
        name: name of the op.

    Returns: A blob of the shape and type of ``x``.

    >>> run(flow.layers.layer_norm_grad, [[1, 0]], [[1, 3]], [2], [1])
    array([[0., 0.]], dtype=float32)
    """
    axis = layer_axis("layer_norm_grad", x, begin_norm_axis)
    attrs = {"begin_norm_axis": axis, "epsilon": 1e-5}
    return emit_one("layer_norm_grad", dy, x, mean, inv_variance, name=name, **attrs)


def layer_norm_param_grad(
    dy: Blob, norm: Blob, gamma: Blob, begin_params_axis: int = -1, name: str = "LayerNormParamGrad"
) -> tuple[BlobDef, BlobDef, BlobDef]:
    """Return the gradients of the normalized values, beta and gamma.

    Args:
        dy, norm: the gradient of the result and the normalized values, of one shape and type.
        gamma: a blob of shape ``dy.shape[begin_params_axis:]``.
        begin_params_axis: first axis of beta and gamma.
        name: name of the op.

    Returns: Three blobs.
    """
    axis = layer_axis("layer_norm_param_grad", dy, begin_params_axis)
    normalized, beta, scale = emit(
        "layer_norm_param_grad", dy, norm, gamma, begin_params_axis=axis, name=name
    )
    return normalized, beta, scale


def _statistics(
    name: str,
    size: int,
    dtype: DType,
    affine: tuple[bool, bool],
    initializers: tuple[Initializer | None, ...],
    regularizers: tuple[Any, Any],
    trainable: bool,
) -> list[BlobDef]:
    """Return the moving mean, moving variance, gamma and beta; disabled variables are constants.

    The other arguments apply to beta and gamma; initializers also apply to the moving statistics.
    """
    blobs = {}
    names = ("beta", "gamma", "moving_mean", "moving_variance")
    with name_scope(name):
        for i, key in enumerate(names):
            value = i % 2
            initializer = initializers[i] or (zeros_initializer, ones_initializer)[value]()
            more = {"regularizer": (*regularizers, None, None)[i]}
            more |= {"trainable": trainable and i < 2}
            if i < 2 and not affine[i]:
                attrs = {"value": float(value), "dtype": dtype.name, "shape": (size,)}
                blobs[key] = emit("constant", name=key, **attrs)
            else:
                blobs[key] = new_variable(key, (size,), dtype, initializer, **more)
    return [blobs[key] for key in ("moving_mean", "moving_variance", "gamma", "beta")]


def batch_normalization(
    inputs: Blob,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 0.001,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Initializer | None = None,
    gamma_initializer: Initializer | None = None,
    beta_regularizer: Regularizer | None = None,
    gamma_regularizer: Regularizer | None = None,
    moving_mean_initializer: Initializer | None = None,
    moving_variance_initializer: Initializer | None = None,
    trainable: bool = True,
    training: bool = True,
    name: str = DefaultName("BatchNorm"),
) -> BlobDef:
    """Normalize each channel to mean 0 and variance 1, then scale and shift it.

    In train jobs (unless ``training`` or ``trainable`` is False) the statistics are those of the
    batch, and every step updates the moving averages; otherwise the moving averages are used.
    The variables have one number per channel and are float32 for half-precision types: ``beta``
    (zeros), ``gamma`` (ones), and ``moving_mean`` (zeros) and ``moving_variance`` (ones), which no
    optimizer updates.

    Args:
        trainable: whether optimizers update beta and gamma.

    >>> run(flow.layers.batch_normalization, np.ones((2, 4, 3, 3)), axis=1, training=False).shape
    (2, 4, 3, 3)
    """
    axis = layer_axis("batch_normalization", inputs, axis)
    job = current_job("flow.layers.batch_normalization")
    initializers = (
        beta_initializer, gamma_initializer, moving_mean_initializer, moving_variance_initializer
    )  # fmt: skip
    name = layer_name(name)
    vectors = _statistics(
        name, inputs.shape[axis], inputs.dtype.accumulate, (center, scale), initializers,
        (beta_regularizer, gamma_regularizer), trainable,
    )  # fmt: skip
    training = training and trainable and job.kind == "train"
    attrs = {"axis": axis, "momentum": float(momentum), "epsilon": float(epsilon)}
    y: BlobDef = emit("normalization", inputs, *vectors, training=training, name=name, **attrs)[0]
    return y


def batch_normalization_add_relu(
    inputs: Blob,
    addend: Blob | None = None,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 0.001,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Initializer | None = None,
    gamma_initializer: Initializer | None = None,
    beta_regularizer: Regularizer | None = None,
    gamma_regularizer: Regularizer | None = None,
    moving_mean_initializer: Initializer | None = None,
    moving_variance_initializer: Initializer | None = None,
    trainable: bool = True,
    training: bool = True,
    name: str = DefaultName("BatchNorm"),
) -> BlobDef:
    """Return ``relu(batch_normalization(inputs) + addend)``.

    Args:
        addend: a blob of the same shape and type, or None to add nothing.

    >>> run(
    ...     flow.layers.batch_normalization_add_relu, np.ones((2, 4, 3, 3)), axis=1, training=False
    ... ).shape
    (2, 4, 3, 3)
    """
    y = batch_normalization(
        inputs, axis, momentum, epsilon, center, scale, beta_initializer, gamma_initializer,
        beta_regularizer, gamma_regularizer, moving_mean_initializer, moving_variance_initializer,
        trainable, training, name,
    )  # fmt: skip
    with name_scope("BatchNormAddRelu"):
        y = y if addend is None else y + addend
        return emit_one("relu", y)


def batch_normalization_relu(
    inputs: Blob,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 0.001,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Initializer | None = None,
    gamma_initializer: Initializer | None = None,
    beta_regularizer: Regularizer | None = None,
    gamma_regularizer: Regularizer | None = None,
    moving_mean_initializer: Initializer | None = None,
    moving_variance_initializer: Initializer | None = None,
    trainable: bool = True,
    training: bool = True,
    name: str = DefaultName("BatchNorm"),
) -> BlobDef:
    """Return ``relu(batch_normalization(inputs))``.

    >>> run(
    ...     flow.layers.batch_normalization_relu, np.ones((2, 4, 3, 3)), axis=1, training=False
    ... ).shape
    (2, 4, 3, 3)
    """
    return batch_normalization_add_relu(
        inputs, None, axis, momentum, epsilon, center, scale, beta_initializer, gamma_initializer,
        beta_regularizer, gamma_regularizer, moving_mean_initializer, moving_variance_initializer,
        trainable, training, name,
    )  # fmt: skip
