"""The supervisor of ``flow-dist run``: start the ranks, supervise them, and reap orphans."""

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
from flow_dist.bootstrap.output import report
from flow_dist.control.board import Failure, Limits
from flow_dist.control.channel import ADDRESS
from flow_dist.control.secret import TOKEN
from flow_dist.control.server import ControlServer
from flow_dist.control.wire import random_token
from flow_dist.launch import process_group
from flow_dist.launch.bytecode import compile_if_missing
from flow_dist.launch.mpi_launchers import OPEN_MPI, Host, Launcher
from flow_dist.shm.cleanup import Scratch

_LINGER = 30.0
"""Seconds for which a launcher may continue to run after all ranks have said goodbye."""

_REMOTE_END_SECONDS = 1.0
"""Seconds that a launcher has to terminate its processes on other hosts."""

_VERDICT_SECONDS = 2.0
"""Maximum number of seconds between the end of the launcher and the verdict on the job."""


@dataclass(frozen=True, slots=True)
class Job:
    """A program to run on several ranks."""

    script: str
    args: tuple[str, ...] = ()
    size: int = 0  # number of ranks; 0 for one rank per slot of the hosts
    hosts: tuple[Host, ...] = ()  # where to run; this host if empty
    restarts: int = 0  # maximum number of restarts after failures
    least: int = 0  # minimum number of ranks to continue with after hosts are lost
    mpiexec: str | None = None  # see `Launcher`
    agent: str | None = None
    address: str | None = None
    limits: Limits = field(default_factory=Limits)
    # Whether each line of output is labeled with its rank; if None, on terminals only.
    label: bool | None = None
    # Environment variables to set in all ranks.
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.size or sum(host.slots for host in self.hosts) or 1

    @property
    def listen(self) -> str:
        """The address at which the ranks reach the supervisor."""
        if self.address or not self.hosts:
            return self.address or LOOPBACK
        return address_towards(self.hosts[-1].name)


class Processes(Protocol):
    """The processes that one start of a job creates."""

    def poll(self) -> int | None:
        """Return the exit status of the processes' launcher, or None while the launcher runs."""

    def end(self) -> None:
        """Terminate all processes, and their descendants."""


class Starter(Protocol):
    """An engine by which ``flow-dist run`` starts and restarts the processes of a job."""

    def fit(self, job: Job, failure: Failure | None) -> Job:
        """Return the job, adapted to the available resources, for a start or a restart."""

    def start(self, job: Job, env: Mapping[str, str]) -> Processes:
        """Start all ranks with additional environment variables."""


def supervise(job: Job, starter: Starter | None = None) -> int:
    """Run a job to its end, and return its exit status.

    The status is 0 if all ranks succeeded; otherwise it is the status of the rank at fault, or 1.

    Args:
        starter: the engine that starts the ranks; if None, mpiexec.

    Raises:
        LaunchError: the job cannot be started.
    """
    starter = starter or MpiStarter()
    process_group.adopt_orphans()
    with _signals():
        failure = None
        for attempt in range(job.restarts + 1):
            job = starter.fit(job, failure)
            if attempt:
                report(f"restart {attempt} of {job.restarts} with {job.ranks} ranks")
            failure = _run(job, attempt, starter)
            if failure is None:
                return 0
    return 1 if failure is None else failure.status


def without_silent_hosts(job: Job, failure: Failure) -> Job:
    """Return the job without silent hosts if enough ranks remain, else unchanged."""
    rest = tuple(host for host in job.hosts if not _addresses(host) & {*failure.silent})
    slots = sum(host.slots for host in rest)
    size = min(job.ranks, slots)
    if rest == job.hosts or not job.least or size < job.least:
        return job
    return replace(job, hosts=rest, size=size)


