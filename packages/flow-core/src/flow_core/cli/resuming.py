"""``flow verify --resume``: resume a job on other numbers of devices."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flow_core.cli.progress import progress
from flow_core.cli.render import show_report
from flow_core.cli.scripts import job_of


def status(
    target: str, args: Sequence[str], counts: Sequence[int], steps: int, seed: int, as_json: bool
) -> int:
    """Resume a job, print the report, and return the exit status.

    Args:
        target: the script, or ``script.py:job``.
        counts: the number of devices of the checkpoint, then those on which to resume.
        steps: the number of steps before the checkpoint, and after it.
    """
    os.environ.setdefault("ONEFLOW_EMULATE_GPUS", str(max(counts)))
    from flow_core.observe.resume.matrix import resume_matrix, resume_tables

    with progress() as show_progress:
        job = job_of(target, args)
        found = resume_matrix(
            job, counts[0], counts[1:], steps=steps, seed=seed, progress=show_progress
        )
    show_report(found, resume_tables, as_json)
    return 0 if found.ok else 1
