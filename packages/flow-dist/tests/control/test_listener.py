"""The listener's connections when the server closes."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from flow_dist.control.listener import Listener


@pytest.mark.parametrize("turns", [0, 1], ids=["before_it_begins", "in_the_handler"])
def test_a_cancelled_handler_leaves_no_open_connection(turns: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1)
        except asyncio.CancelledError:
            writer.transport.abort()

    async def run() -> list[bool]:
        listener = Listener("127.0.0.1", 0, serve, 1)
        with socket.create_connection(("127.0.0.1", listener.port)) as client:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener._socket)
            await listener._start_serving(connection)
            (writer,), tasks = listener._unauthenticated, [*listener._tasks]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)
            listener.close()
            client.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
            return [writer.is_closing(), not listener._tasks]

    assert asyncio.run(run()) == [True, True]


@pytest.mark.parametrize("turns", range(8))
def test_a_listener_that_ends_closes_what_it_accepts(turns: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1)
        except asyncio.CancelledError:
            writer.transport.abort()

    async def run() -> None:
        listener = Listener("127.0.0.1", 0, serve, 1)
        accepting = asyncio.ensure_future(listener.run())
        await asyncio.sleep(0)
        with socket.create_connection(("127.0.0.1", listener.port)) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            accepting.cancel()
            tasks = [accepting, *listener._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)
            listener.close()
            client.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""

    asyncio.run(run())
