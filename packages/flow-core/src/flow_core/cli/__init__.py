"""The ``flow`` command; requires click and rich (``flow-core[cli]``).

In: command-line arguments.  Out: tables, JSON or an HTML page, and an exit status.
Must not contain logic that other interfaces need.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; if click or rich is missing, say what to install."""
    try:
        from flow_core.cli.app import cli
    except KeyboardInterrupt:
        sys.exit(130)  # as the command itself, once it runs
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        from flow_core.base.errors import install_command

        sys.exit(
            f"flow: this command requires {error.name}, which is not installed\n"
            f"  next:    {install_command('flow-core[cli]')}"
        )
    cli()
