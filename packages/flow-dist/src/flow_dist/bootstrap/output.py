"""What ranks print: one standard output is shared by all of them."""

from __future__ import annotations

import io
import os
import sys

OUTPUT = "FLOW_DIST_OUTPUT"
"""The variable that says "all" where all processes may print, and not the first one alone."""


def print_whole_lines() -> None:
    """Lines leave this process whole, so that those of other ranks stand between, not within them.

    Python writes each argument of `print` on its own when it runs with ``-u`` or
    ``PYTHONUNBUFFERED``.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, write_through=False)


def choose_output(rank: int) -> None:
    """Only the first rank prints, unless ``FLOW_DIST_OUTPUT=all``."""
    if rank and os.environ.get(OUTPUT) != "all":
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    else:
        print_whole_lines()
