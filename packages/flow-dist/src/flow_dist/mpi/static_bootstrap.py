"""A program that was started by hand once on each of its machines, as OneFlow's are.

No launcher tells these processes apart.  Each has the addresses of ``flow.env.machine``, and finds
itself by those of its host; the first machine listens at ``flow.env.ctrl_port``.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Iterable, Sequence

from flow_core.authoring.backends import World
from flow_dist.bootstrap.addresses import address_towards, own_addresses
from flow_dist.bootstrap.membership import LaunchError, Membership
from flow_dist.control.board import Limits
from flow_dist.control.channel import meet_rank_0

LOG = logging.getLogger(__name__)

SOURCE = "flow.env.machine"

PORT = 50051
"""Where the first machine listens if ``flow.env.ctrl_port`` says nothing."""

PATIENCE = 600.0
"""Seconds between the starts on the first and the last machine: people go from one to the next."""

_HINT = (
    "name in flow.env.machine the addresses by which the machines reach each other, and start the "
    "script on each of them; or start it with flow-dist run --hosts"
)


def meet(machines: Sequence[str], used: int, port: int | None) -> World | None:
    """Joins the processes of all machines; None where this host is none of them, or all.

    Args:
        machines: addresses or names, the first machine first.
        used: how many of them the program uses.
        port: of the first one.

    Raises:
        LaunchError: this host is one of those that are not used, or several of them but not all;
            or the others cannot be joined.
    """
    if Membership.from_env().source != "alone":  # a launcher has told: it is alone by its will
        return None
    place = own_place(machines, {*own_addresses(), socket.gethostname()})
    if place is None:
        return None
    if place >= used:
        raise LaunchError(
            f"finding this host among the machines of {SOURCE}",
            found=f"{machines[place]}, the machine {place}, of which the program uses {used}",
            allowed=f"machines 0 to {used - 1}",
            hint="start it there only, or change flow.config.machine_num",
        )
    if used == 1:
        return None
    _join(place, machines[:used], port or PORT)
    from flow_dist.mpi.world import world

    return world()


def _join(rank: int, machines: Sequence[str], port: int) -> None:
    here = Membership(rank, len(machines), 0, 1, socket.gethostname(), SOURCE)
    told = ", ".join(name for number, name in enumerate(machines) if number != rank)
    say(
        f"machine {rank} of {len(machines)} ({machines[rank]}) waits at {machines[0]}:{port} for "
        f"{told}, where the same script is to be started"
    )
    address = _listening(machines) if rank == 0 else machines[0]
    meet_rank_0(here, address, port, (*machines, port), Limits(start=PATIENCE))


def say(message: str) -> None:
    """A line for who has started this process and looks at its terminal."""
    sys.stderr.write(f"flow-dist: {message}\n")
    sys.stderr.flush()


def own_place(machines: Sequence[str], own: Iterable[str]) -> int | None:
    """Which of the machines this host is; None for none of them, and for all.

    Args:
        machines: addresses or names.
        own: addresses and name of this host, without the loopback's.

    Raises:
        LaunchError: it is several of them, and not all.

    >>> own_place(["10.0.0.1", "10.0.0.2"], {"10.0.0.2", "172.17.0.1"})
    1
    >>> own_place(["10.0.0.1", "10.0.0.2"], {"192.168.0.7"})
    """
    known = {*own}
    here = [n for n, name in enumerate(machines) if known & {name, *_resolved(name)}]
    loops = [n for n, name in enumerate(machines) if _is_loop(name)]
    if {*here, *loops} == {*range(len(machines))}:
        return None
    if loops or len(here) > 1:
        odd = [machines[n] for n in sorted({*here, *loops})]
        raise LaunchError(
            f"finding this host among the machines of {SOURCE}",
            found=f"{', '.join(odd)}, which {'mean' if len(odd) > 1 else 'means'} this host, "
            f"of {len(machines)} machines",
            allowed="one address per machine, the same on all of them",
            hint=_HINT,
        )
    if not here:
        LOG.warning(
            "this process is all %d machines of %s, as this host (%s) is none of them: %s.  %s",
            *(len(machines), SOURCE, ", ".join(sorted(known)), ", ".join(machines), _HINT),
        )
        return None
    return here[0]


def _is_loop(name: str) -> bool:
    return name == "localhost" or name.startswith("127.")


def _resolved(name: str) -> set[str]:
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET)}
    except OSError:
        return set()


def _listening(machines: Sequence[str]) -> str:
    """The first machine's address, on itself: its own name may mean the loopback there."""
    mine = {*own_addresses()}
    found = sorted(mine & {machines[0], *_resolved(machines[0])})
    return found[0] if found else address_towards(machines[1])
