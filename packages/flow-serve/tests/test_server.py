"""The HTTP server: slow clients, wrong heads, shutdown and reload; over sockets of this machine."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import processes
import pytest

from flow_core.base.errors import ConfigError
from flow_serve.pool import Setup
from flow_serve.server import Connection, bind, check_token, serve
from flow_serve.settings import Limits

WORKER = Path(__file__).parent / "programs" / "worker.py"
REQUEST = json.dumps({
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [77, 1]}]
})  # fmt: skip
INFER = (
    f"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\n"
    f"content-length: {len(REQUEST)}\r\n\r\n{REQUEST}"
).encode()
LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a coroutine function beside a server, which gets a function that connects to it."""
    folder = tmp_path / "models"
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    monkeypatch.setattr("flow_serve.server.signal.SIGHUP", signal.SIGUSR1)

    def run(check: Callable[..., Awaitable[None]], *names: str, **limits: Any) -> None:
        for name in names or ("double",):
            (folder / name / "1").mkdir(parents=True)
            (folder / name / "1" / "model.onnx").touch()
        setup = Setup((), limits=Limits(**limits), command=(sys.executable, str(WORKER)))
        lines: list[str] = []

        async def main() -> None:
            with bind("127.0.0.1", 0) as listener:
                server = asyncio.create_task(serve(folder, setup, listener, "", 1, lines.append))
                port = listener.getsockname()[1]
                while not lines or not lines[-1].startswith("serving"):
                    await asyncio.sleep(0.001)
                    assert not server.done(), server.result()
                writers: list[asyncio.StreamWriter] = []

                async def connect() -> Any:
                    pair = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
                    writers.append(pair[1])
                    return pair

                try:
                    async with asyncio.timeout(processes.scaled(processes.LIMIT)):
                        await check(connect)
                finally:
                    (tmp_path / "gate").touch()
                    os.kill(os.getpid(), signal.SIGTERM)
                    await server
                    for writer in writers:
                        writer.close()
                    await asyncio.sleep(0)

        asyncio.run(main())

    return run


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any], bytes]:
    """Read a response: its status, its JSON, and its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = (int(x.split(b":")[1]) for x in head.split(b"\r\n") if b"content-length" in x)
    return int(head.split()[1]), json.loads(await reader.readexactly(length)), head


def test_a_connection_serves_several_requests(running: Any) -> None:
    async def check(connect: Connect) -> None:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(LIVE + LIVE)
            assert [(await answer(reader))[1] for _ in range(2)] == [{"live": True}] * 2
        writer.write(INFER.replace(b"77", b"21"))
        assert (await answer(reader))[1]["outputs"][0]["data"] == [42, 2]

    running(check)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"hello\r\n\r\n", "invalid_request"),
        (b"GET /v2 HTTP/9.9\r\n\r\n", "invalid_request"),
        (b"GET  HTTP/1.1\r\n\r\n", "invalid_request"),
        (b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", "invalid_request"),
        (LIVE.replace(b"host", b"content-length: -1\r\nhost"), "invalid_request"),
        (LIVE.replace(b"\r\n\r\n", b"\r\na: %b\r\n\r\n" % (b"b" * 40000)), "head_too_large"),
        (LIVE.replace(b"live", b"l" * 40000), "head_too_large"),
        (b"GET /v2", "slow_client"),
        (LIVE[:-2], "slow_client"),
        (b"", "slow_client"),
        (INFER[:-5], "slow_client"),
    ],
)
def test_wrong_and_slow_heads_are_answered_by_json(running: Any, sent: bytes, reason: str) -> None:
    async def check(connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(sent)
        status, content, head = await answer(reader)
        assert (content["reason"], status >= 400) == (reason, True)
        assert b"connection: close" in head.lower()
        assert await reader.read() == b""

    seconds = 0.2 if reason == "slow_client" else 60.0
    running(check, client_seconds=seconds, seconds=seconds)


def test_a_client_that_reads_nothing_is_disconnected(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(connect: Connect) -> None:
        lost, own = asyncio.Event(), Connection.connection_lost
        monkeypatch.setattr(
            Connection, "connection_lost", lambda self, error: (own(self, error), lost.set())
        )
        reader, writer = await connect()
        text = b'{"inputs":[],"parameters":{"binary_data_output":true}}'
        head = "POST /v2/models/large/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: "
        writer.write(f"{head}{len(text)}\r\n\r\n".encode() + text)
        await lost.wait()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1 << 24)

    running(check, "large", client_seconds=0.2)


def test_connections_are_limited(running: Any) -> None:
    async def check(connect: Connect) -> None:
        for _ in range(2):
            reader, writer = await connect()
            writer.write(LIVE)
            assert (await answer(reader))[0] == 200
        reader, _ = await connect()
        assert (await answer(reader))[1]["reason"] == "overloaded"

    running(check, connections=2)


def test_a_server_that_ends_answers_what_it_has_accepted(running: Any, tmp_path: Path) -> None:
    async def check(connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(INFER)
        other, probe = await connect()
        metrics = b""
        while b"flow_serve_busy_workers 1.0" not in metrics:
            probe.write(LIVE.replace(b"v2/health/live", b"metrics"))
            head = await other.readuntil(b"\r\n\r\n")
            (size,) = (int(x.split(b":")[1]) for x in head.split(b"\r\n") if b"length" in x)
            metrics = await other.readexactly(size)
        os.kill(os.getpid(), signal.SIGTERM)
        while not other.at_eof():  # idle connections are closed at once
            await other.read(1)
        (tmp_path / "gate").touch()
        status, content, _ = await answer(reader)
        assert (status, content["outputs"][0]["data"]) == (200, [154, 2])

    running(check)


def test_a_reload_replaces_the_models(
    running: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flow_serve")

    async def index(connect: Connect) -> list[str]:
        reader, writer = await connect()
        writer.write(
            b"POST /v2/repository/index HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
        )
        return [f"{m['name']}/{m['version']}" for m in (await answer(reader))[1]]

    async def check(connect: Connect) -> None:
        models = tmp_path / "models"
        assert await index(connect) == ["double/1"]
        reader, writer = await connect()
        request = INFER.replace(b"77", b"21")
        writer.write(request[:-9])
        (models / "double" / "2").mkdir()
        (models / "double" / "2" / "model.onnx").touch()
        os.kill(os.getpid(), signal.SIGUSR1)
        while await index(connect) != ["double/2"]:
            await asyncio.sleep(0.001)
        writer.write(request[-9:])
        assert (await answer(reader))[1]["model_version"] == "2"
        (models / "unknown" / "1").mkdir(parents=True)
        (models / "unknown" / "1" / "model.onnx").touch()
        os.kill(os.getpid(), signal.SIGUSR1)
        while "the server keeps its models" not in caplog.text:
            await asyncio.sleep(0.001)
        assert await index(connect) == ["double/2"]

    running(check)
    assert "loading version 1 of 'unknown'" in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="no token"):
        check_token(host, "")
    check_token(host, "0123456789abcdef")


def test_short_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="5 characters"):
        check_token("127.0.0.1", "short")


def test_answers_are_sent_without_delay() -> None:
    """Check that asyncio turns off Nagle's algorithm on connections to the listening socket."""

    async def option() -> int:
        found = asyncio.get_running_loop().create_future()

        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted_socket = writer.get_extra_info("socket")
            found.set_result(accepted_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bind("127.0.0.1", 0) as listener:
            async with await asyncio.start_server(accepted, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                value: int = await found
                writer.close()
        return value

    assert asyncio.run(option())


def test_an_address_that_is_in_use_is_refused() -> None:
    with bind("127.0.0.1", 0) as used:
        used.listen()
        with pytest.raises(ConfigError, match=r"serving at 127\.0\.0\.1"):
            bind("127.0.0.1", used.getsockname()[1])
