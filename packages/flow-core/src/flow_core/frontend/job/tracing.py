"""Tracing: what a job's function does to placeholders, as a graph, and how calls are answered."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flow_core.annotations import (
    FetchNone,
    JobSignature,
    PlaceholderSpec,
    Returned,
    check_returned,
    structure,
)
from flow_core.base.dtypes import tensor_buffer
from flow_core.base.errors import (
    FeedError,
    FlowError,
    JobError,
    SourceLine,
    nearest,
    raising_line,
    user_line,
)
from flow_core.base.shapes import Shape
from flow_core.frontend.config.function_config import default_view
from flow_core.frontend.job.compile import complete, input_attrs, micro_shape
from flow_core.frontend.job.feeding import RAGGED, Shapes, is_list
from flow_core.frontend.trace.blob import BlobDef, MirroredBlob
from flow_core.frontend.trace.job_build import JobBuild, Watch, defining
from flow_core.frontend.trace.mirrored_view import flat
from flow_core.frontend.trace.results import FORMS, Fetched
from flow_core.ir.graph import Value
from flow_core.runtime.pipeline import Step
from flow_core.sharding.topology import Placement


class Traced:
    """A traced job: its graph, and how calls are answered.

    Attributes:
        build: the graph and the job's settings.
        inputs: names of its ``input`` ops, in the order in which they are fed.
        results: what is fetched.
        blobs: how `results` make blobs: the returned ones, then those that are watched.
        returned: the structure of what the function returns.
        watcher: shows what is watched after a step.
        blocking: whether a call gives the results, and not what they can be had from.
    """

    __slots__ = (
        "blobs", "blocking", "build", "inputs", "results", "returned", "watcher",
    )  # fmt: skip

    def __init__(self, build: JobBuild) -> None:
        self.build = build
        self.inputs = build.inputs
        self.results: list[Value] = []
        self.blobs: list[Fetched] = []
        self.returned = Returned(FetchNone(), ())
        self.watcher: Callable[[Step], None] | None = None
        self.blocking = True

    def arrange(self, step: Step) -> Any:
        """The results of a step in the structure that the job returns."""
        results = step.results or ()
        found = [blob.of(results) for blob in self.blobs[: len(self.returned.blobs)]]
        return structure(self.returned.structure, found, lambda kind, x: FORMS[kind](x))

    def fetch(self, blob: BlobDef, parts: Sequence[Value]) -> None:
        """Adds a blob (or its gradient) to what is fetched."""
        first = len(self.results)
        self.results.extend(self.build.rounded.get(part, part) for part in parts)
        where = slice(first, len(self.results))
        if blob.rows is not None:
            self.results.extend(blob.rows.count.parts)
        self.blobs.append(Fetched(where, blob))


def trace(
    function: Callable[..., Any],
    signature: JobSignature,
    build: JobBuild,
    shapes: Shapes,
) -> Traced:
    """Runs a job's function on placeholders.

    Args:
        function: it.
        signature: what its annotations say.
        build: the job's graph, still empty.
        shapes: the shapes of what is fed in lists.

    Raises:
        FlowError: what the function does cannot be done, or it returns what it does not announce.
        JobError: the function raises an exception of its own, which is the error's cause.
    """
    traced, listed, line = Traced(build), iter(shapes), signature.at
    with defining(build, default_view(build.config)):
        arguments = {
            name: _placeholders(traced, name, spec, line, listed)
            for name, spec in signature.parameters.items()
        }
        with _explained(build.name, line):
            returned = function(**arguments)
        traced.returned = check_returned(
            signature.result,
            returned,
            lambda value: isinstance(value, BlobDef) and value.job is build,
            job=build.name,
            at=_return_line(function) or line,
            is_dynamic=_is_no_array,
        )
    seen = [part for blob in traced.returned.blobs for part in blob.parts]
    _collect_results(traced, complete(build, line, seen))
    nothing = isinstance(traced.returned.structure, FetchNone)
    unannotated = signature.python.return_annotation is signature.python.empty
    traced.blocking = not signature.is_async and (nothing or not unannotated)
    return traced


@contextmanager
def _explained(job: str, line: SourceLine | None) -> Iterator[None]:
    """Name the job in what its function raises; exceptions that are not ours become the cause."""
    try:
        yield
    except FlowError as error:
        error.add_note(f"in job {job!r}, defined at {line}")
        raise
    except Exception as error:
        raise JobError(
            f"defining job {job!r}",
            at=raising_line(error) or line,
            found=f"{type(error).__name__}: {error}",
            hint=_similar_name(error),
        ) from error


def _similar_name(error: Exception) -> str | None:
    """A suggestion for an attribute that an object does not have."""
    if isinstance(error, AttributeError) and error.name and "did you mean" not in str(error):
        return nearest(error.name, dir(error.obj)) or None
    return None


def _is_no_array(blob: BlobDef) -> bool:
    """Whether a blob's values cannot be had as one array."""
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
    """Placeholder blobs in the structure of a parameter's annotation."""
    if isinstance(spec, PlaceholderSpec):
        if is_list(spec):
            return _list_placeholder(traced, path, spec, line, next(listed))
        value = _placeholder(traced, path, spec, line, spec.shape)
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
    """The blob of a list of arrays: a value per device, or the only one."""
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
    """The blob of lists of tensors: a value of objects per device, or the only one."""
    if not all(RAGGED in shape for shape in shapes):
        raise FeedError(
            f"feeding {path!r} of job {traced.build.name!r}",
            at=user_line(2),
            found="one array for one device and several for another",
            allowed="as many arrays for each device",
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
    shape = micro_shape(traced.build, path, shape, line)
    attrs = input_attrs(shape, spec.dtype.name, spec.batch_axis)
    name = traced.build.builder.unique_name(f"Input_{path}")
    (value,) = traced.build.add("input", (), attrs, name=name, line=line, placement=placement)
    traced.inputs.append(value.op)
    return value


def _return_line(function: Callable[..., Any]) -> SourceLine | None:
    """The line of a function's only ``return``, None when it has several."""
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


def _collect_results(traced: Traced, gradients: Mapping[Value, Value]) -> None:
    """What is fetched: the returned blobs, then the watched ones."""
    watches = traced.build.watches
    for blob in traced.returned.blobs:
        traced.fetch(blob, blob.parts)
    for watch in watches:
        traced.fetch(watch.blob, _watched(traced, watch, gradients))
    if watches:
        shown = traced.blobs[len(traced.returned.blobs) :]
        traced.watcher = functools.partial(_show, watches, shown)


def _watched(traced: Traced, watch: Watch, gradients: Mapping[Value, Value]) -> tuple[Value, ...]:
    parts: tuple[Value, ...] = watch.blob.parts
    if not watch.gradient:
        return parts
    if any(part not in gradients for part in parts):
        raise JobError(
            f"watch_diff of {watch.blob.op_name!r} in job {traced.build.name!r}",
            at=watch.line,
            found="a blob that no loss depends on",
            allowed="floating point blobs from which the losses are computed",
        )
    return tuple(gradients[part] for part in parts)


def _show(watches: Sequence[Watch], shown: Sequence[Fetched], step: Step) -> None:
    for watch, blob in zip(watches, shown, strict=True):
        watch.handler(blob.of(step.results or ()))
