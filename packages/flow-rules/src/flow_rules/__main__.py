"""``python -m flow_rules`` is the ``flow-rules`` command."""

from flow_rules.cli import main

main(prog_name="flow-rules")
