"""Quantization to int8, in training and after it: ``flow.quantization``.

Args:
    input: a floating-point blob.
    quantization_bit: number of bits, 2 to 8.
    quantization_scheme: "symmetric" (signed; 0 represents 0) or "affine" (unsigned).

Raises:
    InferenceError: the number of bits, the scheme or the element type is not supported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ParamSpec, TypeVar

import numpy as np

from flow_core.api.arguments import checked_axis, checker
from flow_core.api.array.initializers import zeros_initializer
from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType, int64
from flow_core.base.errors import DataError, JobError
from flow_core.frontend.config.function_config import OBSERVE, FunctionConfig, default_placement
from flow_core.frontend.config.scope import name_scope
from flow_core.frontend.job.feeding import Feeding, Shapes
from flow_core.frontend.job.function import JobFunction
from flow_core.frontend.job.variant import Variant
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.frontend.trace.job_build import current_job

__all__ = [
    "calibrate", "dequantize_linear", "fake_quantization", "min_max_observer",
    "moving_average_min_max_observer", "quantize_linear",
]  # fmt: skip

check = checker("flow.quantization.")

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


P = ParamSpec("P")
R = TypeVar("R")
Ends = dict[str, tuple[float, float]]


def calibrate(job: JobFunction[P, R], samples: Iterable[object]) -> JobFunction[P, R]:
    """Return a job that computes products and convolutions in int8, after training.

    Activations are rounded to grids that span the samples: those of uint8 if no number is negative,
    else those of int8, symmetric around zero.  Each output channel of a weight has a grid of its
    own, which follows from the present value of the variable.  Products of which both operands are
    activations, and all other ops, stay in float32, as does the result.

    Backends with int8 kernels use them: flow-onednn on processors with VNNI or AMX.  Others compute
    the same rounded numbers in float32.

    Args:
        job: a job that does not train, of which all variables have their values.
        samples: arguments of calls: an array, or a tuple of arrays; a hundred samples are usual.

    Returns: The new job, with the variables of ``job``.  Its setting ``quantization_ranges`` has
        name, lowest and highest number of each rounded value; another job of the same function
        takes them by name: ``config.quantization_ranges(ranges)``.

    Raises:
        JobError: the job trains.
        DataError: there are no samples, nothing to round, or a number is not finite.
    """
    if job.prepare().build.kind == "train":
        raise JobError.at_caller(
            f"calibrating job {job.name!r}",
            found="a job that trains",
            allowed="a job that does not train",
            hint="define a job of the same network without an optimizer, and calibrate that one",
        )
    config = job.config.copy()
    config.quantization_ranges(OBSERVE)
    ranges = _observed(job, config, samples)
    config.quantization_ranges(ranges)
    name = f"{job.name}_int8"
    return JobFunction(job.function, "predict", config, job.active_session(), name)


def _observed(job: JobFunction[P, R], config: FunctionConfig, samples: Iterable[object]) -> Ends:
    """Return the lowest and the highest number of each value over all samples."""
    placement = default_placement(config) or job.active_session().default_placement
    feeding = Feeding(job.name, job.signature, placement.size)
    variants: dict[Shapes, Variant] = {}
    found: Ends = {}
    for sample in samples:
        feeds = feeding.feed(sample if isinstance(sample, tuple) else (sample,), {})
        shapes = feeding.shapes(feeds)
        if shapes not in variants:
            variants[shapes] = job.traced_with(config, feeds)
            observed = variants[shapes].traced.build.observed
            variants[shapes].fetches.values += [v for ends in observed.values() for v in ends]
        for name, low, high in _ends(variants[shapes], feeds):
            before = found.get(name, (low, high))
            found[name] = min(low, before[0]), max(high, before[1])
    if not found:
        raise DataError.at_caller(
            f"calibrating job {job.name!r}",
            found=f"{'no product or convolution of variables' if variants else 'no samples'}",
            allowed="samples, and a job with products or convolutions of variables in float32",
        )
    return found


def _ends(variant: Variant, feeds: Sequence[Array]) -> Iterator[tuple[str, float, float]]:
    """Run a step, and yield the lowest and the highest number of each value."""
    names = variant.traced.build.observed
    results = variant.bind(np.zeros((), np.int64), lambda *_: None).run(feeds)
    ends = iter(results[len(results) - 2 * len(names) :])
    for name, low, high in zip(names, ends, ends, strict=True):
        if not np.isfinite([low, high]).all():
            raise DataError.at_caller(
                f"calibrating the range of {name!r} in job {variant.traced.build.name!r}",
                found=f"numbers from {float(low[0])} to {float(high[0])}",
                allowed="finite numbers",
            )
        yield name, float(low[0]), float(high[0])


def quantize_linear(
    input: Blob, scale: Blob, zero_point: Blob, axis: int | None = None, name: str | None = None
) -> BlobDef:
    """Return the levels nearest to ``input / scale + zero_point``, as ONNX's QuantizeLinear.

    Halves are rounded to even.  Levels beyond those of the type become its ends, and NaN becomes
    the lowest level.  There is no gradient; `fake_quantization` has one.

    Args:
        input: a float32 blob.
        scale: steps of the grid, float32 of shape (1,), or one number per index of ``axis``.
        zero_point: the levels that stand for zero, int8 or uint8, with the shape of ``scale``.
        axis: the axis whose indices have grids of their own, from the end if negative; None for
            one grid.

    Returns: A blob of the type of ``zero_point``.

    """
    axis = None if axis is None else checked_axis(check, "quantize_linear", input, axis)
    return emit_one("quantize_linear", input, scale, zero_point, axis=axis, name=name)


def dequantize_linear(
    input: Blob, scale: Blob, zero_point: Blob, axis: int | None = None, name: str | None = None
) -> BlobDef:
    """Return the numbers ``(input - zero_point) * scale``, as ONNX's DequantizeLinear.

    Args:
        input: an int8 or uint8 blob.
        scale, zero_point, axis: the grid; see `quantize_linear`.

    Returns: A float32 blob.
    """
    axis = None if axis is None else checked_axis(check, "dequantize_linear", input, axis)
    return emit_one("dequantize_linear", input, scale, zero_point, axis=axis, name=name)
