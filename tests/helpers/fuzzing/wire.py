"""Messages of the control channel, to the parser and to a server that listens."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import processes

from flow_dist.control.server import ControlServer
from flow_dist.control.wire import TO_SERVER, Framing, field, pack, prove, random_token, verify
from fuzzing.mutations import EXTREMES, mutate_bytes, mutate_json
from fuzzing.target import Target

_STATUS = {
    "step": 3, "sequence": 7, "groups": [[[0, 1], "lane", 2, [1, 2]]], "op": "all_reduce",
    "what": "exchange", "lane": "main", "ranks": [0, 1], "count": 2,
}  # fmt: skip
_MESSAGES: tuple[dict[str, Any], ...] = (
    {"nonce": "ab" * 32, "proof": "cd" * 32, "rank": 0, "size": 1, "host": "node"},
    {"is": "beat", "status": _STATUS},
    {"is": "bye", "exit": 0, "status": _STATUS},
    {"is": "raised", "error": "ValueError: no", "status": _STATUS},
    {"is": "gather", "key": "names", "value": [1, "two", None]},
)


def _mutate(data: bytes, rng: random.Random) -> bytes:
    """A message with changed values and the right length, or changed bytes."""
    if rng.random() < 0.35:
        return mutate_bytes(data, rng)
    body = mutate_json(data[4:].decode(), rng)
    raw = body.encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-32")), "surrogatepass")
    length = len(raw) if rng.random() < 0.9 else rng.choice(EXTREMES)
    return (length % (1 << 32)).to_bytes(4, "big") + raw


class _Complaints(logging.Handler):
    """What a server logs as an error, and whether it can be printed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            self.found.append(f"{record.getMessage()}: {error!r}")
        record.getMessage().encode()


@contextmanager
def _listening(size: int) -> Iterator[tuple[ControlServer, str]]:
    token = random_token()
    with ControlServer(size, token) as server:
        yield server, token


def _send(server: ControlServer, data: bytes, token: str = "") -> None:
    """Connect, prove the token where there is one, send, and wait until the server hangs up."""
    where = server.address, server.port
    with socket.create_connection(where, timeout=processes.scaled(20)) as connection:
        if token:
            framing = Framing(TO_SERVER)
            hello = next(iter(framing.feed(connection.recv(4096))))
            proof = prove(token, "rank", hello["nonce"], "mine")
            join = {"nonce": "mine", "proof": proof, "rank": 0, "size": 1, "host": "node"}
            connection.sendall(pack(join))
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except OSError:  # the server may hang up at any time
            pass


def _parse(data: bytes) -> None:
    """Read a message as the server reads the first one, and pass it on as it passes others on."""
    for message in Framing(4096).feed(data):
        pack({"is": "gathered", "values": [message] * 3}, 1 << 17)
        if "nonce" in message:
            verify("token", "rank", message.get("proof"), "nonce", field(message, "nonce", str))
            prove("token", "server", message["nonce"], "nonce")
            f"{field(message, 'rank', int)} of {field(message, 'size', int)}".encode()
            field(message, "host", str).encode()


def _open(folder: Path) -> Callable[[bytes, int], object]:
    complaints = _Complaints()
    for name in ("asyncio", "flow_dist"):
        logging.getLogger(name).handlers[:] = [complaints]
        logging.getLogger(name).propagate = False
    opened = _listening(2)
    stranger, _ = opened.__enter__()

    def read(data: bytes, number: int) -> None:
        if number % 16 == 0:
            with _listening(1) as (server, token):
                _send(server, data, token)
        elif number % 4 == 1:
            _send(stranger, data)
        else:
            _parse(data)
        found, complaints.found[:] = list(complaints.found), []
        if found:
            raise AssertionError(f"the server logged {found}")

    read.keep = opened  # type: ignore[attr-defined]
    return read


TARGETS = (Target("control", lambda: [pack(m) for m in _MESSAGES], _open, _mutate),)
