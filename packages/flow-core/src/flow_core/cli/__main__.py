"""``python -m flow_core.cli`` is ``flow``."""

from flow_core.cli import main

main()
