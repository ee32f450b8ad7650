"""The ``flow`` command.  Needs click and rich: ``flow-core[cli]``."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; says what to install when click or rich are missing."""
    try:
        from flow_core.cli.app import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(
            f"flow: this command needs {error.name}, which is not installed\n"
            "  next:    uv add 'flow-core[cli]'"
        )
    cli()
