"""Determine from the system's routing table the address of this host that other hosts can reach."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Sequence

import psutil

from flow_dist.bootstrap.membership import LaunchError

LOOPBACK = "127.0.0.1"


def address_towards(host: str) -> str:
    """Return the local address of the route to another host; nothing is sent.

    Raises:
        LaunchError: there is no route to that host.

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
            allowed="a reachable host",
            hint="set this host's address with flow-dist run --address",
        ) from error


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of this host, except loopback."""
    interfaces = psutil.net_if_addrs().values()
    all_ = [a.address for addresses in interfaces for a in addresses if a.family == socket.AF_INET]
    return [address for address in all_ if not address.startswith("127.")]


def rank_0_address(
    addresses: Sequence[Sequence[str]], towards: Callable[[str], str] = address_towards
) -> str:
    """Return the address of this host, which runs rank 0, on the routes to all other hosts.

    Args:
        addresses: for each rank, the addresses of its host.
        towards: a function like `address_towards`.

    Raises:
        LaunchError: no single address is on the routes to all other hosts.

    >>> rank_0_address(
    ...     [["10.0.0.1", "172.17.0.1"], ["10.0.0.2", "172.17.0.1"]], lambda _: "10.0.0.1"
    ... )
    '10.0.0.1'
    >>> rank_0_address([["10.0.0.1"], ["10.0.0.1"]])
    '127.0.0.1'
    """
    own = set(addresses[0])
    hosts = [others for theirs in addresses if (others := set(theirs) - own)]
    votes = Counter(address for others in hosts for address in _ways(others, towards))
    usual = [*addresses[0], *votes]  # in a tie, the first that the system lists
    best = max(usual, key=lambda address: votes[address], default=LOOPBACK)
    if not hosts:
        return LOOPBACK
    if votes[best] < len(hosts):
        raise LaunchError(
            "finding an address at which all ranks reach rank 0",
            found=f"none of {', '.join(addresses[0]) or 'no address'} is on all routes",
            allowed="a network that all hosts share",
            hint="export MASTER_ADDR and MASTER_PORT with an address of rank 0's host that all "
            "hosts can reach, or start the job with flow-dist run --address",
        )
    return best


def _ways(addresses: set[str], towards: Callable[[str], str]) -> set[str]:
    """Return the local addresses of the routes to a host that has several addresses."""
    local = set()
    for address in addresses:
        try:
            local.add(towards(address))
        except LaunchError:  # a network that only the other host has
            continue
    return local - {LOOPBACK}


def resolvable(address: str) -> str:
    """Return a name of this host, or its host name if the given name cannot be resolved yet.

    The service that names the pods of a Kubernetes job might not know a pod that has just started.

    >>> resolvable("127.0.0.1"), resolvable("no.such.host.invalid") == socket.gethostname()
    ('127.0.0.1', True)
    """
    try:
        socket.getaddrinfo(address, None)
    except OSError:
        return socket.gethostname()
    return address
