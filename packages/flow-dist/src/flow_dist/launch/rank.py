"""A rank of ``flow-dist run``: join the job, run the script, and report how it ends.

The script runs as under ``python SCRIPT ARGS``, in a process that dies with its launcher.
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
    """Run a script as a rank; propagate the exception that ends it.

    Args:
        loaded: names of the modules that Python had loaded at start.
    """
    die_with_parent()
    print_whole_lines()
    if token := os.environ.get(TOKEN):
        synchronize_seeds(token)
    client = channel.join()
    sys.excepthook = sys.__excepthook__  # the script's exceptions are reported below
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
    """End a forked child before mpi4py, at interpreter exit, would finalize the parent's MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    if not client.in_child or mpi is None or not mpi.Is_initialized():
        return
    vars(sys.modules["__main__"]).clear()  # closes the script's open files
    gc.collect()
    flush_streams()
    os._exit(client.failing[0])


def _report(client: ControlClient, error: BaseException) -> None:
    """Report a failure before other ranks wait for this rank.

    The only rank of a job reports at its very end, after the script's exit handlers.
    """
    failing = status_of(error)
    if not failing:
        return
    client.failing = failing, None if isinstance(error, SystemExit) else error
    if not client.membership.alone:
        ended_by(error)
        sys.excepthook = _no_hook
        if isinstance(error, SystemExit):
            error.code = failing
        client.fail()


def _no_hook(*error: object) -> None:
    """Print nothing; this function replaces the hook that has already printed the exception."""
