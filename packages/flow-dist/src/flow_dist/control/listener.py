"""The door of the control server: who knocks has to prove something soon, and harms nobody else.

Whatever strangers do, connections that have proven nothing are few, each has its time, a flood of
them is let in at a pace, and the log has a line for some and a number for the rest.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable

LOG = logging.getLogger(__name__)

STRANGERS = 64
"""Connections that may be busy with proving that they belong to the job at the same time."""

EACH_SECOND = 50
"""Connections that are let in per second once all ranks have come; more before."""

LINES, PERIOD = 8, 60.0
"""Strangers that get a line of their own in the log, per so many seconds."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Door:
    """Listens on one address and hands connections on.

    Args:
        address, port: where; port 0 for any that is free.
        serve: takes a connection; it closes it.

    Attributes:
        port: where it listens.
        complete: whether nobody else is awaited, so that there is no hurry.

    Raises:
        OSError: nobody can listen there.
    """

    def __init__(self, address: str, port: int, serve: Serve) -> None:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.create_server(place[:2], family=family)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self.complete = False
        self._serve = serve
        self._strangers: dict[asyncio.StreamWriter, str] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._dropped = Dropped()

    async def run(self) -> None:
        """Lets connections in, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # no descriptors are left for the moment, for example
                LOG.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(1.0)
                continue
            await self._hand_on(connection)
            await asyncio.sleep(1 / EACH_SECOND if self.complete else 0)

    async def _hand_on(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
        except OSError:  # it is gone already
            connection.close()
            return
        peer = writer.get_extra_info("peername") or ("", 0)
        self._make_room()
        self._strangers[writer] = str(peer[0])
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_room(self) -> None:
        """Shows the oldest stranger out, of the host that has sent most of them."""
        if len(self._strangers) >= STRANGERS:
            host = Counter(self._strangers.values()).most_common(1)[0][0]
            oldest = next(writer for writer, of in self._strangers.items() if of == host)
            self.known(oldest)
            oldest.transport.abort()

    def known(self, writer: asyncio.StreamWriter) -> None:
        """A connection is no stranger's any more, or is gone."""
        self._strangers.pop(writer, None)

    def dropped(self, peer: object, reason: str) -> None:
        """Takes note of a connection that was dropped."""
        self._dropped.note(peer, " ".join(reason.split()), time.monotonic())

    def close(self) -> None:
        """Listens no longer."""
        self._socket.close()
        self._dropped.say_rest()


class Dropped:
    """The log of what was dropped: a flood does not fill it.

    Attributes:
        rest: how many have had no line.
    """

    def __init__(self) -> None:
        self.rest = 0
        self._lines = 0
        self._since = 0.0
        self._last = ""

    def note(self, peer: object, reason: str, now: float) -> None:
        """A line for a connection, or one more among the rest."""
        if now - self._since > PERIOD:
            self.say_rest()
            self._lines, self._since = 0, now
        self._last = f"{peer}: {reason}"
        if self._lines < LINES:
            self._lines += 1
            LOG.warning("dropped what came from %s", self._last)
        else:
            self.rest += 1

    def say_rest(self) -> None:
        """A line for those that have had none."""
        if self.rest:
            LOG.warning("dropped %d more connections, the last from %s", self.rest, self._last)
            self.rest = 0
