"""Messages between the server and its workers: a JSON object, and bytes that follow it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

HEAD = struct.Struct("<IQ")
"""The lengths of the JSON object and of the bytes."""


def packed(content: dict[str, Any], parts: Sequence[Any] = ()) -> list[Any]:
    """Return the parts of a message, which are sent one after the other."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return [HEAD.pack(len(text), sum(map(len, parts))) + text, *parts]


async def receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], memoryview]:
    """Read a message.

    Raises: EOFError: the other side has closed the connection, or has ended.
    """
    try:
        length, size = HEAD.unpack(await reader.readexactly(HEAD.size))
        text = await reader.readexactly(length)
        data = await reader.readexactly(size)
    except OSError as error:  # IncompleteReadError is an EOFError
        raise EOFError from error
    return json.loads(text), memoryview(data)


def receive_blocking(connection: socket.socket) -> tuple[dict[str, Any], memoryview]:
    """Read a message in a worker; raise `EOFError` at the end."""
    length, size = HEAD.unpack(_exactly(connection, HEAD.size))
    text = _exactly(connection, length)
    return json.loads(bytes(text)), _exactly(connection, size)


def send_blocking(
    connection: socket.socket, content: dict[str, Any], parts: Sequence[Any] = ()
) -> None:
    """Send a message from a worker."""
    for part in packed(content, parts):
        connection.sendall(part)


def _exactly(connection: socket.socket, size: int) -> memoryview:
    found = memoryview(bytearray(size))
    done = 0
    while done < size:
        count = connection.recv_into(found[done:])
        if not count:
            raise EOFError
        done += count
    return found
