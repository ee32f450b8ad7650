"""Dataclasses are written as columns and read back; what does not fit is refused with its field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.base.decoding import Mismatch, parsed
from flow_core.base.formats.columns import Columns, Leaf


@dataclass(frozen=True)
class Color:
    text: str


@dataclass(frozen=True)
class Inner:
    count: int
    color: Color
    rates: tuple[float, ...] = ()
    place: int | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    flag: bool
    inner: tuple[Inner, ...]
    pairs: tuple[tuple[int, str], ...] = ()
    by_name: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    value: Any = None


def read_color(data: Any) -> Color:
    if data not in ("red", "green"):
        raise Mismatch(f"{data}", "red, green")
    return Color(data)


COLUMNS = Columns({Color: Leaf(lambda color: color.text, read_color)})
RED, GREEN = Color("red"), Color("green")
SOUND = Outer(
    "a \ud800é",
    True,
    (Inner(1, RED, (0.5, 2), 3), Inner(-(2**63), GREEN), Inner(2**64 - 1, RED, (float("inf"),))),
    ((1, "x"), (2, "y")),
    {"k": (1, 2), "": ()},
    (1, 1.0, True, ("b", None)),
)
TEXT = json.dumps(COLUMNS.encode(SOUND))


@pytest.mark.parametrize("value", [SOUND, Outer("", False, ())], ids=["full", "empty"])
def test_columns_round_trip(value: Outer) -> None:
    found = COLUMNS.decode(Outer, parsed(json.dumps(COLUMNS.encode(value))))
    assert found == value
    assert repr(found) == repr(value)  # which tells 1, 1.0 and True apart


def test_equal_leaves_are_written_once() -> None:
    assert TEXT.count('"red"') == TEXT.count('"green"') == 1


@pytest.mark.parametrize(
    ("before", "after", "where", "found"),
    [
        ("[true]", "[1]", ".flag", "1"),
        ("[true]", "[true, true]", ".flag", "a list of 2"),
        ("[true]", "{}", ".flag", "an object"),
        ('"x"', "1", ".pairs", "1"),
        ("[3], [[1,", "[0], [[1,", ".inner.count", "a list of 3"),
        ('"green"', '"blue"', ".inner.color", "blue"),
        ("[0, 1, 0]", "[0, 2, 0]", ".inner.color", "a position outside of the table"),
        ("[0, 1, 0]", "[0, -1, 0]", ".inner.color", "a position outside of the table"),
        ("8446744073709551615", "8446744073709551616", ".inner.count", "more than 64 bits"),
        ("[2, 0, 1]", "[2, -1, 2]", ".inner.rates", "a negative length"),
        ("[2, 0, 1]", "[2, 0, 1000000000000000000]", ".inner.rates", "a list of 3"),
        ("[[1, 2], [3]]", "[[1, 1], [3]]", ".inner.place", "wrong positions of None"),
        ("[[1, 2], [3]]", "[[1, 3], [3]]", ".inner.place", "wrong positions of None"),
        ("[[1, 2], [3]]", "[[1, 2], [3, 4]]", ".inner.place", "a list of 2"),
        ("[[1, 2], [3]]", "[7, [3]]", ".inner.place", "7"),
        ('["k", ""]', '["k", "k"]', ".by_name", "a name twice"),
        ('["b", null]', '{"b": 1}', ".value[3]", "an object"),
    ],
)
def test_what_does_not_fit_is_refused(before: str, after: str, where: str, found: str) -> None:
    assert TEXT.count(before) == 1
    with pytest.raises(Mismatch) as error:
        COLUMNS.decode(Outer, parsed(TEXT.replace(before, after)))
    assert error.value.where == where
    assert found in error.value.found


@given(st.data())
def test_mutated_texts_are_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(TEXT.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        found = COLUMNS.decode(Outer, parsed(bytes(content)))
    except Mismatch:
        return
    assert isinstance(found, Outer)
