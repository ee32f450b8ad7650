"""Attributes of ops as text: numbers, strings, None, and tuples of these, as Python writes them.

`ast.literal_eval` would accept other values, and needs much memory for deep or long texts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from flow_core.ir.graph import AttrValue

DEEPEST = 64
"""Largest depth of tuples."""

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<number>-?(?:[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|nan))|(?P<word>True|False|None)"
    r"|(?P<mark>[(){},:]))",
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:([\\'\"])|([nrt])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|)", re.DOTALL
)
_WORDS = {"True": True, "False": False, "None": None}
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}

Token = tuple[str, str, int]
"""Kind and text of a token, and the position behind it."""


def literal_text(value: AttrValue) -> str:
    """Return the text of a value, or of a dict of values."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {literal_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        inner = ", ".join(map(literal_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "1e999" if value > 0 else "-1e999"
    return repr(value)


def parse_attributes(text: str, start: int = 0) -> tuple[dict[str, AttrValue], int]:
    """Parse a dict of values; return it, and the position behind it.

    Raises:
        ValueError: the text has another form, or tuples are nested deeper than `DEEPEST`.

    >>> parse_attributes("{'shape': (2, -1), 'name': 'x', 'scale': 1e999}  # a.py:3")
    ({'shape': (2, -1), 'name': 'x', 'scale': inf}, 47)
    """
    tokens = _tokens(text, start)
    attributes: dict[str, AttrValue] = {}
    _take(tokens, "{")
    token = next(tokens)
    while token[1] != "}":
        kind, key, at = token
        name = _unescaped(key) if kind == "text" else key
        if kind != "text" or name in attributes:
            raise ValueError(f"{key:.40} as the name of an attribute, before column {at}")
        _take(tokens, ":")
        attributes[name] = _value(next(tokens), tokens, DEEPEST)
        token = next(tokens)
        if token[1] == ",":
            token = next(tokens)
        elif token[1] != "}":
            raise ValueError(f"{token[1]:.40} after an attribute, before column {token[2]}")
    return attributes, token[2]


def _tokens(text: str, at: int) -> Iterator[Token]:
    while True:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"{text[at : at + 40]!r} at column {at}")
        at = match.end()
        yield match.lastgroup, match[match.lastgroup], at


def _take(tokens: Iterator[Token], wanted: str) -> None:
    _, text, at = next(tokens)
    if text != wanted:
        raise ValueError(f"{text:.40} instead of {wanted!r} before column {at}")


def _value(token: Token, tokens: Iterator[Token], depth: int) -> AttrValue:
    kind, text, at = token
    if kind == "text":
        return _unescaped(text)
    if kind == "word":
        return _WORDS[text]
    if kind == "number":
        return float(text) if set(text) & set(".en") else int(text)
    if text != "(" or not depth:
        raise ValueError(f"{text} as a value, before column {at}")
    return tuple(_items(tokens, depth - 1))


def _items(tokens: Iterator[Token], depth: int) -> Iterator[AttrValue]:
    """Yield the items of a tuple up to its closing parenthesis."""
    token = next(tokens)
    while token[1] != ")":
        yield _value(token, tokens, depth)
        token = next(tokens)
        if token[1] == ",":
            token = next(tokens)
        elif token[1] != ")":
            raise ValueError(f"{token[1]:.40} in a tuple, before column {token[2]}")


def _unescaped(quoted: str) -> str:
    return _ESCAPE.sub(_character, quoted[1:-1])


def _character(match: re.Match[str]) -> str:
    same, letter, *codes = match.groups()
    code = next((int(text, 16) for text in codes if text), None)
    if code is not None and code <= sys.maxunicode:
        return chr(code)
    if same is None and letter is None:
        raise ValueError(f"the escape {match[0]!r} in a text")
    return same or _LETTERS[letter]
