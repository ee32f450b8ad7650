"""The listener's limits, its log, and its connections when the server closes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from typing import Any

import pytest

from flow_dist.bootstrap.membership import LaunchError
from flow_dist.control.listener import LOG_LINES, LOG_PERIOD, DropLog, Listener, allow_connections
from flow_dist.control.server import ControlServer


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.read(1)
    except asyncio.CancelledError:
        writer.transport.abort()


async def end(
    listener: Listener, tasks: Iterable[asyncio.Future[Any]], client: socket.socket
) -> None:
    """Cancel tasks, close the listener, and check that its connection is closed."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    listener.close()
    client.settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


@pytest.mark.parametrize("turns", [0, 1], ids=["before_it_begins", "in_the_handler"])
def test_a_cancelled_handler_leaves_no_open_connection(turns: int) -> None:
    async def run() -> list[bool]:
        listener = Listener("127.0.0.1", 0, serve, 1)
        with socket.create_connection(("127.0.0.1", listener.port)) as client:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener._socket)
            await listener._start_serving(connection)
            (writer,), tasks = listener._unauthenticated, [*listener._tasks]
            for _ in range(turns):
                await asyncio.sleep(0)
            await end(listener, tasks, client)
            return [writer.is_closing(), not listener._tasks]

    assert asyncio.run(run()) == [True, True]


@pytest.mark.parametrize("turns", range(8))
def test_a_listener_that_ends_closes_what_it_accepts(turns: int) -> None:
    async def run() -> None:
        listener = Listener("127.0.0.1", 0, serve, 1)
        accepting = asyncio.ensure_future(listener.run())
        await asyncio.sleep(0)
        with socket.create_connection(("127.0.0.1", listener.port)) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            accepting.cancel()
            tasks = [accepting, *listener._tasks]
            await end(listener, tasks, client)

    asyncio.run(run())


def test_more_ranks_than_files_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 1 << 20)]
    monkeypatch.setattr("resource.getrlimit", lambda _: limits[-1])
    monkeypatch.setattr("resource.setrlimit", lambda _, pair: limits.append(pair))
    allow_connections(4096)
    assert 4096 < limits[-1][0] < limits[-1][1]
    limits.append((1024, 4096))
    with pytest.raises(LaunchError, match="limit of 4096 open files"):
        ControlServer(4096, "secret")


def test_a_flood_is_logged_as_a_count(caplog: pytest.LogCaptureFixture) -> None:
    dropped = DropLog()
    for n in range(1000):
        dropped.add(n, "noise", 0.01 * n)
    dropped.add("later", "noise", 2 * LOG_PERIOD)
    said = [record.message for record in caplog.records]
    assert len(said) == LOG_LINES + 2
    assert (
        said[LOG_LINES] == f"dropped {1000 - LOG_LINES} more connections, the last from 999: noise"
    )
    assert said[-1] == "dropped a connection from later: noise"
