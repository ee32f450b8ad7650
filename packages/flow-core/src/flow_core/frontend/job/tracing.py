"""Tracing: runs a job's function on placeholders, and records its ops as a graph."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from flow_core.annotations import (
    FetchNone,
    JobSignature,
    PlaceholderSpec,
    Returned,
    check_returned,
)
from flow_core.base.dtypes import tensor_buffer
from flow_core.base.errors import (
    FeedError,
    FlowError,
    JobError,
    SourceLine,
    nearest,
    raising_line,
)
from flow_core.base.shapes import Shape
from flow_core.frontend.config.function_config import MICRO_BATCHES, default_view, micro_batches
from flow_core.frontend.job.feeding import RAGGED, Shapes, is_list
from flow_core.frontend.trace.blob import BlobDef, MirroredBlob
from flow_core.frontend.trace.division import flat
from flow_core.frontend.trace.job_build import JobBuild, defining
from flow_core.ir.graph import Value
from flow_core.sharding.topology import Placement


class Traced:
    """A traced job: its graph, its inputs and what its function returned."""

    __slots__ = ("blocking", "build", "inputs", "line", "returned")

    def __init__(self, build: JobBuild, line: SourceLine | None) -> None:
        self.build = build
        self.line = line  # where the function is defined
        self.inputs = build.inputs  # in the order in which arrays are fed to them
        self.returned = Returned(FetchNone(), ())  # the blobs, and their structure
        self.blocking = True  # whether a call waits for the results, instead of returning a handle

    @property
    def fetched(self) -> tuple[Value, ...]:
        """The values of the returned and the watched blobs, without duplicates."""
        watched = [watch.blob for watch in self.build.watches if not watch.gradient]
        blobs: list[BlobDef] = [*self.returned.blobs, *watched]
        return tuple(dict.fromkeys(part for blob in blobs for part in blob.parts))


def trace(
    function: Callable[..., object],
    signature: JobSignature,
    build: JobBuild,  # the job's graph, still empty
    shapes: Shapes,  # the shapes that may differ between calls; see `Shapes`
) -> Traced:
    """Run a job's function on placeholders.

    Raises:
        FlowError: an op is invalid, or the result does not match the return annotation.
        JobError: the function raises another exception, which becomes the error's cause.
    """
    line, listed = signature.at, iter(shapes)
    traced = Traced(build, line)
    with defining(build, default_view(build.config)):
        arguments = {
            name: _placeholders(traced, name, spec, line, listed)
            for name, spec in signature.parameters.items()
        }
        with _explained(build, line):
            returned = function(**arguments)
        traced.returned = check_returned(
            signature.result,
            returned,
            partial(_is_of, build),
            job=build.name,
            at=_return_line(function) or line,
            is_dynamic=_is_not_one_array,
        )
    nothing = isinstance(traced.returned.structure, FetchNone)
    unannotated = signature.python.return_annotation is signature.python.empty
    traced.blocking = not signature.is_async and (nothing or not unannotated)
    return traced


@contextmanager
def _explained(build: JobBuild, line: SourceLine | None) -> Iterator[None]:
    """Add the job's name to `FlowError`s of its function; wrap other exceptions in a `JobError`."""
    job, parts = build.name, _parts(build)
    try:
        yield
    except FlowError as error:
        error.add_note(f"in job {job!r}, defined at {line}")
        if parts > 1:
            error.add_note(
                f"the function sees one of {parts} micro-batches, with 1/{parts} of the rows of "
                "each parameter: derive sizes from blob.shape, or pass -1 to flow.reshape"
            )
        raise
    except Exception as error:
        raise JobError(
            f"defining job {job!r}",
            at=raising_line(error) or line,
            found=f"{type(error).__name__}: {error}",
            hint=_similar_name(error),
        ) from error


def _similar_name(error: Exception) -> str | None:
    """Return a suggestion for a misspelled attribute, None if there is none."""
    if isinstance(error, AttributeError) and error.name and "did you mean" not in str(error):
        return nearest(error.name, dir(error.obj)) or None
    return None


def _is_of(build: JobBuild, value: object) -> bool:
    """Return whether a value is a blob of the job's graph."""
    if not isinstance(value, BlobDef) or value.job is not build:
        return False
    return not build.builder.is_inner(value._value)


def _is_not_one_array(blob: BlobDef) -> bool:
    """Return whether a blob's values are several arrays, or arrays of varying shape."""
    if isinstance(blob, MirroredBlob):
        return blob.is_dynamic or blob.batch_axis is None
    return blob.is_tensor_list or blob.dtype.is_object


