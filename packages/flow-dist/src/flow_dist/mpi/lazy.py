"""Probe for other processes; every program does so, and MPI is imported only if there are any."""

from __future__ import annotations

from flow_core.authoring.specs import Available, Unavailable
from flow_dist.bootstrap.membership import JOINED, LaunchError, Membership


def membership() -> Membership:
    """Return the membership with which this process has joined, else that of its environment."""
    return JOINED[0] if JOINED else Membership.from_env()


def bootstrap() -> Available | Unavailable:
    """Join the processes that a launcher started, if there are several.

    Raises `LaunchError` if there are several processes, but MPI cannot join them.
    """
    own = membership()
    if own.alone:
        return Unavailable("one process", "start several: flow-dist run -n 4 script.py")
    from flow_dist.mpi.world import world

    joined = world()
    if (joined.rank, joined.size) != (own.rank, own.size):
        raise LaunchError(
            "joining the processes by MPI",
            found=f"rank {joined.rank} of {joined.size} according to MPI, but {own.rank} of "
            f"{own.size} according to the variables of {own.source}",
            allowed="processes that an MPI launcher started",
            hint="start the processes with flow-dist run, or with the mpiexec of the MPI library "
            "that mpi4py uses",
        )
    return Available(joined.size, f"processes, {own}")
