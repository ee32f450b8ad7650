"""Quantization in training: ``flow.quantization``.

Args:
    input: a floating-point blob.
    quantization_bit: number of bits, 2 to 8.
    quantization_scheme: "symmetric" (signed; 0 represents 0) or "affine" (unsigned).

Raises:
    InferenceError: the number of bits, the scheme or the element type is not supported.
"""

from __future__ import annotations

from flow_core.api.array.initializers import zeros_initializer
from flow_core.base.dtypes import DType, int64
from flow_core.frontend.config.scope import name_scope
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.frontend.trace.job_build import current_job

__all__ = ["fake_quantization", "min_max_observer", "moving_average_min_max_observer"]

ITERATIONS = 1
"""Last step number in which the averages are updated; OneFlow programs may set it."""


def min_max_observer(
    input: Blob,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    per_layer_quantization: bool = True,
    name: str | None = None,
) -> tuple[BlobDef, BlobDef]:
    """Return the integer grid that covers all elements of a floating-point blob.

    Args:
        input: a floating-point blob of rank 1 or more.
        per_layer_quantization: whether the blob has one grid, rather than one for each row of axis
            0.

    Returns: The scale and the zero point, of shape (1,), or (``input.shape[0]``,) for one grid per
        row.

    >>> run(flow.quantization.min_max_observer, [-1.27, 0.5])
    (array([0.01], dtype=float32), array([0.], dtype=float32))
    """
    scale, zero_point = emit(
        "min_max_observer",
        input,
        quantization_bit=quantization_bit,
        quantization_scheme=quantization_scheme,
        per_layer_quantization=bool(per_layer_quantization),
        name=name,
    )
    return scale, zero_point


def moving_average_min_max_observer(
    input: Blob,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    momentum: float = 0.95,
    name: str | None = None,
) -> tuple[BlobDef, BlobDef]:
    """Return the grid of moving averages of maximum and minimum, which train jobs update.

    The averages are the variables ``moving_max`` and ``moving_min`` below ``name``, which the first
    batch initializes; another variable, ``current_train_step``, counts steps.

    Args:
        momentum: weight of the previous average.

    Returns: The scale and the zero point, of shape (1,).

    >>> [
    ...     x.shape
    ...     for x in run(flow.quantization.moving_average_min_maxObserver, [-1, 1], name="grid")
    ... ]
    [(1,), (1,)]
    """
    job = current_job("moving_average_min_max_observer")
    full = name or job.free_name("moving_average_min_max_observer").rsplit("-", 1)[-1]
    with name_scope(full):
        high, low = (_state(what, input.dtype) for what in ("moving_max", "moving_min"))
        step = _state("current_train_step", int64)
    scale, zero_point = emit(
        "moving_average_min_max_observer",
        input,
        step,
        high,
        low,
        training=job.kind == "train",
        stop_update_after_iters=ITERATIONS,
        quantization_bit=quantization_bit,
        quantization_scheme=quantization_scheme,
        momentum=float(momentum),
        name=full,
    )
    return scale, zero_point


def _state(name: str, dtype: DType) -> BlobDef:
    return get_variable(
        name, (1,), dtype=dtype, initializer=zeros_initializer(dtype), trainable=False
    )


def fake_quantization(
    input: Blob,
    scale: Blob,
    zero_point: Blob,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    name: str | None = None,
) -> BlobDef:
    """Round a blob to an integer grid, and convert it back to floating point.

    The gradient ignores the rounding (straight-through estimator).

    Args:
        scale, zero_point: the grid: numbers of shape (1,), or one number per row of axis 0.

    Returns: A blob of the shape and type of ``input``.

    >>> run(flow.quantization.fake_quantization, [0.26, 0.74], [0.5], [0])
    array([0.5, 0.5], dtype=float32)
    """
    return emit_one(
        "fake_quantization",
        input,
        scale,
        zero_point,
        quantization_bit=quantization_bit,
        quantization_scheme=quantization_scheme,
        name=name,
    )
