"""Functions of a program that become bodies of loops and branches: arguments, results, and ops.

A function is traced as a part of its job.  Its ops are then taken out of the graph of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from flow_core.base.errors import JobError, SourceLine, UnsupportedError
from flow_core.frontend.config.scope import current_scope
from flow_core.frontend.trace.blob import BlobDef, checked_blob
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Op, Value
from flow_core.ops.control.bodies import needed_ops

Form = Callable[[Sequence[Any]], Any]


def form_of(given: object) -> Form:
    """Return a function that gives a list of blobs the form of an argument or a result."""
    if given is None:
        return lambda _: None
    if isinstance(given, list | tuple):
        return type(given) if type(given) in (list, tuple) else tuple
    return lambda blobs: blobs[0]


def plain(what: str, given: Any, at: SourceLine | None) -> list[BlobDef]:
    """Return blobs as a list; raise an error for blobs with a value per device or per period."""
    if given is None:
        return []
    blobs = list(given) if isinstance(given, list | tuple) else [given]
    for blob in blobs:
        checked_blob(blob, what.removeprefix("flow."))
        if type(blob) is not BlobDef or blob.is_dynamic or current_scope().mirrored:
            raise unsupported(what, f"{blob!r}", "blobs of fixed shape in the consistent view", at)
    return blobs


def types_of(blobs: Sequence[BlobDef]) -> list[tuple[Any, str]]:
    """Return shapes and element types."""
    return [(blob.shape, blob.dtype.name) for blob in blobs]


def unsupported(what: str, found: str, allowed: str, at: SourceLine | None) -> UnsupportedError:
    """Return the error about something that the function of a program cannot do."""
    return UnsupportedError(what, at=at, found=found, allowed=allowed)


def refusal(what: str, found: str, allowed: str, at: SourceLine | None) -> JobError:
    """Return the error about wrong arguments or results."""
    return JobError(what, at=at, found=found, allowed=allowed)


def traced(
    what: str,
    job: JobBuild,
    body: Callable[..., Any],
    arguments: Sequence[Any],
    at: SourceLine | None,
) -> tuple[Any, list[Op]]:
    """Call a function; return its result, and the ops that it added.

    Raises:
        JobError: it is no function.
        UnsupportedError: the function does more than compute results.
    """
    if not callable(body):
        raise refusal(what, f"{body!r:.60}", "a function of blobs", at)
    first, before = len(job.builder.ops), _counts(job)
    fed, job.fed = job.fed, None  # blobs of the body have no values, even in eager mode
    try:
        returned = body(*arguments)
    finally:
        job.fed = fed
    made = list(job.builder.ops.values())[first:]
    if _counts(job) != before:
        found = "a body that calls minimize, watch or add_loss"
        allowed = "ops alone; return what is to be watched or minimized"
        raise unsupported(what, found, allowed, at)
    for op in made:
        spec = job.emitter.specs[op.type]
        if spec.effect or spec.mutates or (spec.host and op.type != "variable"):
            allowed = f"ops that compute results alone; make the others before or after {what}"
            raise unsupported(what, f"{op.type} {op.name!r} in the body", allowed, at)
    return returned, made


def taken_out(what: str, job: JobBuild, ops: Sequence[Op], at: SourceLine | None) -> None:
    """Take the ops of a body out of the graph of a job.

    Raises:
        UnsupportedError: an op is on other devices than the loop or branch.
    """
    placement, names = current_scope().placement or job.default_placement, {op.name for op in ops}
    for op in ops:
        if op.placement != placement:
            found = f"{op.type} {op.name!r} on {op.placement} in the body"
            raise unsupported(what, found, f"ops on the devices of {what}, {placement}", at)
        job.builder.take_out(op.name)
    for converted in (job.distributions, job.rounded, job.stale):
        _forget(converted, names)
    for segment in job.segments.values():
        segment[:] = [name for name in segment if name not in names]


def _forget(converted: dict[Any, Any], names: Container[str]) -> None:
    """Drop conversions that ops of a body made: other readers must not get their results."""
    for key, found in [*converted.items()]:
        if getattr(found, "value", found).op in names:
            del converted[key]


def read_outside(
    ops: Iterable[Op], inputs: Sequence[Value], results: Sequence[Value]
) -> list[Value]:
    """Return the values that a body with some inputs and results reads from outside."""
    own = {op.name for op in ops}
    needed = needed_ops(ops, inputs, results)
    read = [*(value for op in needed for value in op.inputs), *results]
    return [*dict.fromkeys(v for v in read if v.op not in own and v not in inputs)]


def _counts(job: JobBuild) -> tuple[int, int, int]:
    return len(job.train_requests), len(job.watches), len(job.losses)