def _placeholders(
    traced: Traced,
    path: str,
    spec: Any,
    line: SourceLine | None,
    listed: Iterator[tuple[Shape, ...]],
) -> Any:
    """Return placeholder blobs in the structure of a parameter's annotation."""
    if isinstance(spec, PlaceholderSpec):
        if is_list(spec):
            return _list_placeholder(traced, path, spec, line, next(listed))
        shape = next(listed)[0] if spec.is_open else spec.shape
        value = _placeholder(traced, path, spec, line, shape)
        return BlobDef(traced.build, value, spec.batch_axis)
    if isinstance(spec, Mapping):
        return {k: _placeholders(traced, f"{path}-{k}", v, line, listed) for k, v in spec.items()}
    parts = [_placeholders(traced, f"{path}-{i}", v, line, listed) for i, v in enumerate(spec)]
    return parts if isinstance(spec, list) else tuple(parts)


def _list_placeholder(
    traced: Traced,
    path: str,
    spec: PlaceholderSpec,
    line: SourceLine | None,
    shapes: tuple[Shape, ...],
) -> BlobDef:
    """Return the placeholder blob for a list of arrays; it has one value per device."""
    build = traced.build
    if any(RAGGED in shape for shape in shapes):
        return _tensor_list_placeholder(traced, path, spec, line, shapes)
    if len(shapes) == 1:
        value = _placeholder(traced, path, spec, line, shapes[0])
        return BlobDef(build, value, spec.batch_axis, is_dynamic=True)
    devices = flat(build.default_placement)
    values = [
        _placeholder(traced, f"{path}#{rank}", spec, line, shape, devices.only(rank))
        for rank, shape in enumerate(shapes)
    ]
    return MirroredBlob(
        build, values, devices, differs=True, batch_axis=spec.batch_axis, is_dynamic=True
    )


def _tensor_list_placeholder(
    traced: Traced,
    path: str,
    spec: PlaceholderSpec,
    line: SourceLine | None,
    shapes: tuple[Shape, ...],
) -> BlobDef:
    """Return the placeholder blob for lists of tensors; it has one value of objects per device."""
    if not all(RAGGED in shape for shape in shapes):
        raise FeedError.at_caller(
            f"feeding {path!r} of job {traced.build.name!r}",
            found="one array for one device and several for another",
            allowed="as many arrays for each device as for the others",
        )
    objects = replace(spec, dtype=tensor_buffer, batch_axis=0)
    kept = tuple(shape[:1] for shape in shapes)
    return _list_placeholder(traced, path, objects, line, kept).with_bound(spec.shape, spec.dtype)


def _placeholder(
    traced: Traced,
    path: str,
    spec: PlaceholderSpec,
    line: SourceLine | None,
    shape: Shape,
    placement: Placement | None = None,
) -> Value:
    shape = _micro_shape(traced.build, path, shape, line)
    attrs = {"shape": shape, "dtype": spec.dtype.name, "batch_axis": spec.batch_axis}
    name = traced.build.builder.unique_name(f"Input_{path}")
    (value,) = traced.build.add("input", (), attrs, name=name, line=line, placement=placement)
    traced.inputs.append(value.op)
    return value


def _micro_shape(
    build: JobBuild, parameter: str, shape: Sequence[int], line: SourceLine | None
) -> tuple[int, ...]:
    """Return the shape that a parameter has in one micro-batch, as the job function sees it."""
    parts = _parts(build)
    if parts == 1:
        return tuple(shape)
    if not shape or shape[0] % parts:
        raise JobError(
            f"feeding {parameter!r} of job {build.name!r} in {parts} micro-batches",
            at=line,
            found=f"shape {tuple(shape)}",
            allowed=f"a first axis whose size is divisible by {parts}",
            hint=f"change the batch size, or function_config.{MICRO_BATCHES}",
        )
    return (shape[0] // parts, *shape[1:])


def _parts(build: JobBuild) -> int:
    """Return the number of micro-batches, of one of which the job function sees the rows."""
    return 1 if build.sees_whole else micro_batches(build.config, build.kind)


def _return_line(function: Callable[..., object]) -> SourceLine | None:
    """Return the line of a function's only ``return``, None if it has several."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    lines = {
        i.positions.lineno
        for i in dis.get_instructions(code)
        if i.opname.startswith("RETURN_") and i.opname != "RETURN_GENERATOR" and i.positions
    } - {None}
    (line,) = lines if len(lines) == 1 else (None,)
    return None if line is None else SourceLine(code.co_filename, line)
