"""Conversions between logical blobs and blobs on single devices: ``flow.advanced``.

These functions of the consistent view work on the devices of the placement in scope:
`distribute_clone` and `distribute_split` return one blob on each device, in order, and
`distribute_add` and `distribute_concat` combine such blobs.  No function moves data that is already
on the right device.

Args:
    xs: a list of blobs, one for each device.

Returns: A tuple of blobs, one for each device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flow_core.base.errors import InferenceError, JobError, SourceLine, user_line
from flow_core.frontend.config.scope import Entering, current_scope
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.division import flat
from flow_core.frontend.trace.emit import input_value
from flow_core.frontend.trace.job_build import JobBuild, current_job
from flow_core.frontend.trace.mirrored_view import parts_of, whole_of
from flow_core.frontend.trace.valid_rows import all_rows
from flow_core.sharding.sbp import B, P, Sbp, Split
from flow_core.sharding.topology import Placement

__all__ = [
    "distribute_add", "distribute_clone", "distribute_concat", "distribute_map",
    "distribute_split",
]  # fmt: skip


def distribute_clone(x: Blob, name: str | None = None) -> tuple[BlobDef, ...]:
    """Return a copy of ``x`` for each device in scope; the gradient is the sum of the copies'
    gradients.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    ...     with flow.scope.placement("cpu", "0:0-1"):
    ...         first, second = flow.advanced.distribute_clone(x)
    ...         return flow.advanced.distribute_add([first, second])
    >>> job([1, 2, 3, 4])
    array([2., 4., 6., 8.], dtype=float32)
    """
    x = checked_blob(x)
    return _per_device("distribute_clone", x, B, name, x.batch_axis)


def distribute_split(x: Blob, axis: int = 0, name: str | None = None) -> tuple[BlobDef, ...]:
    """Return balanced parts of ``x`` along an axis, one for each device in scope.

    Args:
        axis: the axis to split.

    Raises:
        InferenceError: the axis is out of range, or its size is less than the number of devices.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    ...     with flow.scope.placement("cpu", "0:0-1"):
    ...         first, second = flow.advanced.distribute_split(x)
    ...         return flow.advanced.distribute_concat([second, first])
    >>> job([1, 2, 3, 4])
    array([3., 4., 1., 2.], dtype=float32)
    """
    x = checked_blob(x)
    return _per_device(
        "distribute_split", x, _split("distribute_split", x, axis), name, x.batch_axis
    )


def distribute_add(xs: Sequence[Blob], name: str | None = None) -> BlobDef:
    """Sum blobs of one shape, one for each device in scope; each blob receives the full gradient.

    Returns: A blob.

    Raises: InferenceError: the number of blobs is not the number of devices, or the shapes differ.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    ...     with flow.scope.placement("cpu", "0:0-1"):
    ...         first, second = flow.advanced.distribute_clone(x)
    ...         return flow.advanced.distribute_add([first, second])
    >>> job([1, 2, 3, 4])
    array([2., 4., 6., 8.], dtype=float32)
    """
    return _together("distribute_add", xs, P, name)


def distribute_concat(xs: Sequence[Blob], axis: int = 0, name: str | None = None) -> BlobDef:
    """Concatenate blobs, one for each device in scope, along an axis.

    Args:
        axis: the axis of the concatenation.

    Returns: A blob.

    Raises:
        InferenceError: the number of blobs is not the number of devices, or the shapes do not fit.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    ...     with flow.scope.placement("cpu", "0:0-1"):
    ...         first, second = flow.advanced.distribute_split(x)
    ...         return flow.advanced.distribute_concat([second, first])
    >>> job([1, 2, 3, 4])
    array([3., 4., 1., 2.], dtype=float32)
    """
    _check_sequence("distribute_concat", xs)
    return _together("distribute_concat", xs, _split("distribute_concat", xs[0], axis), name)


def distribute_map(
    xs: Blob | Sequence[Blob], f: Callable[..., Any], axis: int = 0
) -> BlobDef | tuple[BlobDef, ...]:
    """Split blobs over the devices in scope, and apply a function to the parts on each device.

    Args:
        xs: a blob, or several blobs, which are split along ``axis``.
        f: function that maps a part of each blob to a blob, or to a tuple or list of blobs.
        axis: axis along which the blobs are split and the results are concatenated.

    Returns: The concatenated results of ``f``: a blob, or a tuple of blobs.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    ...     with flow.scope.placement("cpu", "0:0-1"):
    ...         return flow.advanced.distribute_map(x, lambda part: 2 * part)
    >>> job([1, 2, 3, 4])
    array([2., 4., 6., 8.], dtype=float32)
    """
    blobs = list(xs) if isinstance(xs, Sequence) else [checked_blob(xs)]
    _check_sequence("distribute_map", blobs)
    parts = zip(*(distribute_split(x, axis) for x in blobs), strict=True)
    job = current_job("distribute_map")
    results = []
    for device, arguments in zip(_each_device(_devices(job)), parts, strict=True):
        with device:
            results.append(f(*arguments))
    if all(isinstance(result, BlobDef) for result in results):
        return distribute_concat(results, axis)
    return tuple(distribute_concat(list(found), axis) for found in zip(*results, strict=True))


def _each_device(devices: Placement) -> Iterator[Entering]:
    return (Entering(placement=devices.only(rank)) for rank in range(devices.size))


def _devices(job: JobBuild) -> Placement:
    return flat(current_scope().placement or job.default_placement)


def _per_device(
    function: str, x: Blob, sbp: Sbp, name: str | None, batch_axis: int | None
) -> tuple[BlobDef, ...]:
    x = checked_blob(x)
    job, line = current_job(f"advanced.{function}"), user_line(3)
    devices, value = _devices(job), input_value(job, function, all_rows(function, x, line))
    if devices.size == 1:
        return (BlobDef(job, value, batch_axis, x.is_dynamic),)
    full = job.free_name(name or function)
    parts = parts_of(job, value, (sbp,), devices, line, full)
    return tuple(BlobDef(job, part, batch_axis, x.is_dynamic) for part in parts)


def _together(function: str, given: Sequence[Blob], sbp: Sbp, name: str | None) -> BlobDef:
    _check_sequence(function, given)
    xs = [checked_blob(x) for x in given]
    job, line = current_job(f"advanced.{function}"), user_line(3)
    devices = _devices(job)
    values = [input_value(job, function, all_rows(function, x, line)) for x in xs]
    if len(xs) != devices.size:
        _fail(function, line, f"{len(xs)} blobs on {devices}", f"{devices.size} blobs")
    first = xs[0]
    if devices.size == 1:
        return BlobDef(job, values[0], first.batch_axis, first.is_dynamic)
    value = whole_of(job, values, sbp, devices, line, job.free_name(name or function))
    return BlobDef(job, value, first.batch_axis, any(x.is_dynamic for x in xs))


def _split(function: str, x: Blob, axis: int) -> Split:
    rank = len(x.shape)
    if not -rank <= axis < rank:
        _fail(
            function, user_line(3), f"axis {axis} of shape {x.shape}", f"-{rank} <= axis < {rank}"
        )
    return Split(axis % rank)


def _check_sequence(function: str, xs: object) -> None:
    if not isinstance(xs, list | tuple) or not xs or not isinstance(xs[0], BlobDef):
        raise JobError.at_caller(
            f"advanced.{function}",
            found=f"{xs!r:.80}",
            allowed="a list or tuple of at least one blob",
        )


def _fail(function: str, line: SourceLine | None, found: str, allowed: str) -> None:
    raise InferenceError(f"advanced.{function}", at=line, found=found, allowed=allowed)
