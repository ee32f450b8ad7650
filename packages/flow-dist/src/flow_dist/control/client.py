"""A rank's end of the control channel: signs of life, goodbyes, errors, and the order to stop."""

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
from flow_dist.bootstrap.membership import LaunchError, Membership
from flow_dist.control.board import FIRST_JOB
from flow_dist.control.server import HANDSHAKE
from flow_dist.control.termination import prepare
from flow_dist.control.watch import WATCH, Watch, line_of
from flow_dist.control.wire import (
    TO_RANK,
    Framing,
    Message,
    WireError,
    field,
    fresh,
    pack,
    prove,
    proven,
)

LOG = logging.getLogger(__name__)

STOPPED = 1
"""Exit status of a rank that is stopped because another one has failed."""

_OWN_END = 2.0
"""Seconds that a rank has for its own end after its exception."""


_ATTEMPTS = 4
"""How often a rank knocks: a door that strangers throng may have shown it out."""


class _NotBelievedError(WireError):
    """A server that does not know the token: there is no use in asking again."""


class JobStoppedError(FlowError):
    """Another rank has failed, so that this one cannot go on."""


class ControlClient:
    """A rank's connection to the `ControlServer`.

    Args:
        membership: which rank this is.
        address, port: where the server is.
        token: the secret of the job.
        watch: where this process is; the process's own when None.
        stop: called with a message in the client's thread when the job is to stop; ends the
            process when None.
        patience: seconds to try for, as the server may start later.

    Attributes:
        membership: which rank this is.
        hosts: of all ranks, once they have all come.
        left: whether this is a forked process, and the connection its parent's.
        failing: the status that this process ends with, and the exception that ends it, if any.

    Raises:
        LaunchError: nobody is there, or it does not know the token.
    """

    def __init__(
        self,
        membership: Membership,
        address: str,
        port: int,
        token: str,
        *,
        watch: Watch | None = None,
        stop: Callable[[str], None] | None = None,
        patience: float = 30.0,
    ) -> None:
        self.membership = membership
        self.hosts: tuple[str, ...] = ()
        self.left = False
        self.failing: tuple[int, BaseException | None] = 0, None
        self._watch = watch or WATCH
        self._stop = stop or end_process
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._gathered: dict[str, list[Any]] = {}
        self._started = self._byed = self._closed = self._failed = False
        self._at_end: list[Callable[[], None]] = []
        self._server = f"{address}:{port}"
        self._beat, self._silence = self._join(address, port, token, time.monotonic() + patience)
        self._thread = threading.Thread(target=self._run, name="flow-heartbeat", daemon=True)
        self._thread.start()

    # -------------------------------------------------------------- start and end

    def _join(self, address: str, port: int, token: str, until: float) -> tuple[float, float]:
        """Connects and proves itself; again where strangers throng the door."""
        attempt = 0
        while True:
            attempt += 1
            self._early: list[Message] = []
            self._framing = Framing(TO_RANK)
            self._socket = self._connected(address, port, until)
            try:
                return self._handshake(token)
            except (OSError, WireError) as error:
                self._socket.close()
                if attempt == _ATTEMPTS or isinstance(error, _NotBelievedError):
                    raise self._refused(error) from error
            time.sleep(0.1 * attempt)

    def _refused(self, error: Exception) -> LaunchError:
        return LaunchError(
            f"joining the job at {self._server} as {self.membership}",
            found=str(error) or type(error).__name__,
            allowed="the control server of this job, which knows its token and wants this rank",
            hint="where a launcher tells no FLOW_DIST_TOKEN, it comes from ~/.config/flow-dist/"
            "secret: copy that of one host to all others, or export the same variable on all",
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
        theirs = field(self._first(), "nonce", str)
        nonce, place = fresh(), self.membership
        hello = {"is": "hello", "rank": place.rank, "size": place.size, "host": place.host}
        proof = prove(token, "rank", theirs, nonce)
        self._send({**hello, "nonce": nonce, "proof": proof})
        welcome = self._first()
        if not proven(token, "server", welcome.get("proof"), nonce, theirs):
            raise _NotBelievedError("a server", found="no proof of the job's token")
        self._socket.settimeout(HANDSHAKE)
        return float(field(welcome, "beat", float)), float(field(welcome, "silence", float))

    def _first(self) -> Message:
        if self._early:
            return self._early.pop(0)
        while data := self._socket.recv(1 << 16):
            self._early += self._framing.feed(data)
            if self._early:
                return self._early.pop(0)
        raise WireError("a server", found="the end of the connection")

    def start(self, seconds: float | None = None) -> tuple[str, ...]:
        """Wait until all ranks have connected; return their hosts in the order of the ranks.

        Args:
            seconds: the longest wait; when None, the server's limits alone decide.
        """
        self._await(lambda: self._started, seconds, "waiting for all ranks to come")
        return self.hosts

    def at_end(self, action: Callable[[], None]) -> None:
        """Something to do when the process ends well, before its goodbye; the last one first."""
        self._at_end.append(action)

    def leave(self) -> None:
        """Does what is to be done at the end, and says goodbye."""
        for action in self._at_end[::-1] if not (self._failed or self._closed) else ():
            action()
        self.bye()

    def bye(self, status: int = 0) -> None:
        """Says that this rank has ended; a second time, or after an error, says nothing."""
        if self._byed or self._closed or self._failed:
            return
        self._byed = True
        self._send({"is": "bye", "exit": status, "status": self._watch.report()})
        with self._changed:  # the answer shows that it has arrived before the process is gone
            self._changed.wait_for(lambda: self._closed, 2.0)
        self.close()

    def fail(self) -> None:
        """Say how this rank fails."""
        status, error = self.failing
        if error is None:
            self.bye(status)
        else:
            self.raised(error)

    def leave_to_parent(self) -> None:
        """In a forked process: the connection is the parent's, and ends with that alone."""
        self._sending, self._changed = threading.Lock(), threading.Condition()
        self._closed = self.left = True
        self._socket.close()

    def close(self) -> None:
        """Ends the connection without a word."""
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
            self.bye()
        else:
            self.raised(error)
            self.close()

    def raised(self, error: BaseException) -> None:
        """Says that an exception ends this rank's program."""
        if not (self._failed or self._closed):
            self._failed = True
            self._send({"is": "raised", "error": text_of(error), "status": self._watch.report()})

    # ------------------------------------------------------------------- exchange

    def meet(self) -> None:
        """Wait for all ranks to reach their first job, however far apart they are.

        MPI's own start also waits for all ranks, but it holds Python's lock: no heartbeat would
        leave a rank that waits there, and the server would take it for dead.
        """
        self.gather(FIRST_JOB, None)

    def gather(self, key: str, value: Any, seconds: float | None = None) -> list[Any]:
        """Gives a small value (what JSON has, below 60 KiB) and gets those of all ranks.

        Args:
            key: the same in all ranks.
            value: this rank's.
            seconds: the longest wait; when None, the server's limits alone decide.

        Raises:
            JobStoppedError: the job ends before all have given theirs.
            LaunchError: time is over.
        """
        ranks = range(self.membership.size)
        what = "control values"
        with self._watch.site(f"gather {key}", what, ranks=ranks, lane="control"):
            self._send({"is": "gather", "key": key, "value": value})
            self._await(lambda: key in self._gathered, seconds, f"gathering {key!r}")
        return self._gathered.pop(key)

    def _await(self, done: Callable[[], bool], seconds: float | None, attempted: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: done() or self._closed, seconds)
        if done():
            return
        if self._closed:
            raise JobStoppedError(attempted, found="the end of the job")
        raise LaunchError(attempted, found=f"not all of them within {seconds:g} s")

    # ----------------------------------------------------------------- the thread

    def _send(self, message: Message) -> None:
        data = pack(message)
        with self._sending, contextlib.suppress(OSError):  # the thread notices that it is gone
            self._socket.sendall(data)

    def _run(self) -> None:
        heard = beaten = time.monotonic()
        for message in self._early:
            self._take(message)
        while not self._closed:
            now = time.monotonic()
            if now >= beaten:
                self._send({"is": "beat", "status": self._watch.report()})
                beaten = now + self._beat
            if self._read(beaten - now):
                heard = time.monotonic()
            elif now - heard > self._silence:  # seen after reading: this process may have slept
                self._lost(f"has not answered for {now - heard:.1f} s")

    def _read(self, seconds: float) -> bool:
        try:
            if not select.select([self._socket], [], [], max(seconds, 0))[0]:
                return False
            data = self._socket.recv(1 << 16)
            for message in self._framing.feed(data):
                self._take(message)
        except (OSError, ValueError) as error:  # ValueError: closed by another thread, or WireError
            self._lost(str(error))
            return False
        if not data:
            self._lost("has closed the connection")
        return bool(data)

    def _take(self, message: Message) -> None:
        kind = message.get("is")
        if kind == "stop":
            self._halt(str(message.get("message", "")))
        elif kind == "where":
            self._send({"is": "beat", "status": self._watch.report()})
        elif kind == "bye":
            self._end()
        elif kind in ("start", "gathered"):
            with self._changed:
                if kind == "start":
                    self.hosts, self._started = tuple(field(message, "hosts", list)), True
                else:
                    self._gathered[field(message, "key", str)] = field(message, "values", list)
                self._changed.notify_all()

    def _lost(self, how: str) -> None:
        if not (self._closed or self._byed or self._failed):
            message = f"{self.membership} lost its control server at {self._server}, which {how}"
            if self._stop is end_process:  # which says nothing: nobody else can, either
                LOG.error("%s", message)
            self._halt(message)

    def _halt(self, message: str) -> None:
        """Stops before anybody is told, who would raise an error of its own."""
        if self._failed:  # it is ending by itself, unless it waits for others at its end
            time.sleep(_OWN_END)
        if not self._byed:
            prepare(message)
            self._stop(message)
        self._end()

    def _end(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def text_of(error: BaseException) -> str:
    """An exception in short, with the user's line: "ValueError: no such file (train.py:3)"."""
    at, trace = "", error.__traceback__
    while trace is not None:
        at = line_of_only(trace) or at
        trace = trace.tb_next
    own = getattr(error, "at", None)
    where = str(own) if own is not None else at
    text = f"{type(error).__name__}: {error}".removesuffix(": ")[:8000]
    return text + (f" (at {where})" if where and where not in text else "")


def line_of_only(trace: TracebackType) -> str:
    """The line of one frame of a traceback if it is the user's, else ""."""
    inner, frame = line_of(trace.tb_frame), trace.tb_frame
    mine = f"{frame.f_code.co_filename}:{frame.f_lineno}" == inner
    return f"{frame.f_code.co_filename}:{trace.tb_lineno}" if mine else ""


def end_process(message: str) -> None:
    """Ends this process at once, whatever its threads wait for."""
    flush = threading.Thread(target=flush_streams, daemon=True)
    flush.start()
    flush.join(0.5)  # the main thread may hold the lock of a stream
    os._exit(STOPPED)


def flush_streams() -> None:
    """Write what is still in the buffers of the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def watch_exit(client: ControlClient) -> None:
    """Says goodbye when the interpreter ends, and reports the exception that ends it, if any."""
    usual = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        usual(kind, error, traceback)
        client.raised(error)

    def leave() -> None:
        if client.left:
            return
        if client.failing[0]:
            client.fail()
            return
        try:
            _deliver()
            client.leave()
        except BaseException as error:  # noqa: BLE001 - shown, reported and the end of the process
            sys.excepthook(type(error), error, error.__traceback__)
            end_process("")

    sys.excepthook = hook
    atexit.register(leave)


def _deliver() -> None:
    """Waits for asynchronous steps, which others may take part in: a goodbye comes after them."""
    session = sys.modules.get("flow_core.frontend.session.session")
    if session is not None:
        session.sync_default_session()
