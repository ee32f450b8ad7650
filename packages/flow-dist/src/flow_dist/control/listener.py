"""The control server's listening socket, hardened against connections of other programs.

Unauthenticated connections are limited in number and time, and accepted at a limited rate.  Only
some dropped connections get a line in the log; the others are counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from flow_dist.bootstrap.membership import LaunchError

LOG = logging.getLogger(__name__)

MAX_UNAUTHENTICATED = 64
"""Maximum number of unauthenticated connections, in addition to one per missing rank."""

BACKLOG = 4096
"""Number of connections that may wait to be accepted, as far as the system allows; all ranks may
connect at once."""

ACCEPT_RATE = 50
"""Number of connections accepted per second once all ranks have joined; before that, there is no
limit."""

LOG_LINES, LOG_PERIOD = 8, 60.0
"""Number of log lines about dropped connections per period, and the period in seconds."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


_OTHER_FILES = 128
"""Number of file descriptors that the server's process may need besides its connections."""


def allow_connections(count: int) -> None:
    """Raise this process's limit on open files to the number that its connections need.

    Raises `LaunchError` if the system does not allow that many open files.
    """
    needed = count + len(os.listdir("/proc/self/fd")) + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LaunchError(
            f"opening {count} connections to ranks",
            found=f"a limit of {hard} open files per process",
            allowed=f"{needed} files",
            hint=f"raise the limit before starting the program: ulimit -Hn {needed}",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Listener:
    """A socket that accepts connections on one address and passes them to a handler.

    Args:
        address, port: where to listen; port 0 selects any free port.
        serve: handles a connection, and closes it.
        missing: number of ranks that are expected to join.

    Raises:
        OSError: the address is not available.
    """

    def __init__(self, address: str, port: int, serve: Serve, missing: int) -> None:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.create_server(place[:2], family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]  # the port on which the listener listens
        # Number of ranks that have not joined; once it is 0, the accept rate is limited.
        self.missing = missing
        self._serve = serve
        self._unauthenticated: dict[asyncio.StreamWriter, str] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._drops = DropLog()

    async def run(self) -> None:
        """Accept connections until cancelled."""
        while True:
            await self._readable()
            try:  # not loop.sock_accept, which loses a connection if it is cancelled in its turn
                connection, _ = self._socket.accept()
            except BlockingIOError:
                continue
            except OSError as error:  # out of descriptors, for example
                LOG.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(1.0)
                continue
            await self._start_serving(connection)
            await asyncio.sleep(1 / ACCEPT_RATE if self.missing == 0 else 0)

    async def _readable(self) -> None:
        """Wait for a connection."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._socket, _finish, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._socket)

    async def _start_serving(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
        except OSError:  # already disconnected
            connection.close()
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        peer = writer.get_extra_info("peername") or ("", 0)
        self._evict()
        self._unauthenticated[writer] = str(peer[0])
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(partial(self._served, writer))

    def _served(self, writer: asyncio.StreamWriter, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # before the handler began, which else closes the connection
            self.release(writer)
            writer.transport.abort()

    def _evict(self) -> None:
        """At the limit, abort the oldest connection of the host with the most connections."""
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED + self.missing:
            host = Counter(self._unauthenticated.values()).most_common(1)[0][0]
            oldest = next(writer for writer, of in self._unauthenticated.items() if of == host)
            self.release(oldest)
            oldest.transport.abort()

    def release(self, writer: asyncio.StreamWriter) -> None:
        """Stop counting a connection that has authenticated or closed."""
        self._unauthenticated.pop(writer, None)

    def log_drop(self, peer: object, reason: str) -> None:
        self._drops.add(peer, " ".join(reason.split()), time.monotonic())

    def close(self) -> None:
        self._socket.close()
        self._drops.flush()


def _finish(future: asyncio.Future[None]) -> None:
    """Set the result of a future, which the loop may do more than once before it is awaited."""
    if not future.done():
        future.set_result(None)


class DropLog:
    """A rate-limited log of dropped connections."""

    def __init__(self) -> None:
        self.unlogged = 0  # number of drops without a line of their own
        self._lines = 0
        self._since = 0.0
        self._last = ""

    def add(self, peer: object, reason: str, now: float) -> None:
        """Log a drop, or count it if the period's lines are used up."""
        if now - self._since > LOG_PERIOD:
            self.flush()
            self._lines, self._since = 0, now
        self._last = f"{peer}: {reason}"
        if self._lines < LOG_LINES:
            self._lines += 1
            LOG.warning("dropped a connection from %s", self._last)
        else:
            self.unlogged += 1

    def flush(self) -> None:
        """Log the number of drops that have no line of their own."""
        if self.unlogged:
            text = "dropped %d more connections, the last from %s"
            LOG.warning(text, self.unlogged, self._last)
            self.unlogged = 0
