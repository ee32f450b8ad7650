"""The commands about steps that have run."""

from __future__ import annotations

import os
from typing import Any

import click

from flow_core.base import planning
from flow_core.cli.options import emulate_gpus


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
@click.option("--json", "as_json", is_flag=True, help="Print everything but the values as JSON.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("target", metavar="SCRIPT.PY[:JOB]")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]")
@click.pass_context
def replay(
    ctx: click.Context,
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
