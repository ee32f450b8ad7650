"""The HTTP server: uvicorn with bounds on slow clients, reload and graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flow_core.base.errors import ConfigError
from flow_serve.app import App, error_answer, is_loopback
from flow_serve.info import Source, find_models
from flow_serve.metrics import Metrics
from flow_serve.pool import Pool, Setup
from flow_serve.settings import HEAD_BYTES, READ_BYTES, Limits, Refused

_log = logging.getLogger("flow_serve")
SHORTEST_TOKEN = 16


class Connection(HttpToolsProtocol):
    """A connection that is closed if the client sends a head, or reads an answer, too slowly.

    Errors before a request reaches the application are JSON, too.
    """

    limits = Limits()

    def connection_made(self, transport: Any) -> None:
        """Start to watch the client; refuse it if there are too many connections."""
        super().connection_made(transport)
        self._head_since: float | None = self.loop.time()
        self._head_bytes = self._answers = 0
        self._seen = (0, 0)
        self._watch = self.loop.call_later(self.limits.client_seconds, self._check)
        if len(self.connections) > self.limits.connections:
            self._refuse(Refused("overloaded", "too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to watch the client."""
        self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Note when the head of a request begins."""
        if self._head_since is None and self._is_idle:
            self._head_since = self.loop.time()
        super().data_received(data)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        """Count the bytes of a head from 0, also of one that follows another request."""
        super().on_message_begin()
        self._head_bytes = 0
        self._head_since = self._head_since or self.loop.time()

    def on_url(self, url: bytes) -> None:
        """Bound the request target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Bound the headers."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        self._head_since = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Note that the client has read most of the earlier answers."""
        self._answers += 1
        if self._head_since is not None:
            self._head_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        if self._head_bytes > HEAD_BYTES:
            self._refuse(Refused("head_too_large", f"allowed: {HEAD_BYTES} bytes of headers"))
        else:
            self._refuse(Refused("invalid_request", msg))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            raise ValueError("the head is too large")  # the parser calls `send_400_response`

    def _refuse(self, error: Refused) -> None:
        answer = error_answer(error, close=True)
        lines = [f"HTTP/1.1 {answer.status} {error.reason}".encode()]
        lines += [b"%b: %b" % header for header in answer.headers]
        self.transport.write(b"\r\n".join((*lines, b"", answer.body)))
        self.transport.close()

    def _check(self) -> None:
        seconds, now = self.limits.client_seconds, self.loop.time()
        late = self._head_since is not None and now - self._head_since >= seconds
        if late and self._is_idle:
            self._refuse(Refused("slow_client", f"no request within {seconds:g} s"))
        unread, (answers, before) = self.transport.get_write_buffer_size(), self._seen
        if answers == self._answers and unread > max(0, before - READ_BYTES) and before:
            self.transport.abort()
            return
        self._seen = (self._answers, unread)
        self._watch = self.loop.call_later(seconds, self._check)


class Server(uvicorn.Server):
    """uvicorn's server with a handler of SIGHUP, and status 0 after SIGTERM or SIGINT."""

    reload: Callable[[], None] = staticmethod(lambda: None)  # called at SIGHUP
    listening: Callable[[], None] = staticmethod(lambda: None)  # called when clients can connect

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)


def check_token(host: str, token: str) -> None:
    """Require a token for addresses that other machines reach.

    Raises: ConfigError: there is none, or it is short.
    """
    if token and len(token) < SHORTEST_TOKEN:
        allowed = f"at least {SHORTEST_TOKEN} characters"
        raise ConfigError("reading the token", found=f"{len(token)} characters", allowed=allowed)
    if not token and not is_loopback(host):
        raise ConfigError(
            f"serving at {host}",
            found="an address that other machines reach, and no token",
            allowed="127.0.0.1, ::1 and localhost without a token",
            hint="put a random text into a file and pass --token-file, or set FLOW_SERVE_TOKEN",
        )


def bind(host: str, port: int) -> socket.socket:
    """Return a socket with an address, which does not listen yet.

    Raises: ConfigError: the address cannot be used.
    """
    attempted = f"serving at {host}:{port}"
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = infos[0]
        # asyncio turns Nagle's algorithm off only for sockets that were made with their protocol;
        # on others, the body of an answer waits for the acknowledgment of its headers: 40 ms
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
        except OSError:
            found.close()
            raise
    except OSError as error:
        raise ConfigError(attempted, found=str(error), allowed="a free address") from error
    return found


async def serve(
    folder: Path,
    setup: Setup,  # how workers are started; its sources are those of the folder
    listener: socket.socket,  # the address, as `bind` returns it
    token: str,
    versions: int,  # versions per model
    told: Callable[[str], None],  # called with lines for the user
) -> None:
    """Serve the models in a folder until a signal ends the server."""
    metrics = Metrics()
    pool = Pool(replace(setup, sources=find_models(folder, versions)), metrics)
    await pool.start()
    app = App(pool, metrics, setup.limits, token)
    limits = {"limits": setup.limits}
    config = uvicorn.Config(
        app, http=type("Connection", (Connection,), limits), ws="none", lifespan="off",
        log_config=None, access_log=False, server_header=False,
    )  # fmt: skip
    server = Server(config)
    reloads = _Reloads(app, folder, setup, versions, metrics)
    server.reload = reloads.begin
    for info in (info for each in pool.models.values() for info in each.values()):
        note = f"; no batches: {info.note}" if info.note else f", up to {info.rows} rows"
        told(f"model {info.name!r}, version {info.version}{note}")
    host, port = listener.getsockname()[:2]
    where = f"[{host}]" if ":" in host else host
    server.listening = lambda: told(f"serving at http://{where}:{port}")
    try:
        await server.serve([listener])
    finally:
        await reloads.end()
        await app.pool.close()


class _Reloads:
    """Replaces the pool of an application by one with the present models, one at a time."""

    def __init__(
        self, app: App, folder: Path, setup: Setup, versions: int, metrics: Metrics
    ) -> None:
        self._app, self._folder, self._setup = app, folder, setup
        self._versions, self._metrics = versions, metrics
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._again = False

    def begin(self) -> None:
        """Reload; after the present reload, if there is one."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._again:
            self._again = False
            try:
                sources: Sequence[Source] = find_models(self._folder, self._versions)
                pool = Pool(replace(self._setup, sources=sources), self._metrics)
                await pool.start()
            except ConfigError as error:
                _log.error("the server keeps its models: %s", error)
                continue
            old, self._app.pool = self._app.pool, pool
            names = [f"{s.name}/{s.version}" for s in sources]
            _log.info("reloaded: %s", json.dumps(names))
            self._closing = asyncio.create_task(old.close())
            await asyncio.shield(self._closing)

    async def end(self) -> None:
        """Cancel a reload in progress, and wait until the workers that it replaced have ended."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._closing is not None:
            await self._closing
