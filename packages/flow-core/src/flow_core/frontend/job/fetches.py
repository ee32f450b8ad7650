"""The values that each step of a job fetches: those of returned blobs, then of watched blobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flow_core.annotations import FetchLeaf, structure
from flow_core.base.errors import CompatibilityWarning
from flow_core.frontend.job.micro_batches import batch_axis
from flow_core.frontend.job.tracing import Traced
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.job_build import JobBuild, Watch
from flow_core.frontend.trace.results import FORMS, Fetched
from flow_core.ir.graph import Value
from flow_core.runtime.pipeline import Step


class Fetches:
    """The fetched values of a job's steps, and how return values are made of them.

    Args:
        gradients: gradients of watched values; a warning says which calls of ``watch_diff`` are
            skipped because there is no gradient.
    """

    __slots__ = ("_build", "_form", "_returned", "_structure", "_watched", "values", "watcher")

    def __init__(self, traced: Traced, gradients: Mapping[Value, Value]) -> None:
        self.values: list[Value] = []  # to fetch
        self._build = traced.build
        self._structure = leaf = traced.returned.structure
        self._form = FORMS[leaf.kind] if isinstance(leaf, FetchLeaf) else None
        self._returned = [self._add(blob, blob.parts) for blob in traced.returned.blobs]
        self._watched = [
            (watch, self._add(watch.blob, values))
            for watch in traced.build.watches
            if (values := _watched_values(traced.build, watch, gradients))
        ]
        self.watcher = self._show_watched if self._watched else None  # None without handlers

    def _add(self, blob: BlobDef, parts: Sequence[Value]) -> Fetched:
        """Add the values of a blob or of its gradient, and return their position."""
        first = len(self.values)
        values = [self._build.rounded.get(part, part) for part in parts]
        self.values.extend(values)
        axes = [batch_axis(self._build, part) for part in blob.parts]
        self._build.packed.update(zip(values, axes, strict=True))
        where = slice(first, len(self.values))
        if blob.rows is not None:
            self.values.extend(blob.rows.count.parts)
        return Fetched(where, blob)

    def arrange(self, step: Step) -> Any:  # the job's annotation determines the type
        """Return the results of a step in the structure that the job returns."""
        results = step.results or ()
        if self._form is not None:  # by far the most common one
            return self._form(self._returned[0].of(results))
        found = [blob.of(results) for blob in self._returned]
        return structure(self._structure, found, lambda kind, x: FORMS[kind](x))

    def _show_watched(self, step: Step) -> None:
        for watch, blob in self._watched:
            watch.handler(blob.of(step.results or ()))


def _watched_values(
    job: JobBuild, watch: Watch, gradients: Mapping[Value, Value]
) -> tuple[Value, ...]:
    """Return the values to show; none, with a warning, if the requested gradient does not exist."""
    parts = watch.blob.parts
    if not watch.gradient:
        return parts
    if all(part in gradients for part in parts):
        return tuple(gradients[part] for part in parts)
    reason = "no loss depends on it" if job.kind == "train" else f'the job has type "{job.kind}"'
    job.session.warn(
        f"watch_diff of {watch.blob.op_name!r} in job {job.name!r} never calls its handler: the "
        f"blob has no gradient, since {reason}",
        CompatibilityWarning,
        watch.line,
    )
    return ()
