"""The ASGI application: paths, access, bodies and errors of the protocol."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from ipaddress import ip_address
from typing import Any

from flow_serve import __version__
from flow_serve.info import ModelInfo
from flow_serve.metrics import Metrics
from flow_serve.pool import Pool
from flow_serve.protocol import read_request, write_response
from flow_serve.settings import Limits, Refused

_log = logging.getLogger("flow_serve")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Mapping[bytes, bytes]
LENGTH = b"inference-header-content-length"
_OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")
"""Paths that need no token, for probes."""


class Answer:
    """A response."""

    def __init__(
        self,
        content: object,  # an object for JSON, or bytes
        status: int = 200,
        headers: Sequence[tuple[bytes, bytes]] = (),
        tail: Sequence[memoryview] = (),  # bytes behind the content
    ) -> None:
        plain = isinstance(content, bytes)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.status = status
        self.body = b"".join((body, *tail)) if tail else body
        kinds = () if plain else ((b"content-type", b"application/json"),)
        self.headers = [*kinds, (b"content-length", b"%d" % len(self.body)), *headers]


def error_answer(error: Refused, *, close: bool = False) -> Answer:
    """Return the response that describes an error."""
    headers = [(b"connection", b"close")] if close else []
    if error.reason in ("overloaded", "queue_full", "worker_lost"):
        headers.append((b"retry-after", b"1"))
    if error.reason == "invalid_token":
        headers.append((b"www-authenticate", b"Bearer"))
    return Answer({"error": str(error), "reason": error.reason}, error.status, headers)


class App:
    """The application of one server.

    Args:
        pool: the models and their workers; a reload sets the attribute.
        token: what clients must present; "" permits requests from this machine without one.
    """

    def __init__(self, pool: Pool, metrics: Metrics, limits: Limits, token: str = "") -> None:
        self.pool = pool
        self._metrics, self._limits = metrics, limits
        self._token = token.encode()
        self._bodies = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        headers, body = dict(scope["headers"]), _Body(self, receive)
        try:
            answer = await self._answer(scope, headers, body)
        except Refused as error:
            if error.reason != "slow_client":
                await body.skip()
            if not body.is_counted:
                self._metrics.errors.labels(error.reason).inc()
            answer = error_answer(error, close=not body.is_read)
        except _Disconnected:
            return
        except Exception:  # noqa: BLE001 - the client learns no details
            _log.exception("an error of the server")
            answer = error_answer(Refused("internal", "an error of the server"), close=True)
        finally:
            self._bodies -= body.reserved
        start = {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope, headers: Headers, body: _Body) -> Answer:
        path, method = scope["path"], scope["method"]
        self._check_access(path, headers)
        match path.split("/")[1:]:
            case ["v2"] | ["v2", ""]:
                action = self._server
            case ["v2", "health", "live"]:
                action = self._live
            case ["v2", "health", "ready"]:
                action = self._ready
            case ["metrics"]:
                action = self._metrics_text
            case ["v2", "repository", "index"]:
                action = self._index
            case ["v2", "models", name, *rest] if rest[:1] == ["versions"] and len(rest) in (2, 3):
                return await self._model(method, name, rest[1], rest[2:], headers, body)
            case ["v2", "models", name, *rest] if len(rest) < 2:
                return await self._model(method, name, "", rest, headers, body)
            case _:
                raise Refused("unknown_path", f"found: {path!a:.200}; allowed: /v2/...")
        _check_method(method, "POST" if action == self._index else "GET")
        if action == self._index:
            await body.read(headers)
        return action()

    def _check_access(self, path: str, headers: Headers) -> None:
        """Require the token or, without one, a request to this machine.

        A page that a browser shows could otherwise reach a server without a token by a name of its
        own that resolves to this machine.
        """
        if not self._token:
            host = headers.get(b"host", b"localhost").decode("latin-1")
            if not is_loopback(host):
                raise Refused(
                    "wrong_host", f"found: host {host!a:.80}; allowed: localhost; next: set a token"
                )
        elif path not in _OPEN_PATHS:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                raise Refused("invalid_token", "allowed: Authorization: Bearer TOKEN")

    # ---------------------------------------------------------------------- about the server

    def _server(self) -> Answer:
        extensions = ["binary_tensor_data", "model_repository"]
        return Answer({"name": "flow-serve", "version": __version__, "extensions": extensions})

    def _live(self) -> Answer:
        return Answer({"live": True})

    def _ready(self) -> Answer:
        ready = self.pool.is_ready
        return Answer({"ready": ready}, 200 if ready else 503)

    def _metrics_text(self) -> Answer:
        kind = (b"content-type", self._metrics.content_type.encode())
        return Answer(self._metrics.text(), headers=[kind])

    def _index(self) -> Answer:
        state = {"state": "READY" if self.pool.is_ready else "UNAVAILABLE", "reason": ""}
        return Answer([
            {"name": info.name, "version": info.version, **state}
            for versions in self.pool.models.values()
            for info in versions.values()
        ])  # fmt: skip

    # ---------------------------------------------------------------------- about a model

    async def _model(
        self, method: str, name: str, version: str, rest: Sequence[str], headers: Headers,
        body: _Body,
    ) -> Answer:  # fmt: skip
        pool = self.pool
        info = _chosen(pool, name, version)
        match list(rest):
            case []:
                _check_method(method, "GET")
                versions = list(pool.models[info.name])
                tensors = ("inputs", "outputs")
                shapes = {k: [t.metadata for t in getattr(info, k)] for k in tensors}
                found = {"name": info.name, "versions": versions, "platform": info.platform}
                return Answer(found | shapes)
            case ["ready"]:
                _check_method(method, "GET")
                return self._ready()
            case ["infer"]:
                _check_method(method, "POST")
                return await self._counted(info, version, headers, body)
            case _:
                raise Refused("unknown_path", "allowed: infer, ready, or nothing behind the model")

    async def _counted(
        self, info: ModelInfo, version: str, headers: Headers, body: _Body
    ) -> Answer:
        """Infer, and count the request by its result."""
        result, body.is_counted = "internal", True
        try:
            async with asyncio.timeout(self._limits.seconds):
                answer = await self._infer(info.name, version, headers, body)
            result = "ok"
            return answer
        except TimeoutError:
            found = f"no answer within {self._limits.seconds:g} s"
            error = Refused("timeout" if body.is_read else "slow_client", found)
            result = error.reason
            raise error from None
        except Refused as error:
            result = error.reason
            raise
        except _Disconnected:
            result = "disconnected"
            raise
        finally:
            self._metrics.requests.labels(info.name, info.version, result).inc()

    async def _infer(self, name: str, version: str, headers: Headers, body: _Body) -> Answer:
        data = await body.read(headers)
        pool = self.pool  # a reload may have replaced it since the head was read
        info = _chosen(pool, name, version)
        started = time.monotonic()
        head = headers.get(LENGTH)
        request = read_request(data, None if head is None else head.decode("latin-1"), info)
        outputs = await pool.run(info, request.rows, request.arrays)
        content, tail = write_response(info, request, outputs, request.rows)
        self._metrics.seconds.labels(info.name, info.version).observe(time.monotonic() - started)
        if not tail:
            return Answer(content, headers=[(b"content-type", b"application/json")])
        length = (LENGTH, b"%d" % len(content))
        kind = (b"content-type", b"application/octet-stream")
        return Answer(content, headers=[kind, length], tail=tail)

    # ---------------------------------------------------------------------- memory of bodies

    def reserve(self, size: int) -> None:
        """Count bytes of a body; raise `Refused` if all bodies together would have too many."""
        if self._bodies + size > self._limits.bodies:
            raise Refused("overloaded", "other requests use the memory for bodies; next: retry")
        self._bodies += size

    @property
    def limits(self) -> Limits:
        """What clients may use."""
        return self._limits


class _Disconnected(Exception):
    """The client has closed the connection."""


class _Body:
    """The body of a request."""

    def __init__(self, app: App, receive: Receive) -> None:
        self._app, self._receive = app, receive
        self.reserved = 0
        self.is_read = self.is_counted = False

    async def read(self, headers: Headers) -> bytes:
        """Return the body; its stated length is checked before any of it is read.

        Raises: Refused: it is too large, compressed, or there is no memory for it.
        """
        limit = self._app.limits.body
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refused("unsupported", "found: a compressed body; allowed: an uncompressed one")
        stated = headers.get(b"content-length", b"")
        if stated:  # checked by the parser of HTTP
            self._reserve(int(stated), limit)
        parts = []
        async for part in self._parts():
            parts.append(part)
            size = sum(map(len, parts)) if not stated else 0
            if size > self.reserved:
                self._reserve(size - self.reserved, limit - self.reserved)
        return b"".join(parts)

    def _reserve(self, size: int, limit: int) -> None:
        if size > limit:
            most = self._app.limits.body
            raise Refused("too_large", f"found: a larger body; allowed: {most} bytes")
        self._app.reserve(size)
        self.reserved += size

    async def _parts(self) -> Any:
        while not self.is_read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            self.is_read = not message.get("more_body", False)
            yield message.get("body", b"")

    async def skip(self) -> None:
        """Read the rest of a refused body, up to a limit, so that the client reads the answer."""
        left, limits = 2 * self._app.limits.body, self._app.limits
        try:
            async with asyncio.timeout(limits.client_seconds):
                async for part in self._parts():
                    left -= len(part)
                    if left < 0:
                        return
        except (TimeoutError, _Disconnected):
            return


def _check_method(found: str, allowed: str) -> None:
    if found != allowed:
        raise Refused("wrong_method", f"found: {found!a:.20}; allowed: {allowed}")


def _chosen(pool: Pool, name: str, version: str) -> ModelInfo:
    """Return a version of a model; the latest by default.  Names are compared, never opened."""
    versions = pool.models.get(name)
    if versions is None or (version and version not in versions):
        what = f"{name!a:.80}" + (f", version {version!a:.30}" if versions else "")
        known = ", ".join(map(ascii, versions or pool.models))
        raise Refused("unknown_model", f"found: model {what}; allowed: {known}")
    return versions[version] if version else next(iter(versions.values()))


def is_loopback(host: str) -> bool:
    """Return whether a host, with or without a port, is this machine.

    >>> is_loopback("localhost:80"), is_loopback("[::1]:80"), is_loopback("127.0.0.1")
    (True, True, True)
    >>> is_loopback("example.org"), is_loopback("0.0.0.0")
    (False, False)
    """
    parts = re.fullmatch(r"\[(.*)\](:\d+)?|([^:]*)(:\d+)?", host)
    name = (parts[1] or parts[3] or "") if parts else host
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.rstrip(".").lower() == "localhost"
