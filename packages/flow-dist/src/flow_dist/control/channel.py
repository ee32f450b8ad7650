"""Join the job's control channel under any launcher.

Under ``flow-dist run``, the supervisor runs the control server and passes its address to the ranks.
Otherwise, rank 0 runs the server, and the ranks obtain its address and token through what they
already share: MPI, the launcher's environment variables, or the configured addresses of the
machines and the user's secret.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

from flow_core.base.forks import in_child
from flow_dist.bootstrap.addresses import (
    LOOPBACK,
    address_towards,
    own_addresses,
    rank_0_address,
    resolvable,
)
from flow_dist.bootstrap.engines import engine_named, tell_engine
from flow_dist.bootstrap.membership import JOINED, LaunchError, Membership
from flow_dist.bootstrap.output import report
from flow_dist.bootstrap.slurm import master_of_step
from flow_dist.control.board import Limits
from flow_dist.control.client import ControlClient, end_process, watch_exit
from flow_dist.control.secret import TOKEN, job_token
from flow_dist.control.server import ControlServer
from flow_dist.control.wire import random_token

ADDRESS = "FLOW_DIST_CONTROL"

Gather = Callable[[Any], Sequence[Any]]
"""A function that all-gathers a small JSON value over all ranks."""

_joined: list[ControlClient] = []
_server: list[ControlServer] = []
_report_lock = threading.Lock()

NOTICE_SECONDS, VERDICT_SECONDS = 0.1, 2.0
"""Seconds in which the server notices the loss of a rank, and then reaches its verdict."""


def current() -> ControlClient | None:
    """Return the connection of this process, or None if the process has not joined."""
    return _joined[0] if _joined else None


def join(
    membership: Membership | None = None,  # rank and size; read from the environment if None
    # All-gathers a JSON value; called by all ranks under launchers that do not provide the server's
    # address.
    gather: Gather | None = None,
    env: Mapping[str, str] | None = None,  # the environment variables; those of the process if None
) -> ControlClient | None:
    """Join the job, once per process; return None if the program has only one process.

    Raises:
        LaunchError: the server's address is unknown, or the server cannot be reached.
    """
    env = os.environ if env is None else env
    if _joined:
        return _joined[0]
    membership = membership or Membership.from_env(env)
    if env.get(ADDRESS) and env.get(TOKEN):
        address, port = parse_address(env[ADDRESS])
        client = ControlClient(membership, address, port, env[TOKEN])
    elif membership.alone:
        return None
    else:
        client = _join_rank_0(membership, gather, env)
    return _register(client)


def join_at_rank_0(
    membership: Membership,  # rank and size of this process
    address: str,  # address at which rank 0 listens
    port: int,
    about: Sequence[object],  # identifies the job among the user's jobs; equal in all ranks
    limits: Limits | None = None,  # time limits; ``start`` also limits the attempts to reach rank 0
    env: Mapping[str, str] | None = None,  # the environment variables; those of the process if None
) -> ControlClient:
    """Join ranks that know the address of rank 0 and that each run in a terminal of their own.

    Raises:
        LaunchError: rank 0 cannot be reached, or has another secret.
    """
    limits, token = limits or Limits(), job_token(os.environ if env is None else env, *about)
    if membership.rank == 0:
        _serve(membership, address, port, token, limits)
    stop = _report_and_exit_server if membership.rank == 0 else _report_and_exit
    patience = limits.start
    return _register(ControlClient(membership, address, port, token, stop=stop, patience=patience))


def _register(client: ControlClient) -> ControlClient:
    _joined.append(client)
    JOINED.append(client.membership)
    in_child(partial(_detach_child, client))
    watch_exit(client)
    return client


def _detach_child(client: ControlClient) -> None:
    """Detach a forked child: only the parent acts as the rank and, on rank 0, runs the server."""
    client.detach_in_child()
    _joined.clear()
    _server.clear()
    if signal.getsignal(signal.SIGTERM) is _end_after_verdict:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def parse_address(text: str) -> tuple[str, int]:
    """Split ``address:port``.  Raises `LaunchError`.

    >>> parse_address("[::1]:80")
    ('::1', 80)
    """
    address, _, port = text.rpartition(":")
    if not (address and port.isascii() and port.isdigit()):
        raise LaunchError(f"reading {ADDRESS}", found=repr(text), allowed="address:port")
    return address.strip("[]"), int(port)


def _join_rank_0(
    membership: Membership, gather: Gather | None, env: Mapping[str, str]
) -> ControlClient:
    if gather is not None:
        address, port, token = _gather_server(membership, gather)
    else:
        (address, port), token = _configured_server(membership, env)
        if membership.rank == 0:
            _serve(membership, resolvable(address), port, token)
    stop = _report_and_exit_server if membership.rank == 0 else None
    patience = Limits().start  # rank 0 listens from its first job on
    return ControlClient(membership, address, port, token, stop=stop, patience=patience)


def _gather_server(membership: Membership, gather: Gather) -> tuple[str, int, str]:
    """Start the server on rank 0 and gather its address; on failure, all ranks raise."""
    addresses = gather(own_addresses())
    server: tuple[str, int, str] | None = None
    problem: LaunchError | None = None
    try:
        if membership.rank == 0:
            server = _serve(membership, _address(membership, addresses), 0, random_token())
    except LaunchError as error:
        problem = error
    (gathered, reason), *_ = gather([server, problem and str(problem)])
    if gathered is None:
        raise problem or LaunchError("joining rank 0", found=reason)
    address, port, token = gathered
    return address, port, token


def _address(membership: Membership, addresses: Sequence[Sequence[str]]) -> str:
    """Return an address of this host that all ranks can reach."""
    if membership.local_size == membership.size:
        return LOOPBACK
    return address_towards(membership.master[0]) if membership.master else rank_0_address(addresses)


def _configured_server(
    membership: Membership, env: Mapping[str, str]
) -> tuple[tuple[str, int], str]:
    master = membership.master
    if master is not None:
        master = master[0], master[1] + 1  # the launcher itself may listen on the port
    elif membership.source == "slurm":
        master = master_of_step(env, membership.rank)
    if master is None:
        raise LaunchError(
            f"joining the {membership.size} processes that {membership.source} has started",
            found="no MASTER_ADDR and MASTER_PORT",
            allowed="both variables, equal in all processes: the address and port of rank 0",
            hint="start the processes with flow-dist run, or export MASTER_ADDR and MASTER_PORT "
            "before starting them",
        )
    engine = engine_named(membership.source)
    about = [env.get(name, "") for name in engine.job] if engine else []
    return master, job_token(env, master[1], *about)


def _serve(
    membership: Membership, address: str, port: int, token: str, limits: Limits | None = None
) -> tuple[str, int, str]:
    server = ControlServer(membership.size, token, address, port, limits)
    _server.append(server)
    atexit.register(_serve_until_over)
    _handle_termination()
    return server.address, server.port, token


def _report_and_exit_server(message: str) -> None:
    """Report the failure, and let the message reach the other ranks before the server ends."""
    with _report_lock:  # the main thread may get here, too, and then waits
        report(message)
        tell_engine(JOINED[0].source, message)
        time.sleep(0.3)
        end_process(message)


def _handle_termination() -> None:
    """Let SIGTERM wait for the verdict on a job that has failed, unless the program handles it.

    An engine that notices the death of a rank terminates the others at once, as torchrun does, and
    rank 0 alone can say where they were.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end_after_verdict)


def _end_after_verdict(number: int, frame: FrameType | None) -> None:
    """Report the failure of the job, if a rank is lost; then end by the signal."""
    for server in _server:
        failure = server.wait(NOTICE_SECONDS)
        if failure is None and server.has_lost_ranks:
            failure = server.wait(VERDICT_SECONDS)
        if failure is not None and _report_lock.locked():
            return  # a thread, perhaps this one, reports and then ends the process
        if failure is not None:
            _report_and_exit_server(failure.message)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _report_and_exit(message: str) -> None:
    """Report the failure on this rank's own terminal, then terminate."""
    with _report_lock:
        report(message)
        end_process(message)


def _serve_until_over() -> None:
    """Keep the server of rank 0 until all ranks have ended.

    This function is registered before the goodbye of `watch_exit`, so that it runs after it.
    """
    if not _server:
        return
    server = _server[0]
    failure = None
    while not server.over and failure is None:
        failure = server.wait(0.1)
    if failure is not None:
        _report_and_exit_server(failure.message)
    server.close()
