"""Event files for TensorBoard: ``flow.summary``.

In a job, `create_summary_writer` opens the process's file; `scalar`, `histogram`, `image` and `pb`
write to it at every step.  `text` and `hparams` build messages outside of jobs.  Must not depend on
`math`, `nn` or `session`.
"""

from __future__ import annotations

from typing import Any

from flow_core.api.array.source import constant
from flow_core.api.summary.hparams import (
    Hparam,
    IntegerRange,
    Metric,
    RealRange,
    ValueSet,
    hparams,
    text,
)
from flow_core.api.summary.projector import Graph, Projector
from flow_core.base.dtypes import int64
from flow_core.frontend.config.scope import Entering, current_scope
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.emit import emit
from flow_core.frontend.trace.job_build import current_job

__all__ = [
    "Graph",
    "HParam",
    "Hparam",
    "IntegerRange",
    "Metric",
    "Projector",
    "RealRange",
    "ValueSet",
    "create_summary_writer",
    "flush_summary_writer",
    "histogram",
    "hparams",
    "image",
    "pb",
    "scalar",
    "text",
]

HParam = Hparam
"""Alias that OneFlow's own example uses."""


def _once() -> Entering:
    """Place the op on the first device in the consistent view of several devices."""
    scope = current_scope()
    placement = scope.placement or current_job("flow.summary").default_placement
    single = scope.mirrored or placement.size == 1
    return Entering() if single else Entering(placement=placement.only(0))


def _write(op: str, value: BlobDef, step: BlobDef | None, tag: object, name: str | None) -> None:
    with _once():
        number = constant(0, int64, (1,)) if step is None else step
        if isinstance(tag, BlobDef):
            emit(op, value, number, tag, name=name)
        else:
            emit(op, value, number, tag_text=str(tag or ""), name=name)


def create_summary_writer(logdir: str, name: str | None = None) -> None:
    """Open an event file when the job runs: ``event/event.*.tfevents.log`` below ``logdir``.

    Args:
        logdir: a folder, created if missing.
        name: name of the op.
    """
    with _once():
        emit("create_summary_writer", logdir=str(logdir), name=name)


def flush_summary_writer(name: str | None = None) -> None:
    """Flush buffered events; at most ten are buffered, and none at the program's end."""
    with _once():
        emit("flush_summary_writer", name=name)


def scalar(value: BlobDef, step: BlobDef, tag: Any, name: str | None = None) -> None:
    """Write a number at every step.

    Args:
        value: a blob of one number.
        step: int64 of shape (1,), the step number that readers show.
        tag: the bytes of a name in an int8 blob, or a text.
        name: name of the op.

    Raises:
        InferenceError: types or shapes that do not fit.
        DataError: at run time, without a preceding `create_summary_writer`.
    """
    _write("summary_write_scalar", value, step, tag, name)


def histogram(value: BlobDef, step: BlobDef, tag: object, name: str | None = None) -> None:
    """Write a histogram of a blob; arguments and errors as for `scalar`."""
    _write("summary_write_histogram", value, step, tag, name)


def image(
    value: BlobDef, step: BlobDef | None = None, tag: object = None, name: str | None = None
) -> None:
    """Write images, uint8 of shape (N, H, W, channels) with 1, 3 or 4 channels.

    Args:
        value: the images; with several, the tag gets the image's number as suffix.
        step: as in `scalar`, 0 by default.
        tag: as in `scalar`, "image" by default.
        name: name of the op.
    """
    _write("summary_write_image", value, step, "image" if tag is None else tag, name)


def pb(value: BlobDef, step: BlobDef | None = None, name: str | None = None) -> None:
    """Write a message of `text` or `hparams`.

    Args:
        value: the bytes of ``str(message)`` in an int8 blob.
        step: as in `scalar`, 0 by default.
        name: name of the op.

    Raises:
        DataError: at run time, if the bytes are not the text of a summary.
    """
    with _once():
        number = constant(0, int64, (1,)) if step is None else step
        emit("summary_write_pb", value, number, name=name)
