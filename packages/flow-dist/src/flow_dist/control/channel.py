"""Joining the job's control channel, whoever started the process.

Under ``flow-dist run`` the supervisor has the server and tells the ranks where it is.  Under other
launchers rank 0 has it; where it is and the token go round by what the ranks share already: MPI,
the variables of the launcher, or the addresses of the program's machines and the user's secret.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flow_core.base.forks import in_child
from flow_dist.bootstrap.addresses import LOOPBACK, address_towards, meeting_address, own_addresses
from flow_dist.bootstrap.membership import JOINED, LaunchError, Membership
from flow_dist.bootstrap.slurm import master_of_step
from flow_dist.control.board import Limits
from flow_dist.control.client import ControlClient, end_process, watch_exit
from flow_dist.control.secret import TOKEN, job_token
from flow_dist.control.server import ControlServer
from flow_dist.control.wire import fresh

ADDRESS = "FLOW_DIST_CONTROL"

Gather = Callable[[Any], Sequence[Any]]
"""Gives every rank the small values that all ranks pass."""

_joined: list[ControlClient] = []
_server: list[ControlServer] = []
_saying = threading.Lock()


def current() -> ControlClient | None:
    """The connection of this process, None for one that has not joined."""
    return _joined[0] if _joined else None


def join(
    membership: Membership | None = None,
    gather: Gather | None = None,
    env: Mapping[str, str] | None = None,
) -> ControlClient | None:
    """Joins the job, once per process; None for a process that is alone.

    Args:
        membership: which rank this is; read from the environment when None.
        gather: gives every rank what all of them pass, called by all: for launchers that do
            not tell where the server is.
        env: the process's environment when None.

    Raises:
        LaunchError: nothing tells where the server is, or it cannot be reached.
    """
    env = os.environ if env is None else env
    if _joined:
        return _joined[0]
    place = membership or Membership.from_env(env)
    if env.get(ADDRESS) and env.get(TOKEN):
        address, port = parse_address(env[ADDRESS])
        client = ControlClient(place, address, port, env[TOKEN])
    elif place.alone:
        return None
    else:
        client = _join_rank_0(place, gather, env)
    return _keep(client)


def meet_rank_0(
    place: Membership,
    address: str,
    port: int,
    about: Sequence[object],
    limits: Limits | None = None,
    env: Mapping[str, str] | None = None,
) -> ControlClient:
    """Joins ranks that know by themselves where rank 0 is, each in its own terminal.

    Args:
        place: which rank this is.
        address, port: of rank 0, where it listens itself.
        about: tells the job from others of the same user, alike in all ranks.
        limits: how long nothing may happen; ``start`` is also how long to look for rank 0.
        env: the process's environment when None.

    Raises:
        LaunchError: it cannot be reached, or has another secret.
    """
    limits, token = limits or Limits(), job_token(os.environ if env is None else env, *about)
    if place.rank == 0:
        _serve(place, address, port, token, limits)
    stop = _stop_as_server if place.rank == 0 else _stop_aloud
    patience = limits.start
    return _keep(ControlClient(place, address, port, token, stop=stop, patience=patience))


def _keep(client: ControlClient) -> ControlClient:
    _joined.append(client)
    JOINED.append(client.membership)
    in_child(partial(_leave_to_parent, client))
    watch_exit(client)
    return client


def _leave_to_parent(client: ControlClient) -> None:
    """In a forked process: the parent is the rank, and has the server if this is rank 0."""
    client.leave_to_parent()
    _joined.clear()
    _server.clear()


def parse_address(text: str) -> tuple[str, int]:
    """The two parts of ``address:port``.  Raises `LaunchError`.

    >>> parse_address("[::1]:80")
    ('::1', 80)
    """
    address, _, port = text.rpartition(":")
    if not (address and port.isascii() and port.isdigit()):
        raise LaunchError(f"reading {ADDRESS}", found=repr(text), allowed="address:port")
    return address.strip("[]"), int(port)


def _join_rank_0(place: Membership, gather: Gather | None, env: Mapping[str, str]) -> ControlClient:
    if gather is not None:
        address, port, token = _agreed(place, gather)
    else:
        (address, port), token = _told(place, env)
        if place.rank == 0:
            _serve(place, address, port, token)
    stop = _stop_as_server if place.rank == 0 else None
    patience = Limits().start  # rank 0 listens from its own first job on
    return ControlClient(place, address, port, token, stop=stop, patience=patience)


def _agreed(place: Membership, gather: Gather) -> tuple[str, int, str]:
    """Where rank 0 listens; where it cannot, it says so to all, who would wait for it."""
    said = gather(own_addresses())
    try:
        made = _serve(place, _address(place, said), 0, fresh()) if place.rank == 0 else None
        problem = None
    except LaunchError as error:
        made, problem = None, error
    (made, reason), *_ = gather([made, problem and str(problem)])
    if made is None:
        raise problem or LaunchError("joining rank 0", found=reason)
    address, port, token = made
    return address, port, token


def _address(place: Membership, said: Sequence[Sequence[str]]) -> str:
    """An address of this host at which all ranks can reach it."""
    if place.local_size == place.size:
        return LOOPBACK
    return address_towards(place.master[0]) if place.master else meeting_address(said)


_JOB = {"torchrun": ("TORCHELASTIC_RUN_ID",), "slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID")}
"""Variables of launchers that tell a job from others of the same user, on all hosts alike."""


def _told(place: Membership, env: Mapping[str, str]) -> tuple[tuple[str, int], str]:
    master = place.master and (place.master[0], place.master[1] + 1)  # the next one is the master's
    if master is None and place.source == "slurm":
        master = master_of_step(env, place.rank)
    if master is None:
        raise LaunchError(
            f"joining the {place.size} processes that {place.source} has started",
            found="no MASTER_ADDR and MASTER_PORT",
            allowed="both, the same for all processes: where rank 0 can be reached",
            hint="start them with flow-dist run, or export MASTER_ADDR and MASTER_PORT before you "
            "start them",
        )
    names = _JOB.get(place.source, ())
    return master, job_token(env, master[1], *(env.get(name, "") for name in names))


def _serve(
    place: Membership, address: str, port: int, token: str, limits: Limits | None = None
) -> tuple[str, int, str]:
    server = ControlServer(place.size, token, address, port, limits)
    _server.append(server)
    atexit.register(_stay)
    return server.address, server.port, token


def _stop_as_server(message: str) -> None:
    """Rank 0 says why, and lets the word reach the others before its server is gone."""
    with _saying:  # the main thread may come here, too, and waits for the end
        sys.stderr.write(f"flow-dist: {message}\n")
        sys.stderr.flush()
        time.sleep(0.3)
        end_process(message)


def _stop_aloud(message: str) -> None:
    """A rank that has a terminal of its own says why it ends."""
    with _saying:
        sys.stderr.write(f"flow-dist: {message}\n")
        sys.stderr.flush()
        end_process(message)


def _stay() -> None:
    """Rank 0 ends last, as it has the server.

    Registered before the goodbye of `watch_exit`, so that it runs after it.
    """
    if not _server:
        return
    server = _server[0]
    failure = None
    while not server.over and failure is None:
        failure = server.wait(0.1)
    if failure is not None:
        _stop_as_server(failure.message)
    server.close()
