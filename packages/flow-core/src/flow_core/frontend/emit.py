"""`emit`: the one way by which API functions add ops to the job under definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flow_core.errors import JobError, user_line
from flow_core.frontend.blob import BlobDef
from flow_core.frontend.jobs import JobBuild, current_job
from flow_core.ir import Value
from flow_core.plugins.emission import provide


def emit(op_type: str, *inputs: BlobDef, name: str | None = None, **attrs: Any) -> Any:
    """Adds an op to the job under definition, at the current scope.

    Args:
        op_type: type of the op.
        inputs: blobs of the same job.
        name: name of the op below the current name scope; a unique one by default.
        attrs: the op's attributes; lists become tuples.

    Returns:
        A `BlobDef`, or a tuple of them when the op has several (or any number of) outputs.
    """
    job = current_job(f"use of {op_type}")
    line = user_line(2)
    values = [_value_of(job, op_type, x) for x in inputs]
    outputs = job.add(op_type, values, attrs, name=name, line=line)
    blobs = tuple([BlobDef(job, v, _batch_axis(job, v, inputs)) for v in outputs])
    return blobs if job.returns_many(op_type) else blobs[0]


provide(emit)


def _batch_axis(job: JobBuild, output: Value, inputs: Sequence[BlobDef]) -> int | None:
    """The first input's batch axis, as far as the output still has it."""
    if not inputs or inputs[0].batch_axis is None:
        return None
    axis: int = inputs[0].batch_axis
    shape = job.builder.type_of(output).shape
    return axis if axis < len(shape) and shape[axis] == inputs[0].shape[axis] else None


def _value_of(job: JobBuild, op_type: str, blob: object) -> Value:
    if not isinstance(blob, BlobDef):
        raise JobError(
            f"use of {op_type}",
            at=user_line(3),
            found=f"{type(blob).__name__} {blob!r:.60}",
            allowed="blobs: parameters of the job function and results of flow's functions",
            hint="make a constant: flow.constant(value, dtype=..., shape=...)",
        )
    if blob.job is not job:
        raise JobError(
            f"use of {op_type}",
            at=user_line(3),
            found=f"{blob!r} of job {blob.job.name!r} inside job {job.name!r}",
            allowed="blobs of the same job",
        )
    if blob.distribute is not None:
        value: Value = job.distributed(blob.value, blob.distribute, user_line(3))
        return value
    return blob.value


def emit_binary(kind: str, x: BlobDef, other: BlobDef | float) -> BlobDef:
    """``x kind other`` for kind add, sub, mul, div, with a blob or a Python number."""
    if isinstance(other, BlobDef):
        blob: BlobDef = emit(f"broadcast_{kind}", x, other)
        return blob
    operation, operand = _SCALAR[kind]
    blob = emit(operation, x, operand=_operand(x, operand(other)))
    return blob


_SCALAR: dict[str, tuple[str, Callable[[float], float]]] = {
    "add": ("scalar_add", lambda number: number),
    "sub": ("scalar_add", lambda number: -number),
    "mul": ("scalar_mul", lambda number: number),
    "div": ("scalar_mul", lambda number: 1.0 / number),
}


def _operand(x: BlobDef, number: float) -> float:
    return float(number) if x.dtype.is_floating else int(number)


def as_blob(number: Any, like: BlobDef) -> BlobDef:
    """A blob as it is; a Python number as a constant of shape (1,) of ``like``'s type."""
    if isinstance(number, BlobDef):
        return number
    blob: BlobDef = emit(
        "constant", value=_operand(like, number), dtype=like.dtype.name, shape=(1,)
    )
    return blob
