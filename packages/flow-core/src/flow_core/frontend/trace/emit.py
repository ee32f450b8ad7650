"""`emit`: add an op to the job being traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flow_core.base.errors import JobError, SourceLine, user_line
from flow_core.frontend.trace.blob import Blob, BlobDef, MirroredBlob, checked_blob
from flow_core.frontend.trace.division import mirrored_devices
from flow_core.frontend.trace.job_build import JobBuild, current_job
from flow_core.frontend.trace.mirrored_view import emit_mirrored, kept_batch_axis
from flow_core.frontend.trace.repeat_acc import in_period, joined, periods_of
from flow_core.frontend.trace.valid_rows import POSITIONS, RESIZE, rows_passed
from flow_core.ir.graph import AttrValue, Value
from flow_core.plugins.emission import provide


def emit(
    op_type: str, *inputs: Blob, name: str | None = None, **attrs: AttrValue
) -> Any:  # a blob, or a tuple of blobs
    """Add an op to the job being traced, at the current scope.

    Args:
        inputs: blobs of the same job.
        name: name of the op within the current name scope; by default, a unique name is made.
        attrs: the op's attributes; lists become tuples.

    Returns:
        A `BlobDef`, or a tuple of them when the op has several (or any number of) outputs.
    """
    job = current_job(f"use of {op_type}")
    line = user_line(2)
    blobs = _emit(job, op_type, [_own(job, op_type, x) for x in inputs], attrs, name, line)
    return blobs if job.returns_many(op_type) else blobs[0]


provide(emit)


def emit_one(op_type: str, *inputs: Blob, name: str | None = None, **attrs: Any) -> BlobDef:
    """Add an op with one output to the job being traced; the arguments are those of `emit`."""
    blob: BlobDef = emit(op_type, *inputs, name=name, **attrs)
    return blob


def _emit(
    job: JobBuild,
    op_type: str,
    inputs: Sequence[BlobDef],
    attrs: Mapping[str, AttrValue],
    name: str | None,
    line: SourceLine | None,
) -> tuple[BlobDef, ...]:
    """Add an op: one per period for blobs of several periods, one per device in the mirrored view.

    Periods are the repetitions of a part of a step; see `flow_core.frontend.trace.repeat_acc`.
    """
    periods = periods_of(inputs)
    if periods is not None:
        of_each = [
            _emit(job, op_type, [in_period(x, i) for x in inputs], attrs, f"{name or op_type}/{i}",
                  line)
            for i in range(periods)
        ]  # fmt: skip
        return joined(of_each)
    place = POSITIONS.get(op_type)
    if place is not None and inputs[place].rows is not None:
        inputs = [_valid_positions(job, x, line) if i == place else x for i, x in enumerate(inputs)]
    devices = mirrored_devices(job)
    blobs: tuple[BlobDef, ...]
    if devices is not None:
        blobs = emit_mirrored(job, devices, op_type, inputs, attrs, name, line)
    else:
        blobs = _emit_logical(job, op_type, inputs, attrs, name, line)
    if any(x.rows is not None for x in inputs):
        return _with_rows(job, op_type, inputs, blobs, line)
    return blobs


def _valid_positions(job: JobBuild, blob: BlobDef, line: SourceLine | None) -> BlobDef:
    """Return positions with -1, which is out of range, in the invalid rows."""
    name = f"{blob.op_name}/positions"

    def added(x: BlobDef, number: int) -> BlobDef:
        return _emit(job, "scalar_add", [x], {"operand": number}, name, line)[0]

    (whole,) = _emit(job, "cast_to_static_shape", [blob], {}, name, line)
    counted, attrs = [added(whole, 1), blob.rows.count], {"axis": blob.rows.axis}
    (zeroed,) = _emit(job, RESIZE, counted, attrs, name, line)
    return added(zeroed, -1).with_rows(blob.rows)


def _with_rows(
    job: JobBuild,
    op_type: str,
    inputs: Sequence[BlobDef],
    blobs: Sequence[BlobDef],
    line: SourceLine | None,
) -> tuple[BlobDef, ...]:
    """Return the outputs with the numbers of their valid rows; set their other rows to zero."""
    kept = rows_passed(op_type, job.emitter.spec(op_type, line), inputs, blobs, line)
    is_dynamic = any(x.is_dynamic and x.rows is None for x in inputs)
    made = []
    for blob, rows in zip(blobs, kept, strict=True):
        blob.is_dynamic = is_dynamic
        if rows is not None:
            name = f"{blob.op_name}/rows"
            zeroed = _emit(job, RESIZE, [blob, rows.count], {"axis": rows.axis}, name, line)
            blob = zeroed[0].with_rows(rows)
        made.append(blob)
    return tuple(made)


def _emit_logical(
    job: JobBuild,
    op_type: str,
    inputs: Sequence[BlobDef],
    attrs: Mapping[str, AttrValue],
    name: str | None,
    line: SourceLine | None,
) -> tuple[BlobDef, ...]:
    values = [input_value(job, op_type, x) for x in inputs]
    outputs = [BlobDef(job, v) for v in job.add(op_type, values, attrs, name=name, line=line)]
    dynamic = op_type != "cast_to_static_shape" and any(x.is_dynamic for x in inputs)
    for blob in outputs:
        blob.batch_axis, blob.is_dynamic = kept_batch_axis(blob, inputs), dynamic
    return tuple(outputs)


def _own(job: JobBuild, op_type: str, given: Blob) -> BlobDef:
    """Return a blob of the job, or raise an error."""
    blob = checked_blob(given, op_type)
    if blob.job is not job:
        raise JobError.at_caller(
            f"use of {op_type}",
            found=f"{blob!r} of job {blob.job.name!r} inside job {job.name!r}",
            allowed="blobs of the same job",
        )
    if job.builder.is_inner(blob._value):
        raise JobError.at_caller(
            f"use of {op_type}",
            found=f"{blob!r}, which the function of a flow.scan or flow.cond computed",
            allowed="in other places, the blobs that flow.scan or flow.cond returns",
            hint="return the blob from the function",
        )
    return blob


def input_value(job: JobBuild, op_type: str, blob: BlobDef) -> Value:
    """Return the value of a logical blob, converted to the SBP that is requested for the blob."""
    if isinstance(blob, MirroredBlob):
        raise JobError.at_caller(
            f"use of {op_type} in the consistent view",
            found=f"{blob!r}, with a value on each of its devices",
            allowed="logical blobs",
            hint="convert the blob with flow.cast_to_current_logical_view(blob), or use the op in "
            "a block `with flow.scope.mirrored_view():`",
        )
    if blob.requested is None:
        return blob.value
    return job.distributed(blob.value, blob.requested, user_line(4))
