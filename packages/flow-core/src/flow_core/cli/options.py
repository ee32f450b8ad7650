"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

emulate_gpus = click.option(
    "--emulate-gpus",
    type=click.IntRange(min=0),
    metavar="N",
    help="Emulate N devices of type gpu on the CPU.",
)


def in_a_folder(ctx: click.Context, option: click.Parameter, file: str | None) -> str | None:
    """Check that the folder of a file to write exists, before the command does its work."""
    if file is not None and not Path(file).absolute().parent.is_dir():
        raise click.BadParameter(f"the folder {Path(file).parent} does not exist", ctx, option)
    return file
