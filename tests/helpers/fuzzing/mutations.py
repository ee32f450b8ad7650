"""Mutations of bytes and of JSON texts, drawn from a random number generator."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

EXTREMES = (
    0, 1, 2, 3, 7, 8, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF,
    0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
"""Values at which length fields of 1 to 8 bytes wrap, turn negative, or exceed a limit."""

_MOST = 1 << 16
"""Mutated inputs grow to this many bytes at most, or to the size of their seed."""


def _span(data: bytearray, rng: random.Random, most: int = 64) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randint(1, most))


def _flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_run(data: bytearray, rng: random.Random) -> None:
    start, stop = _span(data, rng)
    fill = rng.choice((b"\0", b"\xff", b"\x80", b" ", b"9", None))
    size = stop - start
    data[start:stop] = rng.randbytes(size) if fill is None else fill * size


def _remove_run(data: bytearray, rng: random.Random) -> None:
    start, stop = _span(data, rng)
    del data[start:stop]


def _repeat_run(data: bytearray, rng: random.Random) -> None:
    start, stop = _span(data, rng, 512)
    data[start:start] = data[start:stop] * rng.choice((1, 1, 2, 30))


def _insert_random(data: bytearray, rng: random.Random) -> None:
    start, _ = _span(data, rng)
    data[start:start] = rng.randbytes(rng.randint(1, 16))


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _set_length(data: bytearray, rng: random.Random) -> None:
    """Write an extreme number where a length may be, in either byte order."""
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice(EXTREMES) % (1 << 8 * size)
    start = rng.randrange(len(data) + 1)
    data[start : start + size] = value.to_bytes(size, rng.choice(("little", "big")))


def _move_run(data: bytearray, rng: random.Random) -> None:
    """Overwrite one place with the bytes of another."""
    start, stop = _span(data, rng)
    at = rng.randrange(len(data) + 1)
    data[at : at + stop - start] = data[start:stop]


_STEPS = (
    _flip_bits, _flip_bits, _flip_bits, _set_run, _remove_run, _repeat_run, _insert_random,
    _truncate, _set_length, _set_length, _move_run,
)  # fmt: skip


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four mutations anywhere, often in the first 128 bytes, where headers are."""
    whole = bytearray(data)
    head = min(len(whole), 128) if rng.random() < 0.4 else len(whole)
    part = whole[:head]
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(_STEPS)(part, rng)
    mutated: bytes = bytes(part[: max(_MOST, len(data))] + whole[head:])
    return mutated


def splice(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """The beginning of one seed and the end of another."""
    a, b = rng.choice(seeds), rng.choice(seeds)
    return a[: rng.randrange(len(a) + 1)] + b[rng.randrange(len(b) + 1) :]


# ------------------------------------------------------------------------------------------ JSON

TEXTS = (
    "", "\0", "a\0b", "\ud800", "\udfff x", "..", "../x", "/", "a" * 5000, "é", "nan", "-1",
    "1e999", "float32", "int64", "record", "cpu:0:0", "\x1b[2J", "true",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 255, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, 2**63, -(2**63),
    10**400, 0.0, -0.0, 0.5, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
_TYPES = (None, True, False, [], {}, [[]], [None], {"": None}, [0] * 300)


def _value(rng: random.Random) -> Any:
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(TEXTS)
    if kind < 7:
        return copy.deepcopy(rng.choice(_TYPES))
    return rng.choice((rng.randint(-(2**40), 2**40), rng.uniform(-1e9, 1e9), str(rng.random())))


def _containers(node: Any, found: list[Any]) -> list[Any]:
    """All non-empty lists and objects of a JSON value."""
    if isinstance(node, dict | list) and node:
        found.append(node)
        for child in node.values() if isinstance(node, dict) else node:
            _containers(child, found)
    return found


def _change(node: Any, rng: random.Random, donors: Sequence[Any]) -> None:
    """Replace, remove, repeat, rename or move one entry of a list or an object."""
    keys = list(node) if isinstance(node, dict) else range(len(node))
    key, action = rng.choice(keys), rng.randrange(10)
    if action < 5:
        node[key] = _value(rng)
    elif action == 5:
        del node[key]
    elif action == 6:
        node[key] = copy.deepcopy(rng.choice(donors))
    elif isinstance(node, dict):
        node[rng.choice((rng.choice(TEXTS), rng.choice(list(keys))))] = node.pop(key)
    elif action < 9:
        node.insert(rng.randrange(len(node) + 1), copy.deepcopy(node[key]))
    else:
        rng.shuffle(node)


def _nested(rng: random.Random) -> str:
    """A text that is nested deeper than parsers recurse, or nearly so."""
    depth = rng.choice((100, 500, 900, 990, 1000, 5000, 100_000))
    return rng.choice(("[" * depth + "]" * depth, "[" * depth, '{"a":' * depth + "0" + "}" * depth))


def mutate_json(text: str, rng: random.Random) -> str:
    """One to three changes of the values of a JSON text, rarely a very deep one."""
    content = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        containers = _containers(content, [])
        if not containers:
            break
        _change(rng.choice(containers), rng, containers)
    made = json.dumps(content)
    if rng.random() < 0.02:
        place = rng.choice([i for i, c in enumerate(made) if c in "[:,"] or [0]) + 1
        made = made[:place] + _nested(rng) + made[place:]
    return made


def mutate_document(data: bytes, rng: random.Random) -> bytes:
    """A JSON file with changed values, or with changed bytes."""
    if rng.random() < 0.6:
        return mutate_json(data.decode(), rng).encode("utf-8", "surrogatepass")
    return mutate_bytes(data, rng)
