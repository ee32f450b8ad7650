"""Static bootstrap: the user starts the script once on each machine, as with OneFlow.

Each process has the addresses of ``flow.env.machine``; its rank is the position of its own host
among them.  The first machine listens on ``flow.env.ctrl_port``.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Sequence

from flow_core.authoring.backends import World
from flow_dist.bootstrap.addresses import address_towards, own_addresses
from flow_dist.bootstrap.membership import LaunchError, Membership
from flow_dist.bootstrap.output import report
from flow_dist.control.board import Limits
from flow_dist.control.channel import join_at_rank_0

LOG = logging.getLogger(__name__)

SOURCE = "flow.env.machine"

PORT = 50051
"""Port of the first machine if ``flow.env.ctrl_port`` is not set."""

START_SECONDS = 600.0
"""Maximum number of seconds between the user's first and last start of the script on a machine."""

_HINT = (
    "list in flow.env.machine the addresses by which the machines reach each other, and start the "
    "script on each of them; or start it with flow-dist run --hosts"
)


def connect(machines: Sequence[str], used: int, port: int | None) -> World | None:
    """Join the processes of all machines; return None if this host is no machine, or every machine.

    Args:
        machines: addresses or names, the first machine first.

    Raises:
        LaunchError: this host is an unused machine, or several machines but not all, or the other
            machines cannot be joined.
    """
    if Membership.from_env().source != "alone":  # a launcher started this process
        return None
    place = own_place(machines, {*own_addresses(), socket.gethostname()})
    if place is None:
        return None
    if place >= used:
        raise LaunchError(
            f"finding this host among the machines of {SOURCE}",
            found=f"{machines[place]}, machine {place}, but the program uses {used} machines only",
            allowed=f"machines 0 to {used - 1}",
            hint="start the script on these machines only, or change flow.config.machine_num",
        )
    if used == 1:
        return None
    _join(place, machines[:used], port or PORT)
    from flow_dist.mpi.world import world

    return world()


def _join(rank: int, machines: Sequence[str], port: int) -> None:
    membership = Membership(rank, len(machines), 0, 1, socket.gethostname(), SOURCE)
    others = ", ".join(name for number, name in enumerate(machines) if number != rank)
    report(
        f"machine {rank} of {len(machines)} ({machines[rank]}) waits at {machines[0]}:{port} for "
        f"{others}; start the same script there"
    )
    address = _listen_address(machines) if rank == 0 else machines[0]
    join_at_rank_0(membership, address, port, (*machines, port), Limits(start=START_SECONDS))


def own_place(machines: Sequence[str], own: Iterable[str]) -> int | None:
    """Return the index of this host among the machines; None if it is no machine, or every machine.

    Args:
        own: addresses and name of this host, without loopback.

    Raises:
        LaunchError: this host is several of the machines, but not all.

    >>> own_place(["10.0.0.1", "10.0.0.2"], {"10.0.0.2", "172.17.0.1"})
    1
    >>> own_place(["10.0.0.1", "10.0.0.2"], {"192.168.0.7"})
    """
    known = {*own}
    matches = [n for n, name in enumerate(machines) if known & {name, *_resolved(name)}]
    loops = [n for n, name in enumerate(machines) if _is_loop(name)]
    if {*matches, *loops} == {*range(len(machines))}:
        return None
    if loops or len(matches) > 1:
        odd = [machines[n] for n in sorted({*matches, *loops})]
        raise LaunchError(
            f"finding this host among the machines of {SOURCE}",
            found=f"{', '.join(odd)}, which {'mean' if len(odd) > 1 else 'means'} this host, "
            f"among {len(machines)} machines",
            allowed="one address per machine, the same on all of them",
            hint=_HINT,
        )
    if not matches:
        LOG.warning(
            "this process is all %d machines of %s, as this host (%s) is none of them: %s.  %s",
            *(len(machines), SOURCE, ", ".join(sorted(known)), ", ".join(machines), _HINT),
        )
        return None
    return matches[0]


def _is_loop(name: str) -> bool:
    return name == "localhost" or name.startswith("127.")


def _resolved(name: str) -> set[str]:
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET)}
    except OSError:
        return set()


def _listen_address(machines: Sequence[str]) -> str:
    """Return the first machine's address; there, its own name may resolve to loopback."""
    mine = {*own_addresses()}
    own = sorted(mine & {machines[0], *_resolved(machines[0])})
    return own[0] if own else address_towards(machines[1])
