"""The text form of graphs, one op per line: printing and parsing.

A line is ``name = type(inputs) : types @placement [sbp(...)] [after(...)] {attributes}``, for
example ``y = relu(x:0) : float32[4,3] @cpu[0:0] sbp(S(0)) after(x) {}``; the last two lines name
the results and the ops with effects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import FlowError, GraphError
from flow_core.ir.graph import Attrs, Graph, Op, TensorType, Value, tensor_type, verify
from flow_core.ir.literals import literal_text, parse_attributes
from flow_core.sharding.sbp import NdSbp, format_nd_sbp, parse_nd_sbp
from flow_core.sharding.topology import Placement

_BARE = re.compile(r"[\w./\-]+")
_NAME = r'(?:[\w./\-]+|"(?:[^"\\]|\\.)*")'
_VALUE = rf"{_NAME}:\d+"
_TYPE = r"\w+\[[\d,]*\]"
_LINE = re.compile(
    rf"(?P<name>{_NAME}) = (?P<type>\w+)\((?P<inputs>(?:{_VALUE}(?:, {_VALUE})*)?)\)"
    rf" : (?P<outputs>(?:{_TYPE}(?:; {_TYPE})*)?) ?@(?P<device>\w+)\[(?P<ids>[^\]]*)\]"
    r"(?: sbp\((?P<sbp>[^{]*?)\))?"
    rf"(?: after\((?P<after>(?:{_NAME}(?:, {_NAME})*)?)\))? (?=\{{)"
)
"""A line up to its attributes.  No text matches a list in two ways, so matching is fast."""


def print_graph(graph: Graph, lines: bool = False) -> str:
    """Return the text form of a graph; ``lines`` appends the user's lines as comments."""
    rows = ["graph", *_op_rows(graph, lines)]
    rows.append(f"return {', '.join(map(_value_text, graph.results))}".rstrip())
    rows.append(f"effects {', '.join(map(_name_text, graph.effects))}".rstrip())
    return "\n".join(rows) + "\n"


def _op_rows(graph: Graph, lines: bool) -> Iterator[str]:
    for op in graph.ops.values():
        line = graph.lines.get(op.name) if lines else None
        yield print_op(graph, op) + (f"  # {line}" if line else "")


def print_op(graph: Graph, op: Op) -> str:
    """Return one op as a line of text."""
    parts = [
        f"{_name_text(op.name)} = {op.type}({', '.join(map(_value_text, op.inputs))})",
        f": {'; '.join(map(str, graph.types[op.name]))}",
        f"@{op.placement}",
    ]
    if op.sbp:
        parts.append(f"sbp({'; '.join('-' if s is None else format_nd_sbp(s) for s in op.sbp)})")
    if op.control:
        parts.append(f"after({', '.join(map(_name_text, op.control))})")
    return " ".join([*parts, literal_text(dict(op.attrs))])


def _name_text(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _value_text(value: Value) -> str:
    return f"{_name_text(value.op)}:{value.index}"


def parse_graph(text: str) -> Graph:
    """Return the verified graph of a text form; raises `GraphError` with the number of a bad line.

    >>> from flow_core.ir.graph import GraphBuilder
    >>> empty = GraphBuilder().build()
    >>> parse_graph(print_graph(empty)) == empty
    True
    """
    ops: dict[str, Op] = {}
    types: dict[str, tuple[TensorType, ...]] = {}
    results: tuple[Value, ...] = ()
    effects: tuple[str, ...] = ()
    for number, row in enumerate(text.splitlines(), 1):
        row = row.strip()
        with _reading(number, row):
            if match := _LINE.match(row):
                op, outputs = _parse_op(row, match)
                if op.name in ops:
                    raise ValueError(f"a second op {op.name!r:.80}")
                ops[op.name], types[op.name] = op, outputs
            elif row == "return" or row.startswith("return "):
                results = tuple(map(_value, _listed(_VALUE, row[7:])))
            elif row == "effects" or row.startswith("effects "):
                effects = tuple(map(_name, _listed(_NAME, row[8:])))
            elif row not in ("", "graph"):
                raise ValueError("another form")
    graph = Graph(ops, types, results, effects)
    verify(graph)
    return graph


@contextmanager
def _reading(number: int, row: str) -> Iterator[None]:
    """Raise errors of a line as `GraphError` with its number."""
    try:
        yield
    except (ValueError, FlowError) as error:
        what = error.found if isinstance(error, FlowError) else error
        raise GraphError(
            f"reading line {number} of a graph",
            found=f"{what!s:.200} in {row!r:.80}",
            allowed="name = type(inputs) : types @placement [sbp(...)] [after(...)] {attributes}",
        ) from None


def _listed(item: str, text: str) -> list[str]:
    """Return the items of a list that is separated by commas."""
    if not re.fullmatch(rf"(?:{item}(?:, {item})*)?", text):
        raise ValueError(f"{text!r:.80}")
    return re.findall(item, text)


def _parse_op(row: str, match: re.Match[str]) -> tuple[Op, tuple[TensorType, ...]]:
    attrs, end = parse_attributes(row, match.end())
    if row[end:] and not row[end:].startswith("  # "):
        raise ValueError(f"{row[end:]!r:.40} after the attributes")
    outputs = tuple(map(_type, re.findall(_TYPE, match["outputs"])))
    op = Op(
        name=_name(match["name"]),
        type=match["type"],
        inputs=tuple(map(_value, re.findall(_VALUE, match["inputs"]))),
        attrs=Attrs(attrs),
        placement=_placement(match["device"], match["ids"]),
        sbp=_sbp(match["sbp"]),
        control=tuple(map(_name, re.findall(_NAME, match["after"] or ""))),
    )
    return op, outputs


def _name(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


def _value(text: str) -> Value:
    name, _, index = text.rpartition(":")
    return Value(_name(name), int(index))


def _type(text: str) -> TensorType:
    dtype, _, sizes = text.rstrip("]").partition("[")
    shape = tuple(int(n) for n in sizes.split(",") if n)
    return tensor_type(shape, as_dtype(dtype))


def _placement(device: str, text: str) -> Placement:
    ids, _, hierarchy = text.partition(" as ")
    shape = tuple(int(n) for n in hierarchy.split("x")) if hierarchy else None
    return Placement.parse(device, ids, shape)


def _sbp(text: str | None) -> tuple[NdSbp | None, ...]:
    if not text:
        return ()
    return tuple(None if part == "-" else parse_nd_sbp(part) for part in text.split("; "))
