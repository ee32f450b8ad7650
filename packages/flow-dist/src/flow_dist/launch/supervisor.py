"""The supervisor of ``flow-dist run``: starts the ranks, believes nobody, leaves nobody behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Protocol

from flow_core.base.programs import can_run, interpreter_options
from flow_dist.bootstrap.addresses import LOOPBACK, address_towards
from flow_dist.bootstrap.membership import LAUNCHER, RESTART, LaunchError
from flow_dist.control.board import Failure, Limits
from flow_dist.control.channel import ADDRESS
from flow_dist.control.secret import TOKEN
from flow_dist.control.server import ControlServer
from flow_dist.control.wire import fresh
from flow_dist.launch import process_group
from flow_dist.launch.mpi_launchers import OPEN_MPI, Host, Launcher
from flow_dist.shm.cleanup import Scratch

_LINGER = 30.0
"""Seconds that a launcher may go on after all ranks have said goodbye."""

_REMOTE_END = 1.0
"""Seconds that a launcher has for ending what it has started on other hosts."""

_STRAGGLE = 2.0
"""Seconds in which a verdict may follow the end of the launcher."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to run.

    Attributes:
        script, args: the program.
        size: number of ranks; 0 for as many as the hosts take.
        hosts: where; this one when empty.
        restarts: how often to start again after a failure.
        least: with how few ranks to go on when hosts are lost.
        mpiexec, agent, address: see `Launcher`.
        limits: how long nothing may happen.
        label: whether output is labelled by rank; on terminals when None.
    """

    script: str
    args: tuple[str, ...] = ()
    size: int = 0
    hosts: tuple[Host, ...] = ()
    restarts: int = 0
    least: int = 0
    mpiexec: str | None = None
    agent: str | None = None
    address: str | None = None
    limits: Limits = field(default_factory=Limits)
    label: bool | None = None

    @property
    def ranks(self) -> int:
        """How many ranks there are to be."""
        return self.size or sum(host.slots for host in self.hosts) or 1

    @property
    def listen(self) -> str:
        """The address at which the ranks find the supervisor."""
        if self.address or not self.hosts:
            return self.address or LOOPBACK
        return address_towards(self.hosts[-1].name)


class Gang(Protocol):
    """The processes of one start of a job."""

    def poll(self) -> int | None:
        """The status of who started them, None while that runs."""

    def end(self) -> None:
        """Ends all of them, with what they have started."""


class Starter(Protocol):
    """A way to start the processes of a job."""

    def fit(self, job: Job, failure: Failure | None) -> Job:
        """The job as it can be started now, after a failure or the first time."""

    def start(self, job: Job, told: Mapping[str, str]) -> Gang:
        """Starts all ranks with some variables."""


def supervise(job: Job, starter: Starter | None = None) -> int:
    """Run a job to its end; return the status to end with.

    It is 0 only when all ranks ended well, else that of the rank which is to blame, or 1.

    Args:
        job: what to run.
        starter: starts the ranks; the system's mpiexec when None.

    Raises:
        LaunchError: it cannot be started at all.
    """
    starter = starter or ByMpi()
    process_group.adopt_orphans()
    with _signals():
        failure = None
        for attempt in range(job.restarts + 1):
            job = starter.fit(job, failure)
            if attempt:
                say(f"restart {attempt} of {job.restarts} with {job.ranks} ranks")
            failure = _run(job, attempt, starter)
            if failure is None:
                return 0
    return 1 if failure is None else failure.status


def say(message: str) -> None:
    """A line of the supervisor's own."""
    sys.stderr.write(f"flow-dist: {message}\n")
    sys.stderr.flush()


def without(job: Job, failure: Failure) -> Job:
    """The job without a host that does not answer, if enough ranks are left over."""
    rest = tuple(host for host in job.hosts if not _addresses(host) & {*failure.silent})
    slots = sum(host.slots for host in rest)
    size = min(job.ranks, slots)
    if rest == job.hosts or not job.least or size < job.least:
        return job
    return replace(job, hosts=rest, size=size)


