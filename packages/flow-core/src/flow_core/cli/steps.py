"""The commands about steps that have run: ``flow replay`` and ``flow stragglers``."""

from __future__ import annotations

import os
from typing import Any

import click

from flow_core.base import planning
from flow_core.cli.options import emulate_gpus, job_target, json_option
from flow_core.cli.render import show


@click.command(short_help="Run a recorded step again, and show the values of its ops.")
@emulate_gpus
@click.option(
    "--step",
    type=int,
    default=-1,
    show_default=True,
    help="Use this step: its number, or a negative number that counts from the last one.",
)
@click.option("--until", metavar="OP", help="Stop to keep values after this op.")
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also run the step on N devices, and name the first op whose bits differ.",
)
@click.option(
    "--without",
    metavar="PLUGIN",
    help="Also run the step without a plugin, and name the first op whose bits differ.",
)
@click.option("--shell", is_flag=True, help="Start a Python shell that has the values of all ops.")
@json_option("everything but the values")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@job_target
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    emulate_gpus: int | None,
    file: str,
    target: str,
    args: tuple[str, ...],
    **options: Any,
) -> None:
    """Run a step again that a program recorded in FILE, and show the values of its ops.

    FILE is that of `flow run --record` or FLOW_REPLAY.  SCRIPT.PY is imported as by `flow plan`.
    The variables of the step are those of the recording, after the steps before it.  Exits with
    status 1 if the results do not have the recorded bits, or a second run has others.
    """
    from flow_core.cli import replay as replaying

    if emulate_gpus is not None:
        os.environ["ONEFLOW_EMULATE_GPUS"] = str(max(emulate_gpus, options["devices"] or 0))
    planning.begin()
    ctx.exit(replaying.status(file, target, args, replaying.Options(**options)))


@click.command(short_help="Show how fast the processes of a program compute.")
@json_option()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.pass_context
def stragglers(ctx: click.Context, as_json: bool, file: str) -> None:
    """Show planned and measured times of the ranks of a program, and which ranks are slow.

    FILE is that of `flow-dist run --stragglers` or FLOW_STRAGGLERS: the last 48 steps of each job.
    Exits with status 1 if a rank's tasks take 1.05 times as long as those of the median rank.
    """
    from flow_core.observe.summary.rank_times import rank_tables, read_comparisons
    from flow_core.runtime.stragglers import to_json

    found = read_comparisons(file)
    if as_json:
        click.echo(to_json(found))
    else:
        show([table for job in found for table in rank_tables(job)])
    ctx.exit(1 if any(job.slow for job in found) else 0)
