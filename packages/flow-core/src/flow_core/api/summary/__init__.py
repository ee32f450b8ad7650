"""Event files for TensorBoard: ``flow.summary``.

In a job, `create_summary_writer` opens the event file of the process; `scalar`, `histogram`,
`image` and `pb` write to this file at every step.  Outside jobs, `text` and `hparams` build
messages.  This package must not depend on `math`, `nn` or `session`.

Args:
    value: a blob.
    step: int64 of shape (1,): the step number that TensorBoard shows; 0 if it is left out.
    tag: a name, given as a text or as an int8 blob of its bytes.
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
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit
from flow_core.frontend.trace.job_build import current_job

__all__ = [
    "Graph", "HParam", "Hparam", "IntegerRange", "Metric", "Projector", "RealRange", "ValueSet",
    "create_summary_writer", "flush_summary_writer", "histogram", "hparams", "image", "pb",
    "scalar", "text",
]  # fmt: skip

HParam = Hparam
"""An alias that OneFlow's own example uses."""


def _once() -> Entering:
    """Place an op on the first device only, if the view is consistent and has several devices."""
    scope = current_scope()
    placement = scope.placement or current_job("flow.summary").default_placement
    single = scope.mirrored or placement.size == 1
    return Entering() if single else Entering(placement=placement.only(0))


def _write(op: str, value: Blob, step: Blob | None, tag: object, name: str | None) -> None:
    with _once():
        number = constant(0, int64, (1,)) if step is None else step
        if isinstance(tag, BlobDef):
            emit(op, value, number, tag, name=name)
        else:
            emit(op, value, number, tag_text=str(tag or ""), name=name)


def create_summary_writer(logdir: str, name: str | None = None) -> None:
    """Open an event file when the job runs: ``event/event.*.tfevents.log`` below ``logdir``.

    Args:
        logdir: a folder, which is created if it does not exist.
    """
    with _once():
        emit("create_summary_writer", logdir=str(logdir), name=name)


def flush_summary_writer(name: str | None = None) -> None:
    """Flush buffered events; at most ten events are buffered, and the end of the program flushes
    them.
    """
    with _once():
        emit("flush_summary_writer", name=name)


def scalar(value: Blob, step: Blob, tag: Any, name: str | None = None) -> None:
    """Write a number at every step.

    Args:
        value: a blob that holds one number.

    Raises:
        InferenceError: the types or shapes do not fit.
        DataError: at run time, `create_summary_writer` was not called before.
    """
    _write("summary_write_scalar", value, step, tag, name)


def histogram(value: Blob, step: Blob, tag: object, name: str | None = None) -> None:
    """Write a histogram of a blob; errors as for `scalar`."""
    _write("summary_write_histogram", value, step, tag, name)


def image(
    value: Blob, step: Blob | None = None, tag: object = None, name: str | None = None
) -> None:
    """Write images, uint8 of shape (N, H, W, channels) with 1, 3 or 4 channels.

    Args:
        value: the images; if there are several, the number of each image is appended to the tag.
        tag: as a text or as an int8 blob of its bytes; "image" by default.
    """
    _write("summary_write_image", value, step, "image" if tag is None else tag, name)


def pb(value: Blob, step: Blob | None = None, name: str | None = None) -> None:
    """Write a message that `text` or `hparams` returned.

    Args:
        value: an int8 blob of the bytes of ``str(message)``.

    Raises: DataError: at run time, the bytes are not the text of a summary.
    """
    with _once():
        number = constant(0, int64, (1,)) if step is None else step
        emit("summary_write_pb", value, number, name=name)
