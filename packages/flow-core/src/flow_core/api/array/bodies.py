"""Functions of a program that are traced as parts of a job: arguments, results, and their ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flow_core.base.errors import JobError, SourceLine, UnsupportedError
from flow_core.frontend.config.scope import current_scope
from flow_core.frontend.trace.blob import BlobDef, checked_blob
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Op

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
    what: str, job: JobBuild, body: Callable[[], Any], at: SourceLine | None
) -> tuple[Any, list[Op]]:
    """Call a function; return its result, and the ops that it added.

    Raises:
        UnsupportedError: the function does more than compute results.
    """
    first, before = len(job.builder.ops), _counts(job)
    returned = body()
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


def _counts(job: JobBuild) -> tuple[int, int, int]:
    return len(job.train_requests), len(job.watches), len(job.losses)
