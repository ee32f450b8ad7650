"""Standard output and standard error, which all ranks share."""

from __future__ import annotations

import io
import os
import sys

OUTPUT = "FLOW_DIST_OUTPUT"
"""The environment variable that is "all" if every process may print, instead of rank 0 alone."""


def report(message: str) -> None:
    """Print a line of flow-dist to standard error."""
    sys.stderr.write(f"flow-dist: {message}\n")
    sys.stderr.flush()


def print_whole_lines() -> None:
    """Flush standard output after whole lines, so that lines of different ranks do not mix.

    With ``-u`` or ``PYTHONUNBUFFERED``, Python writes each argument of `print` separately.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, write_through=False)


def choose_output(rank: int) -> None:
    """Discard the output of all ranks but rank 0, unless ``FLOW_DIST_OUTPUT=all``."""
    if rank and os.environ.get(OUTPUT) != "all":
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    else:
        print_whole_lines()
