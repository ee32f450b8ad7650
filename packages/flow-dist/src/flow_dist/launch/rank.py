"""A rank of ``flow-dist run``: it joins the job, runs the script, and tells how that ends.

The script runs as ``python SCRIPT ARGS`` would run it, in a process that dies with its launcher.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Collection, Sequence

from flow_core.base.programs import ended_by, hide_own_frames, run_as_main, status_of
from flow_dist.bootstrap.output import print_whole_lines
from flow_dist.control import channel
from flow_dist.control.client import ControlClient, flush_streams
from flow_dist.control.secret import TOKEN
from flow_dist.launch.process_group import die_with_parent
from flow_dist.rng_sync import synchronize_seeds


def run_rank(argv: Sequence[str], loaded: Collection[str]) -> None:
    """Run a script as a rank, and let out the exception that ends it.

    Args:
        argv: the script and its arguments.
        loaded: names of the modules that Python itself had loaded.
    """
    die_with_parent()
    print_whole_lines()
    if token := os.environ.get(TOKEN):
        synchronize_seeds(token)
    client = channel.join()
    sys.excepthook = sys.__excepthook__  # what ends the script is seen here
    if client is not None:
        atexit.register(_end_child, client)
    try:
        run_as_main(argv[0], argv[1:], loaded)
    except BaseException as error:
        hide_own_frames()
        if client is not None:
            _report(client, error)
        raise


def _end_child(client: ControlClient) -> None:
    """End a forked process before Python's own end, where mpi4py would end the parent's MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    if not client.left or mpi is None or not mpi.Is_initialized():
        return
    vars(sys.modules["__main__"]).clear()  # files that the script has open are written
    gc.collect()
    flush_streams()
    os._exit(client.failing[0])


def _report(client: ControlClient, error: BaseException) -> None:
    """Tell of a failure before the others wait for this rank.

    A rank that is alone keeps nobody waiting: it tells at its very end, when what the script has
    registered for that is done.
    """
    failing = status_of(error)
    if not failing:
        return
    client.failing = failing, None if isinstance(error, SystemExit) else error
    if not client.membership.alone:
        ended_by(error)
        sys.excepthook = _say_nothing
        if isinstance(error, SystemExit):
            error.code = failing
        client.fail()


def _say_nothing(*error: object) -> None:
    """Stands for the hook that has shown the exception already."""
