"""Entry point of ``python -m flow_core.cli``, which is equivalent to ``flow``."""

from flow_core.cli import main

main()
