"""Notes on the optimizers of a job, which are logged once when the job is compiled."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flow_core.frontend.trace.job_build import TrainRequest

_log = logging.getLogger("flow_core")


def log_notes(job: str, requests: Sequence[TrainRequest]) -> None:
    """Log the notes of all groups of variables of a train job, each note once.

    Args:
        job: name of the job.
        requests: the job's calls of ``minimize``.
    """
    notes = {
        group.note: request.line
        for request in requests
        for group in request.optimizer.options().groups
        if group.note
    }
    for note, line in notes.items():
        _log.warning("job %r at %s: %s", job, line, note)
