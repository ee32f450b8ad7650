"""``flow plan --check``: compare the plans of a script's jobs with their budgets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flow_core.base.errors import PlanError, nearest, visible
from flow_core.cli.progress import Progress, progress
from flow_core.cli.render import show
from flow_core.cli.scripts import documents_of

if TYPE_CHECKING:  # load the compiler only if needed
    from flow_core.observe.budget import Change


def status(
    target: str, file: str, args: Sequence[str], updates: bool, as_json: bool, as_markdown: bool
) -> int:
    """Compare plans with budgets, or write the budgets; return the exit status."""
    with progress() as show_progress:
        if updates:
            update(target, file, args, show_progress)
            return 0
        changes = check(target, file, args, show_progress)
    return 0 if report(changes, as_json, as_markdown) else 1


def check(target: str, file: str, args: Sequence[str], show_progress: Progress) -> list[Change]:
    """Return the numbers of the jobs' plans that differ from their budgets.

    Raises:
        PlanError: the file is not a file of budgets, or has no budget of a job.
    """
    from flow_core.observe.budget import compare, read_budgets

    budgets = read_budgets(Path(file))
    found: list[Change] = []
    for doc in documents_of(target, args, show_progress):
        if doc.job not in budgets:
            raise PlanError(
                f"comparing the plan of job {doc.job!r} with its budget",
                found=f"no budget of the job in {file}",
                allowed=f"a budget of job {doc.job!r}",
                hint=nearest(doc.job, budgets) or "add --update to write it",
            )
        found += compare(doc, budgets[doc.job])
    return found


def update(target: str, file: str, args: Sequence[str], show_progress: Progress) -> None:
    """Write the numbers of the jobs' plans as their budgets."""
    from flow_core.observe.budget import budget_of, write_budgets

    docs = documents_of(target, args, show_progress)
    write_budgets(Path(file), {doc.job: budget_of(doc) for doc in docs})
    click.echo(f"{file}: the budgets of {', '.join(doc.job for doc in docs)}")


def report(changes: Sequence[Change], as_json: bool, as_markdown: bool) -> bool:
    """Print the differences; return whether all plans meet their budgets."""
    from flow_core.observe.budget import change_table, markdown

    if as_json:
        click.echo(
            json.dumps([asdict(change) | {"excess": change.is_excess} for change in changes])
        )
    elif as_markdown:
        click.echo(visible(markdown(changes)))
    elif changes:
        tables = (change_table(changes, excess) for excess in (True, False))
        show([table for table in tables if table.rows])
    else:
        click.echo("all plans meet their budgets")
    return not any(change.is_excess for change in changes)
