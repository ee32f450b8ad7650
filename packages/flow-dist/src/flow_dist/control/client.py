"""The client side of the control channel: heartbeats, goodbye, failure reports, stop orders."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from flow_core.base.errors import FlowError
from flow_dist.bootstrap.engines import tell_engine
from flow_dist.bootstrap.membership import LaunchError, Membership
from flow_dist.control.board import FIRST_JOB
from flow_dist.control.ranges import unpack_equal
from flow_dist.control.report import Reporter
from flow_dist.control.server import HANDSHAKE
from flow_dist.control.termination import prepare
from flow_dist.control.watch import WATCH, Watch, line_of
from flow_dist.control.wire import (
    TO_RANK,
    Framing,
    Message,
    WireError,
    field,
    pack,
    prove,
    random_token,
    verify,
)

LOG = logging.getLogger(__name__)

STOPPED = 1
"""Exit status of a rank that is stopped because another rank has failed."""

_OWN_END = 2.0
"""Seconds within which a rank may end by itself after an exception."""


_ATTEMPTS = 4
"""Number of attempts to join, as a listener at its limit may evict the connection."""


class _AuthenticationError(WireError):
    """The server does not know the token, so retrying cannot help."""


class _RefusedError(WireError):
    """The server knows the token, but not this rank of this number of ranks."""

    again = False
    """Whether the server may belong to an earlier start of the program, which ends soon."""


class JobStoppedError(FlowError):
    """Another rank has failed, so this rank cannot continue."""


class ControlClient:
    """A rank's connection to the `ControlServer`.

    Raises:
        LaunchError: the server cannot be reached, or rejects this rank.
    """

    def __init__(
        self,
        membership: Membership,
        address: str,  # address of the server
        port: int,
        token: str,  # the secret of the job
        *,
        watch: Watch | None = None,  # the record of where this process waits; `WATCH` if None
        # Called with a message in the client's thread when the job is stopped; if None, the process
        # is terminated.
        stop: Callable[[str], None] | None = None,
        # Seconds for which connecting is retried, as the server may start later.
        patience: float = 30.0,
    ) -> None:
        self.membership = membership
        self.hosts: tuple[str, ...] = ()  # the hosts of all ranks, once all have joined
        self.in_child = False  # whether this is a forked child, whose parent owns the connection
        # Exit status of a process that is failing, and the exception that ends the process.
        self.failing: tuple[int, BaseException | None] = 0, None
        self._watch = watch or WATCH
        self._reporter = Reporter(self._watch)
        self._stop = stop or end_process
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._gathered: dict[str, tuple[list[Any], object]] = {}
        self._started = self._said_goodbye = self._closed = self._failed = False
        self._at_end: list[Callable[[], None]] = []
        self._server = f"{address}:{port}"
        self._beat, self._silence = self._join(address, port, token, time.monotonic() + patience)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="flow-heartbeat", daemon=True)
        self._thread.start()

    # -------------------------------------------------------------- start and end

    def _join(self, address: str, port: int, token: str, until: float) -> tuple[float, float]:
        """Connect and authenticate; retry if a listener at its limit evicts the connection."""
        failures = 0
        while True:
            self._early: list[Message] = []
            self._framing = Framing(TO_RANK)
            self._socket = self._connected(address, port, until)
            try:
                return self._handshake(token)
            except _RefusedError as error:
                self._socket.close()
                if not error.again or time.monotonic() > until:
                    raise self._rejected(error) from error
            except (OSError, WireError) as error:
                self._socket.close()
                failures += 1
                if failures == _ATTEMPTS or isinstance(error, _AuthenticationError):
                    raise self._rejected(error) from error
            time.sleep(0.1 * (failures or 1))

    def _rejected(self, error: Exception) -> LaunchError:
        attempted = f"joining the job at {self._server} as {self.membership}"
        if isinstance(error, _RefusedError):
            hint = "start as many processes as their engine's variables say, each rank once"
            return LaunchError(attempted, found=error.found, allowed=error.allowed, hint=hint)
        return LaunchError(
            attempted,
            found=str(error) or type(error).__name__,
            allowed="the control server of this job, with the same token, waiting for this rank",
            hint="if the launcher passes no FLOW_DIST_TOKEN, the token comes from ~/.config/"
            "flow-dist/secret: copy it from one host to all others, or export the same "
            "FLOW_DIST_TOKEN on all hosts",
        )

    def _connected(self, address: str, port: int, until: float) -> socket.socket:
        while True:
            try:
                return socket.create_connection((address, port), HANDSHAKE)
            except OSError as error:
                if time.monotonic() > until:
                    raise LaunchError(
                        f"joining the job at {self._server}", found=str(error)
                    ) from error
            time.sleep(0.1)

    def _handshake(self, token: str) -> tuple[float, float]:
        theirs = field(self._receive_first(), "nonce", str)
        nonce, own = random_token(), self.membership
        hello = {"is": "hello", "rank": own.rank, "size": own.size, "host": own.host}
        proof = prove(token, "rank", theirs, nonce)
        self._send({**hello, "nonce": nonce, "proof": proof})
        welcome = self._receive_first()
        if not verify(token, "server", welcome.get("proof"), nonce, theirs):
            raise _AuthenticationError("a server", found="no proof of the job's token")
        if welcome.get("is") == "refused":
            found, allowed = (field(welcome, name, str) for name in ("why", "allowed"))
            refused = _RefusedError("a server", found=found, allowed=allowed)
            refused.again = field(welcome, "again", bool)
            raise refused
        self._socket.settimeout(HANDSHAKE)
        return float(field(welcome, "beat", float)), float(field(welcome, "silence", float))

    def _receive_first(self) -> Message:
        if self._early:
            return self._early.pop(0)
        while data := self._socket.recv(1 << 16):
            self._early += self._framing.feed(data)
            if self._early:
                return self._early.pop(0)
        raise WireError("a server", found="the end of the connection")

    def start(self, seconds: float | None = None) -> tuple[str, ...]:
        """Wait until all ranks have joined; return their hosts in rank order.

        Args:
            seconds: maximum wait; if None, only the limits of the server apply.
        """
        self._await(lambda: self._started, seconds, "waiting for all ranks to join")
        return self.hosts

    def at_end(self, action: Callable[[], None]) -> None:
        """Register an action before the goodbye of a process that succeeds; the last runs first."""
        self._at_end.append(action)

    def finish(self) -> None:
        """Run the registered actions, then say goodbye."""
        for action in self._at_end[::-1] if not (self._failed or self._closed) else ():
            action()
        self.goodbye()

    def goodbye(self, status: int = 0) -> None:
        """Report that this rank has ended; does nothing after a goodbye or an error."""
        if self._said_goodbye or self._closed or self._failed:
            return
        self._said_goodbye = True
        self._send_report({"is": "bye", "exit": status})
        with self._changed:  # the reply shows that the message arrived before the process exits
            self._changed.wait_for(lambda: self._closed, 2.0)
        self.close()

    def fail(self) -> None:
        """Report that this rank fails, with its exit status or its exception."""
        status, error = self.failing
        if error is None:
            self.goodbye(status)
        else:
            self.raised(error)

    def detach_in_child(self) -> None:
        """Detach a forked child: the connection belongs to the parent alone."""
        self._sending, self._changed = threading.Lock(), threading.Condition()
        self._closed = self.in_child = True
        self._socket.close()

    def close(self) -> None:
        """Close the connection without a message."""
        self._end()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join(2.0)
        self._socket.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.goodbye()
        else:
            self.raised(error)
            self.close()

    def raised(self, error: BaseException) -> None:
        """Report that an exception ends this rank's program."""
        if not (self._failed or self._closed):
            self._failed = True
            message = describe_error(error)
            tell_engine(self.membership.source, message)
            self._send_report({"is": "raised", "error": message})

    # ------------------------------------------------------------------- exchange

    def wait_for_first_job(self) -> None:
        """Wait until all ranks have reached their first job, however long that takes.

        MPI_Init also waits for all ranks, but holds the interpreter lock meanwhile, so a waiting
        rank would send no heartbeats and the server would consider the rank dead.
        """
        self.gather(FIRST_JOB, None)

    def gather(self, key: str, value: Any, seconds: float | None = None) -> list[Any]:
        """All-gather a JSON value that is smaller than 1 MB.

        Args:
            key: equal in all ranks.
            seconds: maximum wait; if None, only the limits of the server apply.

        Raises:
            JobStoppedError: the job ends before all ranks have sent their values.
            LaunchError: the wait has timed out, or all values together are too large.
        """
        ranks = range(self.membership.size)
        what = "control values"
        with self._watch.site(f"gather {key}", what, ranks=ranks, lane="control"):
            self._send({"is": "gather", "key": key, "value": value})
            self._await(lambda: key in self._gathered, seconds, f"gathering {key!r}")
        values, problem = self._gathered.pop(key)
        if problem is not None:
            raise LaunchError(f"gathering {key!r}", found=str(problem), allowed="smaller values")
        return values

    def _await(self, done: Callable[[], bool], seconds: float | None, attempted: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: done() or self._closed, seconds)
        if done():
            return
        if self._closed:
            raise JobStoppedError(attempted, found="the end of the job")
        raise LaunchError(attempted, found=f"not all ranks within {seconds:g} s")

    # ----------------------------------------------------------------- the thread

    def _send(self, message: Message) -> None:
        data = pack(message)
        with self._sending, contextlib.suppress(OSError):  # the thread detects a lost connection
            self._socket.sendall(data)

    def _send_report(self, message: Message) -> None:
        """Send a message with the changes of the position; the changes are sent in order."""
        with self._sending, contextlib.suppress(OSError):
            changes = self._reporter.changes()
            self._socket.sendall(pack({**message, "report": changes} if changes else message))

    def _run(self) -> None:
        heard = beaten = time.monotonic()
        for message in self._early:
            self._handle(message)
        while not self._closed:
            now = time.monotonic()
            if now >= beaten:
                self._send_report({"is": "beat"})
                beaten = now + self._beat
            if self._read(beaten - now):
                heard = time.monotonic()
            elif now - heard > self._silence:  # tested after a read: this process may have slept
                self._lost(f"has not responded for {now - heard:.1f} s")

    def _read(self, seconds: float) -> bool:
        try:
            if not self._readable.poll(max(seconds, 0) * 1000):
                return False
            data = self._socket.recv(1 << 16)
            for message in self._framing.feed(data):
                self._handle(message)
        except (OSError, ValueError) as error:  # ValueError: closed by another thread, or WireError
            self._lost(str(error))
            return False
        if not data:
            self._lost("has closed the connection")
        return bool(data)

    def _handle(self, message: Message) -> None:
        kind = message.get("is")
        if kind == "stop":
            self._halt(str(message.get("message", "")))
        elif kind == "where":
            self._send_report({"is": "beat"})
        elif kind == "bye":
            self._end()
        elif kind in ("start", "gathered"):
            with self._changed:
                if kind == "start":
                    self.hosts = tuple(unpack_equal(field(message, "hosts", list)))
                    self._started = True
                else:
                    values = unpack_equal(field(message, "values", list))
                    self._gathered[field(message, "key", str)] = values, message.get("problem")
                self._changed.notify_all()

    def _lost(self, how: str) -> None:
        if not (self._closed or self._said_goodbye or self._failed):
            message = f"{self.membership} lost its control server at {self._server}, which {how}"
            if self._stop is end_process:  # neither this function nor the server prints anything
                LOG.error("%s", message)
            self._halt(message)

    def _halt(self, message: str) -> None:
        """Terminate before waiting threads notice the end and raise errors of their own."""
        if self._failed:  # a failing process ends by itself, unless it waits for others
            time.sleep(_OWN_END)
        if not self._said_goodbye:
            prepare(message)
            self._stop(message)
        self._end()

    def _end(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def describe_error(error: BaseException) -> str:
    """Return a short description of an exception, with the user's source line if it is known."""
    at, trace = "", error.__traceback__
    while trace is not None:
        at = line_of_entry(trace) or at
        trace = trace.tb_next
    own = getattr(error, "at", None)
    where = str(own) if own is not None else at
    text = f"{type(error).__name__}: {error}".removesuffix(": ")[:8000]
    return text + (f" (at {where})" if where and where not in text else "")


def line_of_entry(trace: TracebackType) -> str:
    """Return the source line of one traceback entry if it is in a user's file, else ""."""
    inner, frame = line_of(trace.tb_frame), trace.tb_frame
    mine = f"{frame.f_code.co_filename}:{frame.f_lineno}" == inner
    return f"{frame.f_code.co_filename}:{trace.tb_lineno}" if mine else ""


def end_process(message: str) -> None:
    """Terminate this process at once, whatever its threads wait for."""
    flush = threading.Thread(target=flush_streams, daemon=True)
    flush.start()
    flush.join(0.5)  # the main thread may hold a stream's lock
    os._exit(STOPPED)


def flush_streams() -> None:
    """Flush the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def watch_exit(client: ControlClient) -> None:
    """Say goodbye when the interpreter exits, and report any exception that ends the program."""
    usual = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        usual(kind, error, traceback)
        client.raised(error)

    def leave() -> None:
        if client.in_child:
            return
        if client.failing[0]:
            client.fail()
            return
        try:
            _sync_session()
            client.finish()
        except BaseException as error:  # noqa: BLE001 - reported, then the process is terminated
            sys.excepthook(type(error), error, error.__traceback__)
            end_process("")

    sys.excepthook = hook
    atexit.register(leave)


def _sync_session() -> None:
    """Wait for asynchronous steps before the goodbye, as other ranks may take part in them."""
    session = sys.modules.get("flow_core.frontend.session.default")
    if session is not None:
        session.sync_default_session()
