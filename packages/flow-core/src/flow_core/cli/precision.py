"""``flow verify --precision``: errors of mixed precision, and the ops to keep in float32."""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.base import planning
from flow_core.cli.progress import progress
from flow_core.cli.render import show_report
from flow_core.cli.scripts import job_of


def status(
    target: str,  # the script, or ``script.py:job``
    args: Sequence[str],
    half: str,
    tolerance: float,  # the allowed error of results, gradients and variables
    steps: int,
    seed: int,
    as_json: bool,
) -> int:
    """Compare a job in mixed precision with float64; print the report, and return the status."""
    planning.begin()
    from flow_core.observe.precision.check import verify_precision
    from flow_core.observe.precision.report import precision_tables

    with progress() as show_progress:
        found = verify_precision(
            job_of(target, args),
            half,
            tolerance=tolerance,
            steps=steps,
            seed=seed,
            progress=show_progress,
        )
    show_report(found, precision_tables, as_json)
    return 0 if found.ok else 1