def _addresses(host: Host) -> set[str]:
    """What a host may be called on the wire; nothing more than its name when nobody knows it."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host.name, None)}
    except OSError:
        found = set()
    return {host.name, *found}


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """An order to end reaches the ranks: it becomes an exception, which ends them on its way."""

    def leave(number: int, frame: FrameType | None) -> None:
        say(f"stopped by {signal.Signals(number).name}; all ranks are ended")
        raise SystemExit(128 + number)

    usual = {n: signal.signal(n, leave) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _run(job: Job, attempt: int, starter: Starter) -> Failure | None:
    token = fresh()
    with ControlServer(job.ranks, token, job.listen, limits=job.limits) as server:
        told = {
            ADDRESS: f"{server.address}:{server.port}",
            TOKEN: token,
            RESTART: str(attempt),
        }
        gang = starter.start(job, told)
        try:
            failure = _watch(gang, server)
            if failure is None:
                return None
            say(failure.message)
            return replace(failure, status=_own_status(gang)) if job.ranks == 1 else failure
        except SystemExit:  # an order to end: what the ranks have printed comes out first
            server.dismiss("the job was told to end")
            raise
        finally:
            gang.end()


class ByMpi:
    """Starts ranks with mpiexec, or as one process where there is but one."""

    def fit(self, job: Job, failure: Failure | None) -> Job:
        """The job without hosts that do not answer."""
        return job if failure is None else without(job, failure)

    def start(self, job: Job, told: Mapping[str, str]) -> Gang:
        """Starts the launcher."""
        folder = Scratch()
        try:
            process = process_group.start(*_command(job, told, folder))
        except BaseException:
            folder.remove()
            raise
        # launchers of one host need no time for ending it, and would spend it on a complaint
        return _Launched(process, _REMOTE_END if job.hosts else 0, folder)


@dataclass(frozen=True, slots=True)
class _Launched:
    process: subprocess.Popen[bytes]
    grace: float
    folder: Scratch

    def poll(self) -> int | None:
        return self.process.poll()

    def end(self) -> None:
        process_group.end(self.process, self.grace)
        self.folder.remove()


def program(job: Job, how: str = "alone") -> list[str]:
    """What a rank runs, after the name of Python: "alone", or "guarded"."""
    start = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start.py")
    return [*interpreter_options(), start, how, job.script, *job.args]


def _command(
    job: Job, told: Mapping[str, str], scratch: Scratch
) -> tuple[list[str], dict[str, str]]:
    """The command line, and its environment, which says whose variables tell the ranks apart."""
    if job.ranks == 1 and not job.hosts:  # no MPI is needed for one
        return [sys.executable, *program(job)], {**os.environ, **told, **_ALONE}
    launcher = Launcher.find(job.mpiexec)
    told = {**told, LAUNCHER: launcher.variables}
    label = sys.stdout.isatty() if job.label is None else job.label
    command = launcher.command(
        job.ranks,
        job.hosts,
        [sys.executable, *program(job, "guarded")],
        agent=job.agent,
        address=job.listen,
        label=label,
        forwarded=tuple(told),
    )
    folder = scratch.path() if launcher.kind == OPEN_MPI else ""
    return command, launcher.environment({**os.environ, **told}, folder, one_host=not job.hosts)


_ALONE = {LAUNCHER: "flow-dist", "FLOW_DIST_RANK": "0", "FLOW_DIST_SIZE": "1"}


def _watch(gang: Gang, server: ControlServer) -> Failure | None:
    """Waits for the end; None for a good one."""
    ended: float | None = None
    while True:
        failure = server.wait(0.05)
        if failure is not None:
            return failure
        status, now = gang.poll(), time.monotonic()
        if status == 0 and server.over:
            return None
        if status is not None or server.over:
            ended = ended or now
        patience = _STRAGGLE if status is not None else _LINGER
        if server.unsettled:  # a launcher that has lost a host may leave before that is silent
            patience += server.limits.silence
        if ended and now - ended > patience:
            return _launcher_failure(status, server)


def _own_status(gang: Gang) -> int:
    """The status of a rank that is alone and fails, in the form that shells give signals."""
    until = time.monotonic() + _STRAGGLE
    while (status := gang.poll()) is None and time.monotonic() < until:
        time.sleep(0.01)
    if status is not None and status < 0:
        return 128 - status
    return status or 1


def _launcher_failure(status: int | None, server: ControlServer) -> Failure:
    how = "does not end" if status is None else f"ended with status {status}"
    come = len(server.hosts)
    said = "all ranks have ended well" if server.over else f"{come} ranks have come, not all ended"
    return Failure("launcher", -1, "", 0, "", f"the launcher {how}: {said}")


def check_script(script: str) -> None:
    """Refuses a script that is not there before anything is started."""
    if not can_run(script):
        found = "a folder without a __main__.py" if os.path.isdir(script) else "no such file"
        raise LaunchError(f"running {script}", found=found, allowed="a Python script")
