"""``flow.cond``: one of two functions, chosen by a number that a step computes."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any

from flow_core.api.array.bodies import form_of, plain, refusal, traced, types_of
from flow_core.api.array.shape import reshape
from flow_core.base.errors import SourceLine, user_line
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit_one
from flow_core.frontend.trace.job_build import JobBuild, current_job
from flow_core.ir.graph import Op, Value
from flow_core.sharding.topology import Placement

__all__ = ["cond"]

COND = "flow.cond"


def cond(
    pred: Blob,
    then: Callable[..., Any],
    otherwise: Callable[..., Any],
    *operands: Blob | Sequence[Blob],
) -> Any:
    """Return ``then(*operands)`` where ``pred`` is not 0, else ``otherwise(*operands)``.

    Both functions are traced once, and a step computes both: plans are static, so that its time
    and memory are those of both functions.  Results and gradients are those of the chosen function
    alone, even if the other one computes NaN; variables that only the other one reads have a
    gradient of 0.

    Args:
        pred: a blob with one element.
        then, otherwise: functions of the operands, and of blobs from outside, that return results
            of the same form, shapes and element types: a blob, or a tuple or list of blobs.
        operands: blobs, or tuples or lists of blobs.

    Returns:
        The results of the chosen function.

    Raises:
        JobError: ``pred`` has several elements, or the functions return different forms, shapes or
            element types.
        UnsupportedError: a function writes variables, reads data, trains or watches; or the blobs
            are of the mirrored view, of several periods, or of dynamic shape.

    Example:
        >>> @flow.global_function()
        ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        ...     total = flow.math.reduce_sum(x)
        ...     return flow.cond(total > 0, flow.math.sqrt, flow.math.negative, x)
        >>> job([1, 4]), job([1, -4])
        (array([1., 2.], dtype=float32), array([-1.,  4.], dtype=float32))
    """
    at = user_line()
    job = current_job("cond")
    (chosen,) = plain(COND, [checked_blob(pred, "cond")], at)
    if chosen.shape not in ((), (1,)):
        raise refusal(COND, f"a predicate of shape {chosen.shape}", "a blob with one element", at)
    on, off = (
        emit_one(f"scalar_logical_{kind}", reshape(chosen, (1,)), operand=0.0)
        for kind in ("not_equal", "equal")
    )
    for operand in operands:
        plain(COND, operand, at)
    results = [_branch(job, f, operands, gate, at) for f, gate in ((then, on), (otherwise, off))]
    (form, first), (_, second) = results
    found = [f"{_kind(kind)} of {types_of(blobs)}" for kind, blobs in results]
    if found[0] != found[1]:
        both = f"{found[0]} from one function, {found[1]} from the other"
        raise refusal(COND, both, "results of the same form, shapes and element types", at)
    chosen_blobs = [_where(on, x, y) for x, y in zip(first, second, strict=True)]
    return form_of(form)(chosen_blobs)


def _kind(returned: object) -> str:
    return type(returned).__name__ if isinstance(returned, list | tuple) else "a blob"


def _where(on: BlobDef, x: BlobDef, y: BlobDef) -> BlobDef:
    found = emit_one("where", on, x, y)
    return found if found.shape == x.shape else reshape(found, x.shape)


def _branch(
    job: JobBuild,
    function: Callable[..., Any],
    operands: Sequence[Any],
    on: BlobDef,
    at: SourceLine | None,
) -> tuple[Any, list[BlobDef]]:
    """Trace a function; return what it returned, as it is and as a list."""
    returned, made = traced(COND, job, lambda: function(*operands), at)
    blobs = plain(COND, returned, at)
    if not blobs:
        raise refusal(COND, f"a function that returns {returned!r:.60}", "blobs", at)
    own = {op.name: op for op in made if op.type != "variable"}
    gates = _Gates(job, on, own)
    read = [replace(op, inputs=tuple(gates.value(v, op) for v in op.inputs)) for op in own.values()]
    for name in own:
        del job.builder.ops[name]
    job.builder.ops |= {op.name: op for op in read}  # after the gates of their inputs
    _forget(job.distributions, own)
    _forget(job.rounded, own)
    return returned, blobs


def _forget(converted: dict[Any, Value], own: Container[str]) -> None:
    """Drop conversions that ops of a branch made: other readers must not get their gates."""
    for key in [key for key, value in converted.items() if value.op in own]:
        del converted[key]


class _Gates:
    """The values that a branch reads from outside, behind gates for their gradients.

    Args:
        job: the job.
        on: whether the branch is taken.
        own: names of the ops of the branch.
    """

    def __init__(self, job: JobBuild, on: BlobDef, own: Container[str]) -> None:
        self._job, self._on, self._own = job, on, own
        self._made: dict[tuple[Value, Placement], Value] = {}

    def value(self, value: Value, reader: Op) -> Value:
        """Return what an op of the branch reads in place of a value."""
        builder, key = self._job.builder, (value, reader.placement)
        if value.op in self._own or not builder.type_of(value).dtype.is_floating:
            return value
        if key not in self._made:
            name = builder.unique_name(f"{value.op}/gate")
            (self._made[key],) = self._job.emitter.emit(
                "gradient_gate", [value, self._on.value],
                placement=reader.placement, name=name, line=builder.lines.get(reader.name),
            )  # fmt: skip
            for names in self._job.segments.values():
                if reader.name in names:
                    names.append(name)
        return self._made[key]
