"""Entry point of ``python -m oneflow``, which is equivalent to ``flow``."""

from flow_core.cli import main

main()
