from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import processes
import pytest

from flow_serve.app import LENGTH, App
from flow_serve.info import Source
from flow_serve.metrics import Metrics
from flow_serve.pool import Pool, Setup
from flow_serve.settings import Batching, Limits

WORKER = Path(__file__).parent / "programs" / "worker.py"


@dataclass
class Response:
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body[: int(self.headers.get(LENGTH, len(self.body)))])

    @property
    def tail(self) -> bytes:
        return self.body[int(self.headers[LENGTH]) :]


@dataclass
class Served:
    """An application with workers of numpy."""

    app: App
    metrics: Metrics
    gate: Path

    async def call(
        self,
        path: str,
        body: bytes | Sequence[bytes] | None = None,
        method: str = "",
        **headers: object,
    ) -> Response:
        """Call the application as an ASGI server does; parts of a body are not all of it."""
        parts = [body] if isinstance(body, bytes) else list(body or [b""])
        given = {k.replace("_", "-").encode(): str(v).encode() for k, v in headers.items()}
        scope = {
            "type": "http", "path": path, "headers": list(given.items()),
            "method": method or ("GET" if body is None else "POST"),
        }  # fmt: skip
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            if not parts:
                return await asyncio.get_running_loop().create_future()  # sends nothing more
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": True}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        if body is None or isinstance(body, bytes):
            whole = [{"type": "http.request", "body": parts[0], "more_body": False}]

            async def receive() -> dict[str, Any]:
                return whole.pop()

        await self.app(scope, receive, send)
        start, end = sent
        return Response(start["status"], dict(start["headers"]), end["body"])

    async def double(self, *rows: float, **headers: object) -> Response:
        """Infer with rows that start with the given numbers."""
        tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 2]}
        data = [[value, 1] for value in rows]
        body = json.dumps({"inputs": [tensor | {"data": data}]}).encode()
        return await self.call("/v2/models/double/infer", body, **headers)

    def metric(self, line: str) -> float:
        """Return the value of a line of the metrics."""
        lines = self.metrics.text().decode().splitlines()
        return sum(float(x.rpartition(" ")[2]) for x in lines if x.startswith(line + " "))

    async def until(self, line: str, value: float) -> None:
        """Wait for a value of a metric."""
        async with asyncio.timeout(processes.scaled(processes.LIMIT)):
            while self.metric(line) != value:
                await asyncio.sleep(0.001)


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a coroutine function with an application: ``serving(function, workers=2)``."""
    gate = tmp_path / "gate"
    monkeypatch.setenv("GATE", str(gate))

    @contextlib.asynccontextmanager
    async def started(
        names: Sequence[str], rows: int, wait: float, limits: Limits, workers: int, token: str
    ) -> AsyncIterator[Served]:
        sources = [Source(name, "1", "", "p") for name in names]
        metrics = Metrics()
        command = (sys.executable, str(WORKER))
        pool = Pool(Setup(sources, Batching(rows, wait), limits, workers, "cpu", command), metrics)
        await pool.start()
        app = App(pool, metrics, limits, token)
        try:
            yield Served(app, metrics, gate)
        finally:
            gate.touch()
            await app.pool.close()

    def run(
        function: Callable[[Served], Awaitable[Any]],
        *,
        names: Sequence[str] = ("double",),
        rows: int = 8,
        wait: float = 0.0,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        workers: int = 1,
        token: str = "",
    ) -> Any:
        async def main() -> Any:
            async with started(names, rows, wait, limits, workers, token) as served:
                return await function(served)

        return asyncio.run(main())

    return run
