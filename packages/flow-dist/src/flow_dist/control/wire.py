"""Messages of the control channel: length-prefixed JSON objects, authenticated by HMAC.

Decoding creates only strings, numbers, lists and dictionaries, and lengths above a limit are
rejected.
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

TO_SERVER = 1 << 20
"""Maximum size in bytes of a message to the server from an authenticated rank."""

TO_RANK = 1 << 23
"""Maximum size in bytes of a message from the server, which may hold values of all ranks."""

_HEAD = 4

_DEPTH = 32
"""Maximum nesting of lists and objects."""

_INTEGERS = range(-(1 << 63), 1 << 64)


class WireError(FlowError, ValueError):
    """Bytes that are not a message of the control channel, or a message that is too long."""


def pack(message: Message, limit: int = TO_SERVER) -> bytes:
    r"""Encode a message; lone surrogates in its strings become question marks.

    Raises:
        WireError: the message exceeds the limit, or holds a number that JSON cannot represent.

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
    """A decoder that splits a byte stream into messages.

    >>> framing = Framing(100)
    >>> [list(framing.feed(part)) for part in (pack({"a": 1})[:6], pack({"a": 1})[6:])]
    [[], [{'a': 1}]]
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Append bytes; yield the messages that they complete.  Raises `WireError`."""
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
    """Decode a message without its length prefix.  Raises `WireError`."""
    message: Any = None
    try:
        message = json.loads(body.decode(), parse_constant=_refused)
        plain = isinstance(message, dict) and _is_plain(message, _DEPTH)
    except (ValueError, RecursionError):  # ValueError: not JSON, or not UTF-8
        plain = False
    _check(plain, f"{body[:40]!r}", "a JSON object")
    checked: Message = message
    return checked


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether a value is of bounded depth and range, and can be encoded again.

    Raises `UnicodeEncodeError` if a string holds a lone surrogate.
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


def random_token() -> str:
    """Return 256 random bits as text, for use as a token or a nonce."""
    return secrets.token_hex(32)


def prove(token: str, side: str, *nonces: str) -> str:
    """Return the HMAC of nonces with the token as the key; the token itself is never sent.

    Lone surrogates, which JSON can carry, are encoded too, so that a proof exists for any nonce.
    """
    text = "\n".join((side, *nonces)).encode("utf-8", "surrogatepass")
    return hmac.new(token.encode("utf-8", "surrogatepass"), text, hashlib.sha256).hexdigest()


def verify(token: str, side: str, proof: object, *nonces: str) -> bool:
    """Return whether a proof is correct, compared in constant time."""
    text = proof if isinstance(proof, str) else ""
    return hmac.compare_digest(
        prove(token, side, *nonces).encode(), text.encode("utf-8", "replace")
    )


def field(message: Message, name: str, kind: type) -> Any:
    """Return a field of a message.  Raises `WireError` if the field is not of type ``kind``."""
    value = message.get(name)
    right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    _check(right, f"{value!r:.40} as {name!r}", kind.__name__)
    return value
