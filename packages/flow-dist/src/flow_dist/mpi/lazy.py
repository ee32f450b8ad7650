"""Probe for other processes; every program runs this, so it imports MPI only if there are any."""

from __future__ import annotations

from flow_core.authoring.specs import Available, Unavailable
from flow_dist.bootstrap.membership import JOINED, LaunchError, Membership


def membership() -> Membership:
    """Return the membership with which this process has joined, else the one of its environment."""
    return JOINED[0] if JOINED else Membership.from_env()


def bootstrap() -> Available | Unavailable:
    """Join the processes that a launcher started, if there are several.

    Raises:
        LaunchError: there are several, but MPI cannot join them.
    """
    own = membership()
    if own.alone:
        return Unavailable("one process", "start several: flow-dist run -n 4 script.py")
    from flow_dist.mpi.world import world

    joined = world()
    if (joined.rank, joined.size) != (own.rank, own.size):
        raise LaunchError(
            "joining the processes by MPI",
            found=f"rank {joined.rank} of {joined.size} by MPI, but {own.rank} of "
            f"{own.size} by the variables of {own.source}",
            allowed="processes that an MPI launcher started",
            hint="start them with flow-dist run, or mpiexec of the MPI that mpi4py uses",
        )
    return Available(joined.size, f"processes, {own}")
