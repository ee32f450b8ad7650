"""Whether this process has others to join: asked by every program, so that it costs one nothing."""

from __future__ import annotations

from flow_core.authoring.specs import Available, Unavailable
from flow_dist.bootstrap.membership import JOINED, LaunchError, Membership


def place() -> Membership:
    """Which process this is: as it has joined the others, else by its environment."""
    return JOINED[0] if JOINED else Membership.from_env()


def bootstrap() -> Available | Unavailable:
    """Joins the processes that a launcher started, if there are several.

    Raises:
        LaunchError: there are several, but MPI does not join them.
    """
    membership = place()
    if membership.alone:
        return Unavailable("one process", "start several: flow-dist run -n 4 script.py")
    from flow_dist.mpi.world import world

    joined = world()
    if (joined.rank, joined.size) != (membership.rank, membership.size):
        raise LaunchError(
            "joining the processes by MPI",
            found=f"rank {joined.rank} of {joined.size} by MPI, but {membership.rank} of "
            f"{membership.size} by the variables of {membership.source}",
            allowed="processes that an MPI launcher started",
            hint="start them with flow-dist run, or mpiexec of the MPI that mpi4py uses",
        )
    return Available(joined.size, f"processes, {membership}")
