"""``flow verify --matrix``: a job in all forms, each compared with one device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flow_core.base import planning
from flow_core.cli.progress import progress
from flow_core.cli.render import show_report
from flow_core.cli.scripts import job_of


def status(
    target: str,  # the script, or ``script.py:job``
    args: Sequence[str],
    devices: int,  # the largest number of devices
    steps: int,
    seed: int,
    html: str | None,
    as_json: bool,
) -> int:
    """Check a job in all forms, print the report, and return the exit status."""
    os.environ.setdefault("ONEFLOW_EMULATE_GPUS", str(devices))
    planning.begin()
    from flow_core.observe.matrix.matrix import verify_matrix
    from flow_core.observe.matrix.report import matrix_page, matrix_tables

    with progress() as show_progress:
        job = job_of(target, args)
        found = verify_matrix(job, devices, steps=steps, seed=seed, progress=show_progress)
    if html is not None:
        Path(html).write_text(matrix_page(found), encoding="utf-8")
    show_report(found, matrix_tables, as_json)
    return 0 if found.ok else 1
