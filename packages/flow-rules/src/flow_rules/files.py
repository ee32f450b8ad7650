"""Files of rules: the output of ``flow ops --json``, strictly validated.

The form is described by ``schema.json`` of this package.  A file from elsewhere may be hostile:
nothing in it is imported or evaluated, and all numbers and lengths have limits.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from flow_rules.errors import RulesError
from flow_rules.layouts import Layout, Rule, Shape, Split, parse_layout

SCHEMA = 1
MOST_BYTES = 64 << 20
MOST_OPS = 10_000
MOST_CASES = 1_000
MOST_RULES = 1_000
MOST_TENSORS = 256
MOST_AXES = 32
MOST_NAME = 200
LARGEST_SIZE = 2**31 - 1
DEEPEST = 16
"""Levels of lists in an attribute."""
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "char",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a case."""

    shape: Shape  # shape, and name of the element type
    dtype: str
    # Least and greatest number of an input for which the case was made, None if it has no numbers.
    range: tuple[float, float] | None = None

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class RuleCase:
    """Attributes and types of an op, and the rules that hold for them.

    Attributes:
        attributes: all attributes; lists are tuples.
        inputs, outputs: the tensors.
        overwrites: the inputs that the op overwrites.
        rules: the rules for any number of devices, besides B for all inputs and outputs.
    """

    attributes: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    overwrites: tuple[int, ...]
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class OpRules:
    """An op and its cases."""

    type: str
    cases: tuple[RuleCase, ...]


@dataclass(frozen=True, slots=True)
class RulesFile:
    """A file of rules.

    Attributes:
        schema: version of the form.
        versions: the version of each package that the file names.
        ops: the ops.
    """

    schema: int
    versions: Mapping[str, str]
    ops: tuple[OpRules, ...]


def read_rules(path: str | os.PathLike[str]) -> RulesFile:
    """Read a file that ``flow ops --json`` has written.

    Raises:
        RulesError: the file is not a regular file, too large, of another schema, or not valid; the
            message names the place in the file.
    """
    path = Path(path)
    attempted = f"reading rules of {path}"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RulesError(f"{attempted}: found no regular file")
        if status.st_size > MOST_BYTES:
            raise RulesError(f"{attempted}: found {status.st_size} bytes, at most {MOST_BYTES}")
        data = path.read_bytes()
    except OSError as error:
        raise RulesError(f"{attempted}: {error.strerror or error}") from error
    try:
        return parse_rules(data)
    except RulesError as error:
        raise RulesError(f"{attempted}: {error}") from error


def parse_rules(data: bytes) -> RulesFile:
    """Parse the contents of a file of rules; raise `RulesError` if they are not valid."""
    try:
        document = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RulesError(f"no JSON: {error}"[:200]) from error
    root = _object(document, "the file")
    schema = _integer(_get(root, "schema", "the file"), "schema", 10**6)
    if schema != SCHEMA:
        raise RulesError(f"schema: found {schema}, expected {SCHEMA}")
    ops = _list(_get(root, "ops", "the file"), "ops", MOST_OPS, _op)
    names = [op.type for op in ops]
    for number, name in enumerate(names[1:], 1):
        if name <= names[number - 1]:
            _fail(f"ops[{number}].type", name, "ops in order of their types, each once")
    versions = {k: v[:MOST_NAME] for k, v in root.items() if isinstance(v, str)}
    return RulesFile(schema, versions, ops)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"found {text}, which JSON has not")


def _fail(where: str, found: object, expected: str) -> NoReturn:
    text = repr(found)
    raise RulesError(f"{where}: found {text[:60]}{'...' * (len(text) > 60)}, expected {expected}")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _fail(where, value, "an object")
    return value


