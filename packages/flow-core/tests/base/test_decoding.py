"""Parsed JSON is decoded into dataclasses, or an error names the value that does not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from flow_core.base.decoding import Decoder, Mismatch, parsed


@dataclass(frozen=True)
class Inner:
    count: int
    rate: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    flag: bool
    pair: tuple[int, str]
    inner: tuple[Inner, ...]
    place: int | None = None
    by_name: Mapping[str, int] = field(default_factory=dict)
    value: Any = None


SOUND = Outer("a é", True, (1, "x"), (Inner(2), Inner(3, 1)), 7, {"k": 1}, (1, ("b", None), 0.5))


def changed(path: tuple[Any, ...], value: Any) -> Any:
    data = json.loads(json.dumps(asdict(SOUND)))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return data


def test_encoded_values_round_trip() -> None:
    text = json.dumps(asdict(SOUND))
    assert Decoder().decode(Outer, parsed(text)) == SOUND
    assert Decoder().decode(Outer, changed(("place",), None)).place is None
    assert Decoder().decode(Outer, changed(("inner", 0), {"count": 2})) == SOUND


@pytest.mark.parametrize(
    ("path", "value", "where", "found"),
    [
        (("name",), 1, ".name", "1"),
        (("name",), "\ud800", ".name", r"the text '\ud800'"),
        (("flag",), 1, ".flag", "1"),
        (("pair",), [1], ".pair", "a list of 1"),
        (("pair", 0), True, ".pair[0]", "True"),
        (("inner",), {}, ".inner", "an object"),
        (("inner", 1), [], ".inner[1]", "a list"),
        (("inner", 1, "count"), 2**64, ".inner[1].count", "an integer of more than 64 bits"),
        (("inner", 1, "count"), 1.0, ".inner[1].count", "1.0"),
        (("inner", 1, "rat"), 1, ".inner[1]", "a field 'rat' (did you mean rate?)"),
        (("by_name", "k"), None, ".by_name['k']", "None"),
        (("value",), [1, [{}]], ".value[1][0]", "an object"),
        (("value",), 10**400, ".value", "an integer of more than 64 bits"),
    ],
)
def test_mismatched_values_are_located(
    path: tuple[Any, ...], value: Any, where: str, found: str
) -> None:
    with pytest.raises(Mismatch) as caught:
        Decoder().decode(Outer, changed(path, value))
    assert (caught.value.where, caught.value.found) == (where, found)


@pytest.mark.parametrize("depth", [65, 900])
def test_literal_nesting_is_limited(depth: int) -> None:
    deep: Any = 1
    for _ in range(64):
        deep = [deep]
    assert Decoder().decode(Outer, changed(("value",), deep)).value
    for _ in range(depth - 64):
        deep = [deep]
    with pytest.raises(Mismatch, match="nested too deep"):
        Decoder().decode(Outer, json.loads(json.dumps(asdict(SOUND))) | {"value": deep})


def test_missing_field_is_named() -> None:
    with pytest.raises(Mismatch, match="no field 'flag'"):
        Decoder().decode(Outer, {"name": "a"})


def test_custom_conversions_of_classes_and_fields() -> None:
    decoder = Decoder(types={Inner: lambda _: "inner"}, fields={"Outer.name": str.upper})
    found = decoder.decode(Outer, json.loads(json.dumps(asdict(SOUND))))
    assert (found.name, found.inner) == ("A É", ("inner", "inner"))


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000, "1" * 5000, '{"a": \ud800}'])
def test_malformed_json_is_rejected(text: str | bytes) -> None:
    with pytest.raises(Mismatch, match="no JSON"):
        parsed(text)


def test_types_without_a_json_form_are_programming_errors() -> None:
    with pytest.raises(TypeError, match="cannot be decoded"):
        Decoder().decode(set, [])
