"""Options that several commands have."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Any], Any]

emulate_gpus = click.option(
    "--emulate-gpus",
    type=click.IntRange(min=0),
    metavar="N",
    help="Emulate N devices of type gpu on the CPU.",
)


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN and infinity, which `click.FloatRange` does not refuse."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number in a text."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def in_a_folder(ctx: click.Context, option: click.Parameter, file: str | None) -> str | None:
    """Check that the folder of a file to write exists, before the command does its work."""
    if file is not None and not Path(file).absolute().parent.is_dir():
        raise click.BadParameter(f"the folder {Path(file).parent} does not exist", ctx, option)
    return file


def output_file(option: str, text: str, *names: str) -> Decorator:
    """Return an option that takes the name of a file to write."""
    path = click.Path(dir_okay=False)
    return click.option(option, *names, metavar="FILE", type=path, callback=in_a_folder, help=text)


def at_most_one(**options: object) -> None:
    """Check that at most one option is given, of those whose names the arguments have.

    Raises `click.UsageError` if two are given.
    """
    given = [
        f"--{name.removeprefix('as_')}"
        for name, value in options.items()
        if value is not None and value is not False
    ]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} exclude each other: use one of them")


def json_option(what: str = "everything") -> Decorator:
    """Return the option ``--json``, which is passed as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def job_target(command: Any) -> Any:
    """Add the arguments ``target``, a job of a script, and ``args``, those of the script."""
    command = click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]")(command)
    return click.argument("target", type=click.Path(), metavar="SCRIPT.PY[:JOB]")(command)
