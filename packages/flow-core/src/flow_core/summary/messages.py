"""The messages of event files, in protobuf's wire format and text format.

A message is a dict of its fields by name; the value of a repeated field is a list.  `SCHEMA`
defines the message types; a new type needs only a new row.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flow_core.base.errors import DataError

Fields = dict[str, Any]

TENSOR_TYPES = (
    "DT_INVALID", "DT_FLOAT", "DT_DOUBLE", "DT_INT32", "DT_UINT8", "DT_INT16", "DT_INT8",
    "DT_STRING", "DT_INT64", "DT_UINT16", "DT_HALF", "DT_UINT32", "DT_UINT64",
)  # fmt: skip
ENUMS: dict[str, dict[str, int]] = {
    "TensorDataType": {name: number for number, name in enumerate(TENSOR_TYPES)},
    "ProjectorType": {"EMBEDDING": 0, "EXCEPTION": 1},
    "SampleType": {"IMAGE": 0, "AUDIO": 1, "TEXT": 2},
}

SCHEMA: dict[str, str] = {
    "Event": "wall_time:1:double step:2:int file_version:3:string graph_def:4:bytes "
    "summary:5:Summary meta_graph_def:9:bytes",
    "Summary": "value:1:Value*",
    "Value": "tag:1:string simple_value:2:float obsolete_old_style_histogram:3:bytes image:4:Image "
    "histo:5:HistogramProto node_name:7:string tensor:8:TensorProto metadata:9:SummaryMetadata",
    "SummaryMetadata": "plugin_data:1:PluginData display_name:2:string "
    "summary_description:3:string",
    "PluginData": "plugin_name:1:string content:2:bytes",
    "Image": "height:1:int width:2:int colorspace:3:int encoded_image_string:4:bytes",
    "HistogramProto": "min:1:double max:2:double num:3:double sum:4:double sum_squares:5:double "
    "bucket_limit:6:double+ bucket:7:double+",
    "TensorProto": "dtype:1:TensorDataType tensor_shape:2:TensorShapeProto version_number:3:int "
    "tensor_content:4:bytes float_val:5:float+ double_val:6:double+ int_val:7:int+ "
    "string_val:8:bytes* int64_val:9:int+ bool_val:10:bool+ uint32_val:11:int+ uint64_val:12:int+ "
    "half_val:13:int+",
    "TensorShapeProto": "dim:2:Dim*",
    "Dim": "size:1:int name:2:string",
    "HParamsPluginData": "version:1:int session_start_info:3:SessionStartInfo",
    "SessionStartInfo": "hparams:1:Entry* group_name:4:string start_time_secs:5:double "
    "metrics:6:Entry*",
    "Entry": "key:1:string value:2:Scalar",
    "Scalar": "number_value:2:double string_value:3:string bool_value:4:bool",
    "SummaryProjector": "projector:1:Projector* sample:2:Sample metadata:6:MetaData",
    "MetaData": "type:1:ProjectorType content:2:string",
    "Projector": "tag:1:string step:2:int WALL_TIME:3:double value:4:Tensor label:5:Tensor",
    "Sample": "name:1:string type:2:SampleType X:3:Tensor",
    "Tensor": "dtype:1:string shape:2:TensorShape content:3:bytes",
    "TensorShape": "dim:1:Dim*",
}
"""Fields as ``name:number:type``, with ``*`` for repeated ones and ``+`` for packed ones."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message."""

    number: int  # the field's number in the wire format
    type: str  # name of a scalar type, an enumeration or a message type
    many: bool = False  # whether the field is repeated
    packed: bool = False  # whether the values of the repeated field are encoded in one block


def _field(text: str) -> tuple[str, Field]:
    name, number, kind = text.split(":")
    many = kind[-1] in "*+"
    return name, Field(int(number), kind.rstrip("*+"), many, kind.endswith("+"))


FIELDS = {name: dict(map(_field, text.split())) for name, text in SCHEMA.items()}


class Message:
    r"""A message: its type and its fields.

    >>> made = Message("PluginData", {"plugin_name": "text"})
    >>> print(made)
    plugin_name: "text"
    >>> made.SerializeToString()
    b'\n\x04text'
    """

    __slots__ = ("fields", "type")

    def __init__(self, type: str, fields: Fields) -> None:
        self.type = type
        self.fields = fields

    def SerializeToString(self) -> bytes:
        """Return the message in wire format."""
        return encoded(self.type, self.fields)

    def __str__(self) -> str:
        return "\n".join(_text(self.type, self.fields, ""))


# ------------------------------------------------------------------------------------ the wire


def _varint(number: int) -> bytes:
    r"""Encode an integer as a varint: in groups of seven bits, the lowest first.

    >>> _varint(300), len(_varint(-1))
    (b'\xac\x02', 10)
    """
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