def _get(value: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in value:
        _fail(where, sorted(value)[:8], f"the key {key!r}")
    return value[key]


def _list(value: Any, where: str, most: int, read: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        _fail(where, value, "a list")
    if len(value) > most:
        _fail(where, len(value), f"at most {most} entries")
    return tuple(read(item, f"{where}[{number}]") for number, item in enumerate(value))


def _integer(value: Any, where: str, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        _fail(where, value, f"an integer from 0 to {most}")
    return value


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MOST_NAME or not value.isprintable():
        _fail(where, value, f"a name of at most {MOST_NAME} printable characters")
    return value


def _op(value: Any, where: str) -> OpRules:
    op = _object(value, where)
    type_ = _name(_get(op, "type", where), f"{where}.type")
    return OpRules(type_, _list(_get(op, "cases", where), f"{where}.cases", MOST_CASES, _case))


def _case(value: Any, where: str) -> RuleCase:
    case = _object(value, where)

    def tensors(key: str) -> tuple[Tensor, ...]:
        return _list(_get(case, key, where), f"{where}.{key}", MOST_TENSORS, _tensor)

    given = _object(_get(case, "attributes", where), f"{where}.attributes")
    attributes = {
        _name(key, f"{where}.attributes"): _attribute(item, f"{where}.attributes.{key}", DEEPEST)
        for key, item in given.items()
    }
    inputs, outputs = tensors("inputs"), tensors("outputs")
    overwrites = _list(
        _get(case, "overwrites", where), f"{where}.overwrites", len(inputs),
        lambda item, at: _integer(item, at, len(inputs) - 1),
    )  # fmt: skip

    def rule(item: Any, at: str) -> Rule:
        row = _object(item, at)
        return Rule(
            _layouts(_get(row, "inputs", at), f"{at}.inputs", inputs),
            _layouts(_get(row, "outputs", at), f"{at}.outputs", outputs),
        )

    rules = _list(_get(case, "rules", where), f"{where}.rules", MOST_RULES, rule)
    if len(set(rules)) < len(rules):
        _fail(f"{where}.rules", [*map(str, rules)], "each rule once")
    return RuleCase(attributes, inputs, outputs, overwrites, rules)


def _tensor(value: Any, where: str) -> Tensor:
    tensor = _object(value, where)
    shape = _list(
        _get(tensor, "shape", where), f"{where}.shape", MOST_AXES,
        lambda item, at: _integer(item, at, LARGEST_SIZE),
    )  # fmt: skip
    dtype = _get(tensor, "dtype", where)
    if dtype not in DTYPES:
        _fail(f"{where}.dtype", dtype, ", ".join(DTYPES))
    bounds = tensor.get("range")
    return Tensor(shape, dtype, None if bounds is None else _range(bounds, f"{where}.range"))


def _range(value: Any, where: str) -> tuple[float, float]:
    bounds = _list(value, where, 2, _number)
    if len(bounds) != 2 or not bounds[0] <= bounds[1]:
        _fail(where, value, "the least and the greatest number")
    return bounds[0], bounds[1]


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e300:
        _fail(where, value, "a number")
    found: float = value
    return found


def _attribute(value: Any, where: str, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        if isinstance(value, int) and abs(value) >= 2**63:
            _fail(where, value, "an integer of 64 bits")
        return value
    if isinstance(value, list):
        if depth == 0:
            _fail(where, value, f"at most {DEEPEST} levels of lists")
        return tuple(_attribute(item, where, depth - 1) for item in value)
    if value in ({"float": "inf"}, {"float": "-inf"}, {"float": "nan"}):
        return float(value["float"])
    _fail(where, value, "null, a truth value, a number, a text, or a list of these")


def _layouts(value: Any, where: str, tensors: tuple[Tensor, ...]) -> tuple[Layout, ...]:
    def layout(item: Any, at: str) -> Layout:
        if not isinstance(item, str):
            _fail(at, item, "a layout as text")
        try:
            return parse_layout(item)
        except RulesError as error:
            raise RulesError(f"{at}: {error}") from None

    found = _list(value, where, len(tensors), layout)
    if len(found) != len(tensors):
        _fail(where, value, f"{len(tensors)} layouts")
    for number, (layout_, tensor) in enumerate(zip(found, tensors, strict=True)):
        if isinstance(layout_, Split) and layout_.axis >= len(tensor.shape):
            _fail(f"{where}[{number}]", str(layout_), f"an axis of {tensor}")
    return found