def _addresses(host: Host) -> set[str]:
    """Return the name and addresses of a host, or only its name if it cannot be resolved."""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host.name, None)}
    except OSError:
        addresses = set()
    return {host.name, *addresses}


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Turn termination signals into `SystemExit`, so that the ranks are terminated before exit."""

    def leave(number: int, frame: FrameType | None) -> None:
        report(f"stopped by {signal.Signals(number).name}; terminating all ranks")
        raise SystemExit(128 + number)

    usual = {n: signal.signal(n, leave) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _run(job: Job, attempt: int, starter: Starter) -> Failure | None:
    token = random_token()
    with ControlServer(job.ranks, token, job.listen, limits=job.limits) as server:
        env = {
            ADDRESS: f"{server.address}:{server.port}",
            TOKEN: token,
            RESTART: str(attempt),
            **job.settings,
        }
        processes = starter.start(job, env)
        try:
            failure = _watch(processes, server)
            if failure is None:
                return None
            report(failure.message)
            return replace(failure, status=_own_status(processes)) if job.ranks == 1 else failure
        except SystemExit:  # let the last output of the ranks arrive first
            server.stop_ranks("the job was terminated")
            raise
        finally:
            processes.end()


class MpiStarter:
    """A starter that runs ranks with mpiexec, or a single rank as a child process."""

    def fit(self, job: Job, failure: Failure | None) -> Job:
        """Return the job without silent hosts."""
        return job if failure is None else without_silent_hosts(job, failure)

    def start(self, job: Job, env: Mapping[str, str]) -> Processes:
        if not job.hosts:
            compile_if_missing(job.ranks, job.limits.start / 2)
        folder = Scratch()
        try:
            process = process_group.start(*_command(job, env, folder))
        except BaseException:
            folder.remove()
            raise
        # without remote ranks, a launcher needs no grace period, and would print complaints in it
        return _Launched(process, _REMOTE_END_SECONDS if job.hosts else 0, folder)


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
    """Return a rank's command without the interpreter; ``how`` is "alone" or "guarded"."""
    start = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start.py")
    return [*interpreter_options(), start, how, job.script, *job.args]


def _command(
    job: Job, env: Mapping[str, str], scratch: Scratch
) -> tuple[list[str], dict[str, str]]:
    """Return the launcher's command line and its environment."""
    if job.ranks == 1 and not job.hosts:  # a single rank needs no MPI
        return [sys.executable, *program(job)], {**os.environ, **env, **_ALONE}
    launcher = Launcher.find(job.mpiexec)
    env = {**env, LAUNCHER: launcher.variables}
    label = sys.stdout.isatty() if job.label is None else job.label
    command = launcher.command(
        job.ranks,
        job.hosts,
        [sys.executable, *program(job, "guarded")],
        agent=job.agent,
        address=job.listen,
        label=label,
        forwarded=tuple(env),
    )
    folder = scratch.path() if launcher.kind == OPEN_MPI else ""
    return command, launcher.environment({**os.environ, **env}, folder, one_host=not job.hosts)


_ALONE = {LAUNCHER: "flow-dist", "FLOW_DIST_RANK": "0", "FLOW_DIST_SIZE": "1"}


def _watch(processes: Processes, server: ControlServer) -> Failure | None:
    """Wait for the end of the job; return None if all ranks succeeded."""
    ended: float | None = None
    while True:
        failure = server.wait(0.05)
        if failure is not None:
            return failure
        status, now = processes.poll(), time.monotonic()
        if status == 0 and server.over:
            return None
        if status is not None or server.over:
            ended = ended or now
        patience = _VERDICT_SECONDS if status is not None else _LINGER
        if server.has_open_ranks:  # the launcher of a lost host may end before the host is silent
            patience += server.limits.silence
        if ended and now - ended > patience:
            return _launcher_failure(status, server)


def _own_status(processes: Processes) -> int:
    """Return the exit status of a failing single rank, with signals encoded as shells do."""
    until = time.monotonic() + _VERDICT_SECONDS
    while (status := processes.poll()) is None and time.monotonic() < until:
        time.sleep(0.01)
    if status is not None and status < 0:
        return 128 - status
    return status or 1


def _launcher_failure(status: int | None, server: ControlServer) -> Failure:
    how = "does not end" if status is None else f"ended with status {status}"
    joined = len(server.hosts)
    state = "all ranks have ended" if server.over else f"{joined} ranks joined, not all have ended"
    return Failure("launcher", -1, "", 0, "", f"the launcher {how}: {state}")


def check_script(script: str) -> None:
    """Raise `LaunchError` if a script does not exist, before anything is started."""
    if not can_run(script):
        found = "a folder without a __main__.py" if os.path.isdir(script) else "no such file"
        raise LaunchError(f"running {script}", found=found, allowed="a Python script")
