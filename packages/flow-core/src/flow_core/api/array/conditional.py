"""``flow.cond``: one of two functions, chosen by a number that a step computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flow_core.api.array.bodies import (
    form_of,
    plain,
    read_outside,
    refusal,
    taken_out,
    traced,
    types_of,
)
from flow_core.api.array.shape import reshape
from flow_core.base.errors import SourceLine, user_line
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import input_value
from flow_core.frontend.trace.job_build import JobBuild, current_job
from flow_core.ir.graph import Op, Value
from flow_core.ops.control.bodies import body_literal
from flow_core.ops.control.cond import cond_type

__all__ = ["cond"]

COND = "flow.cond"


def cond(
    pred: Blob,
    then: Callable[..., Any],
    otherwise: Callable[..., Any],
    *operands: Blob | Sequence[Blob],
) -> Any:
    """Return ``then(*operands)`` where ``pred`` is not 0, else ``otherwise(*operands)``.

    Both functions are traced once, and a step runs the chosen one alone; they share their memory.
    The gradient computes the chosen function again; what only the other one reads has a gradient of
    0.  GPUs, and other devices without a kernel for branches, run both functions and select
    results; the results are the same.

    Args:
        pred: a blob with one element.
        then, otherwise: functions of the operands, and of blobs from outside, that return results
            of the same form, shapes and element types: a blob, or a tuple or list of blobs.
        operands: blobs, or tuples or lists of blobs.

    Returns: The results of the chosen function.

    Raises:
        JobError: ``pred`` has several elements, or the functions return different forms, shapes or
            element types.
        UnsupportedError: a function writes variables, reads data, trains or watches, or has ops on
            other devices; or the blobs are of the mirrored view, of several periods, or of dynamic
            shape.

    >>> def root(x):
    ...     total = flow.math.reduce_sum(x)
    ...     return flow.cond(total > 0, flow.math.sqrt, flow.math.negative, x)
    >>> run(root, [1, 4]), run(root, [1, -4])
    (array([1., 2.], dtype=float32), array([-1.,  4.], dtype=float32))
    """
    at = user_line()
    job = current_job("cond")
    (chosen,) = plain(COND, [checked_blob(pred, "cond")], at)
    if chosen.shape not in ((), (1,)):
        raise refusal(COND, f"a predicate of shape {chosen.shape}", "a blob with one element", at)
    for operand in operands:
        plain(COND, operand, at)
    on = input_value(job, "cond", chosen if chosen.shape else reshape(chosen, (1,)))
    branches = [_branch(job, function, operands, at) for function in (then, otherwise)]
    (form, first, *_), (_, second, *_) = branches
    found = [f"{_kind(kind)} of {types_of(blobs)}" for kind, blobs, _, _ in branches]
    if found[0] != found[1]:
        both = f"{found[0]} from one function, {found[1]} from the other"
        raise refusal(COND, both, "results of the same form, shapes and element types", at)
    reads = (v for _, _, ops, values in branches for v in read_outside(ops, (), values))
    inputs = [*dict.fromkeys(reads)]
    literals = [body_literal(ops, inputs, values) for _, _, ops, values in branches]
    attrs = dict(zip(("then", "otherwise"), literals, strict=True))
    outputs = job.add(cond_type(*literals), [on, *inputs], attrs, name="cond", line=at)
    results = [
        BlobDef(job, value, x.batch_axis if x.batch_axis == y.batch_axis else None)
        for value, x, y in zip(outputs, first, second, strict=True)
    ]
    return form_of(form)(results)


def _kind(returned: object) -> str:
    return type(returned).__name__ if isinstance(returned, list | tuple) else "a blob"


def _branch(
    job: JobBuild, function: Callable[..., Any], operands: Sequence[Any], at: SourceLine | None
) -> tuple[Any, list[BlobDef], list[Op], list[Value]]:
    """Trace a function and take its ops out of the job.

    Returns:
        What the function returned, as it is and as a list; its ops; and the values of the results.
    """
    returned, made = traced(COND, job, function, operands, at)
    blobs = plain(COND, returned, at)
    if not blobs:
        raise refusal(COND, f"a function that returns {returned!r:.60}", "blobs", at)
    own = [op for op in made if op.type != "variable"]
    values = [input_value(job, "cond", blob) for blob in blobs]
    taken_out(COND, job, own, at)
    return returned, blobs, own, values
