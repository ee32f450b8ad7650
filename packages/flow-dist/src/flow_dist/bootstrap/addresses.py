"""At which address of this host the others reach it, by what the system's routes say."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Sequence

import psutil

from flow_dist.bootstrap.membership import LaunchError

LOOPBACK = "127.0.0.1"


def address_towards(host: str) -> str:
    """The address of this host from which it would reach another one; nothing is sent.

    Raises:
        LaunchError: there is no way to that host.

    >>> address_towards("127.0.0.1")
    '127.0.0.1'
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchError(
            f"finding the address of this host towards {host}",
            found=str(error),
            allowed="a host that can be reached",
            hint="name this host's address: flow-dist run --address",
        ) from error


def own_addresses() -> list[str]:
    """The addresses of this host, without those at which nobody else reaches it."""
    found = psutil.net_if_addrs().values()
    all_ = [a.address for addresses in found for a in addresses if a.family == socket.AF_INET]
    return [address for address in all_ if not address.startswith("127.")]


def meeting_address(
    told: Sequence[Sequence[str]], towards: Callable[[str], str] = address_towards
) -> str:
    """The address of this host, that of rank 0, which lies on the way to all other hosts.

    Args:
        told: per rank the addresses of its host.
        towards: see `address_towards`.

    Raises:
        LaunchError: no address lies on the way to all of them.

    >>> meeting_address(
    ...     [["10.0.0.1", "172.17.0.1"], ["10.0.0.2", "172.17.0.1"]], lambda _: "10.0.0.1"
    ... )
    '10.0.0.1'
    >>> meeting_address([["10.0.0.1"], ["10.0.0.1"]])
    '127.0.0.1'
    """
    own = set(told[0])
    hosts = [others for theirs in told if (others := set(theirs) - own)]
    votes = Counter(address for others in hosts for address in _ways(others, towards))
    usual = [*told[0], *votes]  # where several serve, the one that the system lists first
    best = max(usual, key=lambda address: votes[address], default=LOOPBACK)
    if not hosts:
        return LOOPBACK
    if votes[best] < len(hosts):
        raise LaunchError(
            "finding an address at which all ranks reach rank 0",
            found=f"none of {', '.join(told[0]) or 'no address'} lies on the way to all hosts",
            allowed="a network that all hosts share",
            hint="export MASTER_ADDR and MASTER_PORT, with the address of rank 0's host that all "
            "reach, or start with flow-dist run --address",
        )
    return best


def _ways(addresses: set[str], towards: Callable[[str], str]) -> set[str]:
    """From which addresses this host would reach another one."""
    found = set()
    for address in addresses:
        try:
            found.add(towards(address))
        except LaunchError:  # a network that only the other host is on
            continue
    return found - {LOOPBACK}
