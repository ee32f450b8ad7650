"""``flow data``: convert data sets, and report stalls of input pipelines.

Commands import what they need when they run, so that `flow --help` loads no numpy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from flow_core.base.errors import visible
from flow_core.base.programs import ended_by, leave_own_folder, run_as_main
from flow_core.base.thread_budget import Cores


def add_commands(cli: Any) -> None:
    """Add the commands to a click group."""
    cli.add_command(data)


@click.group()
def data() -> None:
    """Convert data sets and inspect input pipelines."""


@data.command("convert")
@click.argument("source", type=click.Path(exists=True))
@click.argument("target", type=click.Path())
@click.option(
    "--parts", type=click.IntRange(min=1), default=1, metavar="N", help="Write N part files."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=None,
    help="Use N threads, one per core by default.",
)
@click.option("--shuffle", type=int, default=None, metavar="SEED", help="Shuffle with this seed.")
def convert_command(
    source: str, target: str, parts: int, workers: int | None, shuffle: int | None
) -> None:
    """Write SOURCE as OFRecord part files into the new folder TARGET.

    SOURCE is a folder of images with a sub-folder per class (fields encoded and class/label), a
    .csv file with a header line, or an .npz file of arrays of equal length.
    """
    from rich.progress import Progress

    from flow_data.cli.convert import convert, open_samples
    from flow_data.loading.workers import WorkerLimits

    samples = open_samples(source)
    with Progress(disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("converting", total=len(samples))
        paths = convert(
            samples,
            target,
            parts,
            workers=workers or WorkerLimits.from_cores(Cores()).waiting,
            seed=shuffle,
            progress=lambda: bar.advance(task),
        )
    click.echo(f"{len(samples)} records in {len(paths)} files: {paths[0]} ...")
    options = f"data_part_num={len(paths)}, part_name_suffix_length=5"
    click.echo(f"to read them: flow.data.ofrecord_reader({target!r}, {options})")


@data.command("stats", context_settings={"ignore_unknown_options": True})
@click.option("--picture", type=click.Path(dir_okay=False), help="Also write an SVG picture.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def stats_command(
    ctx: click.Context, picture: str | None, script: str, args: tuple[str, ...]
) -> None:
    """Run SCRIPT with its ARGS, then show the statistics of its loaders.

    The statistics are also shown if the script ends by Ctrl-C, sys.exit or an error.
    """
    from flow_data.cli.report import svg_report, text_report
    from flow_data.loading.stats import all_stats

    leave_own_folder()
    status = 0
    try:
        run_as_main(script, args)
    except BaseException as error:  # noqa: BLE001 - the script's error, shown like by python
        status = ended_by(error)
    loaders = all_stats()
    click.echo(visible(text_report(loaders)))
    if picture:
        Path(picture).write_text(svg_report(loaders), encoding="utf-8")
    ctx.exit(status)
