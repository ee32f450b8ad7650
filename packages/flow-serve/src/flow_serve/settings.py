"""The settings of a server, and the errors that answer a request."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may use."""

    body: int = 64 * MIB  # bytes of the body of a request
    bodies: int = 512 * MIB  # bytes of the bodies of all requests that are not answered yet
    connections: int = 1000  # open connections
    queue: int = 256  # requests that wait for a worker, per version of a model
    seconds: float = 60.0  # time from the end of a request's head to its answer
    # Time in which a client must send the head of a request; and, once an answer fills the socket's
    # buffer, the time in which it must read at least `READ_BYTES`.
    client_seconds: float = 20.0
    run_seconds: float = 60.0  # time of a batch in a worker, which is killed if it takes longer


HEAD_BYTES = 32 << 10
"""Bytes of the head of a request: its target and its headers."""
READ_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests are combined."""

    rows: int = 8  # largest number of rows of a batch; 1 turns batching off
    wait: float = 0.0  # seconds for which a request may wait for others while a worker is idle

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that workers compile: powers of two, and the largest."""
        powers = {1 << k for k in range(self.rows.bit_length()) if 1 << k <= self.rows}
        return tuple(sorted({*powers, self.rows}))


STATUS = {
    "invalid_request": 400,
    "invalid_token": 401,
    "wrong_host": 421,
    "unknown_path": 404,
    "unknown_model": 404,
    "wrong_method": 405,
    "slow_client": 408,
    "too_large": 413,
    "unsupported": 415,
    "head_too_large": 431,
    "failed": 422,
    "internal": 500,
    "overloaded": 503,
    "queue_full": 503,
    "worker_lost": 503,
    "timeout": 504,
}
"""The status of each reason that an error of the protocol may have."""


class Refused(Exception):
    """A request that is answered by an error.

    Args:
        reason: a key of `STATUS`.
        text: what was found and what is allowed, for the client.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.status = STATUS[reason]