SCALARS: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "double": (1, struct.Struct("<d").pack),
    "float": (5, struct.Struct("<f").pack),
    "int": (0, lambda value: _varint(int(value))),
    "bool": (0, lambda value: _varint(bool(value))),
    "string": (2, _as_bytes),
    "bytes": (2, _as_bytes),
}
"""For each scalar type: its wire type, and the function that encodes a value."""


def encoded(type: str, fields: Mapping[str, Any]) -> bytes:
    """Encode a message in wire format, with the fields in the order of their numbers."""
    known = FIELDS[type]
    rows = sorted((known[name].number, known[name], value) for name, value in fields.items())
    return b"".join(part for _, field, value in rows for part in _parts(field, value))


def _parts(field: Field, value: Any) -> Iterator[bytes]:
    if field.packed:
        yield _block(field.number, b"".join(_payload(field.type, v)[1] for v in value))
        return
    for each in value if field.many else (value,):
        wire, payload = _payload(field.type, each)
        if wire == 2:
            yield _block(field.number, payload)
        else:
            yield _varint(field.number << 3 | wire) + payload


def _block(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _payload(type: str, value: Any) -> tuple[int, bytes]:
    if type in SCALARS:
        wire, form = SCALARS[type]
        return wire, form(value)
    if type in ENUMS:
        return 0, _varint(ENUMS[type][value] if isinstance(value, str) else int(value))
    return 2, encoded(type, value)


# ------------------------------------------------------------------------------------ the text


def _text(type: str, fields: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in fields.items():
        field = FIELDS[type][name]
        for each in value if field.many else (value,):
            if field.type in FIELDS:
                yield f"{indent}{name} {{"
                yield from _text(field.type, each, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name}: {_literal(field.type, each)}"


def _literal(type: str, value: Any) -> str:
    if type in ("string", "bytes"):
        return '"' + "".join(map(_escaped, _as_bytes(value))) + '"'
    if type == "bool":
        return "true" if value else "false"
    return repr(float(value)) if type in ("double", "float") else str(value)


def _escaped(byte: int) -> str:
    if chr(byte) in '"\\':
        return "\\" + chr(byte)
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


_TOKEN = re.compile(r'\s*(?:#[^\n]*\s*)*("(?:[^"\\]|\\.)*"|[{}<>:;,]|[^\s{}<>:;,"]+)')
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_NAMED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def parsed(type: str, text: str) -> Fields:
    r"""Parse the text form of a message, and return its fields.

    >>> parsed("PluginData", 'plugin_name: "a\101" content: "\000"')
    {'plugin_name': b'aA', 'content': b'\x00'}

    Raises `DataError` if the text is not the text form of a message of this type.
    """
    tokens = [t for t in _TOKEN.findall(text) if t not in (";", ",")]
    if not _TOKEN.sub("", text).strip() == "":
        raise _unreadable(type, text)
    tokens.reverse()
    try:
        return _fields(type, tokens, "")
    except (IndexError, KeyError, ValueError):
        raise _unreadable(type, text) from None


def _unreadable(type: str, text: str) -> DataError:
    return DataError(
        f"reading the text of a {type}",
        found=f"{text!r:.80}",
        allowed="the result of str(message) for a message of flow.summary.text or hparams",
    )


def _fields(type: str, tokens: list[str], end: str) -> Fields:
    """Parse fields up to the closing bracket ``end``, or to the end of the text if it is empty."""
    found: Fields = {}
    while (tokens or end) and (tokens[-1] != end if tokens else True):
        name = tokens.pop()
        field = FIELDS[type][name]
        value = _value(field.type, tokens)
        if field.many:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    if end:
        tokens.pop()
    return found


def _value(type: str, tokens: list[str]) -> Any:
    token = tokens.pop()
    if token == ":":
        token = tokens.pop()
    if type in FIELDS:
        return _fields(type, tokens, {"{": "}", "<": ">"}[token])
    if type in ("string", "bytes"):
        value = _unescaped(token)
        while tokens and tokens[-1].startswith('"'):
            value += _unescaped(tokens.pop())
        return value
    if type in ENUMS:
        return ENUMS[type][token] if token in ENUMS[type] else int(token)
    if type == "bool":
        return {"true": True, "false": False, "1": True, "0": False}[token]
    return int(token, 0) if type == "int" else float(token)


def _unescaped(token: str) -> bytes:
    if len(token) < 2 or token[0] != '"':
        raise ValueError(token)
    return _ESCAPE.sub(_byte, token[1:-1].encode())


def _byte(found: re.Match[bytes]) -> bytes:
    what = found[1]
    if what[:1] == b"x" and len(what) > 1:
        return bytes([int(what[1:], 16)])
    if what[:1].isdigit():
        return bytes([int(what, 8) & 255])
    return _NAMED.get(what, what)
