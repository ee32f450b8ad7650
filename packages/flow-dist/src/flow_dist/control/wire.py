"""Messages of the control channel: JSON objects with their length in front, and the proofs.

Nothing here makes anything but texts, numbers, lists and dictionaries out of bytes, and no length
is believed that is above the limit.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from flow_core.base.errors import FlowError

Message = Mapping[str, Any]

TO_SERVER = 1 << 16
"""Most bytes of a message to the server."""

TO_RANK = 1 << 23
"""Most bytes of a message from the server, which may hold what all ranks have said."""

_HEAD = 4

_DEPTH = 32
"""Most lists and objects within each other."""

_INTEGERS = range(-(1 << 63), 1 << 64)


class WireError(FlowError, ValueError):
    """Bytes that are no message of the control channel, or a message that is too long."""


def pack(message: Message, limit: int = TO_SERVER) -> bytes:
    r"""A message as bytes; lone surrogates in its texts become question marks.

    Raises:
        WireError: it is longer than the limit, or holds a number that JSON does not have.

    >>> pack({"is": "beat"})
    b'\x00\x00\x00\r{"is":"beat"}'
    """
    try:
        text = json.dumps(message, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise WireError("packing a message of the control channel", found=str(error)) from error
    body = text.encode("utf-8", "replace")
    _check(len(body) <= limit, f"{len(body)} bytes", f"{limit}")
    return len(body).to_bytes(_HEAD, "big") + body


class Framing:
    """Cuts a stream of bytes into messages.

    Args:
        limit: most bytes of a message.

    >>> framing = Framing(100)
    >>> [list(framing.feed(part)) for part in (pack({"a": 1})[:6], pack({"a": 1})[6:])]
    [[], [{'a': 1}]]
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are whole with these bytes.  Raises `WireError`."""
        self._bytes += data
        while len(self._bytes) >= _HEAD:
            size = int.from_bytes(self._bytes[:_HEAD], "big")
            _check(size <= self._limit, f"a length of {size} bytes", f"at most {self._limit}")
            if len(self._bytes) < _HEAD + size:
                return
            body = bytes(self._bytes[_HEAD : _HEAD + size])
            del self._bytes[: _HEAD + size]
            yield unpack(body)


def unpack(body: bytes) -> Message:
    """A message without its length.  Raises `WireError`."""
    message: Any = None
    try:
        message = json.loads(body.decode(), parse_constant=_refused)
        plain = isinstance(message, dict) and _is_plain(message, _DEPTH)
    except (ValueError, RecursionError):  # ValueError: not JSON, or not even text
        plain = False
    _check(plain, f"{body[:40]!r}", "a JSON object")
    found: Message = message
    return found


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _is_plain(value: Any, depth: int) -> bool:
    """Whether a value can be printed, computed with and packed again.

    Raises:
        UnicodeEncodeError: it cannot, for a lone surrogate in a text.
    """
    if isinstance(value, str):
        return value.isascii() or bool(value.encode())
    if isinstance(value, dict):
        inner = (*value, *value.values())
        return depth > 0 and all(_is_plain(item, depth - 1) for item in inner)
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    if isinstance(value, int):
        return value in _INTEGERS
    return value is None or math.isfinite(value)


def _check(ok: bool, found: str, allowed: str) -> None:
    if not ok:
        raise WireError("a message of the control channel", found=found, allowed=allowed)


def fresh() -> str:
    """A token, or a number that is used once: 256 random bits."""
    return secrets.token_hex(32)


def prove(token: str, side: str, *nonces: str) -> str:
    """What only one who has the token can say: the token itself never travels.

    JSON carries lone surrogates, so any text that a stranger sends as its nonce has a proof.
    """
    text = "\n".join((side, *nonces)).encode("utf-8", "surrogatepass")
    return hmac.new(token.encode("utf-8", "surrogatepass"), text, hashlib.sha256).hexdigest()


def proven(token: str, side: str, proof: object, *nonces: str) -> bool:
    """Whether a proof is right, compared in constant time."""
    told = proof if isinstance(proof, str) else ""
    return hmac.compare_digest(
        prove(token, side, *nonces).encode(), told.encode("utf-8", "replace")
    )


def field(message: Message, name: str, kind: type) -> Any:
    """A part of a message.  Raises `WireError` when it is not of a kind."""
    value = message.get(name)
    right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    _check(right, f"{value!r:.40} as {name!r}", kind.__name__)
    return value
