"""``flow plan --advise``: changes of one line, ranked."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flow_core.cli.progress import progress
from flow_core.cli.render import show_report
from flow_core.cli.scripts import job_of


def status(target: str, args: Sequence[str], topology: str | None, as_json: bool) -> int:
    """Print the changes that help a job; return the exit status.

    Args:
        topology: the topology file; None for the one of FLOW_TOPOLOGY, or the default model.
    """
    if topology is not None:
        os.environ["FLOW_TOPOLOGY"] = topology
    from flow_core.observe.advise.report import advice_tables, advise

    with progress() as show_progress:
        found = advise(job_of(target, args), show_progress)
    show_report(found, advice_tables, as_json)
    return 0 if found.options else 1
