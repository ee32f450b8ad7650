"""The mapping from variable names to paths, and the format of OneFlow's ``meta`` files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

from flow_core.base.dtypes import ALL
from flow_core.base.errors import CheckpointError
from flow_core.ir.graph import TensorType

DATA = "out"
META = "meta"
DONE = "snapshot_done"
SUMS = "flow.sha256"

_PROTO_NAMES: Mapping[str, str] = {
    "char": "kChar",
    "float32": "kFloat",
    "float64": "kDouble",
    "int8": "kInt8",
    "int32": "kInt32",
    "int64": "kInt64",
    "uint8": "kUInt8",
    "float16": "kFloat16",
    "bfloat16": "kBFloat16",  # OneFlow 0.3.4 cannot read bfloat16 and bool, which are newer
    "bool": "kBool",
}
_PROTO_NUMBERS: Mapping[str, str] = {
    "1": "char",
    "2": "float32",
    "3": "float64",
    "4": "int8",
    "5": "int32",
    "6": "int64",
    "7": "uint8",
    "9": "float16",
    "11": "bfloat16",
    "12": "bool",
}
_ELEMENTS = {dtype.name: dtype for dtype in ALL}
_DTYPES = {**_PROTO_NUMBERS, **{proto: name for name, proto in _PROTO_NAMES.items()}}


_LONGEST_PART = 255
_LONGEST_NAME = 2000
"""Length limits in bytes: of a file name on common file systems, and of a variable's name, which is
its relative path."""


def name_problem(name: str) -> str | None:
    """Return why no checkpoint format can store a variable of this name, or None if it can.

    The name of a variable is the path of its folder in a checkpoint.  That folder holds the files
    ``out`` and ``meta``, so a variable ``a/out`` would clash with the data of a variable ``a``.

    >>> name_problem("encoder/dense-weight")
    >>> name_problem("../weight")
    "an empty part, '.' or '..'"
    """
    parts = name.split("/")
    encoded = name.encode("utf-8", "surrogatepass")
    problems = {
        "a surrogate, which UTF-8 cannot encode": encoded != name.encode("utf-8", "replace"),
        "a NUL character": "\0" in name,
        "a backslash": "\\" in name,
        "a drive letter": re.match("[A-Za-z]:", name),
        "an empty part, '.' or '..'": not {"", ".", ".."}.isdisjoint(parts),
        f"a part named {DATA!r} or {META!r} below another name, which are files of a variable": (
            not {DATA, META}.isdisjoint(parts[1:])
        ),
        "a first part that names a file of the checkpoint itself": parts[0]
        in (DONE, SUMS, "__metadata__"),
        f"a part of more than {_LONGEST_PART} bytes": (
            max(map(len, encoded.split(b"/"))) > _LONGEST_PART
        ),
        f"more than {_LONGEST_NAME} bytes": len(encoded) > _LONGEST_NAME,
    }
    return next((problem for problem, applies in problems.items() if applies), None)


NAMES_ALLOWED = (
    "names that are relative paths in every checkpoint format, such as 'encoder/dense-weight'"
)


def path_parts(name: str) -> tuple[str, ...]:
    """Split a variable's name into folders; raise `CheckpointError` for an invalid name.

    >>> path_parts("encoder/dense-weight")
    ('encoder', 'dense-weight')
    """
    problem = name_problem(name) if isinstance(name, str) else "another type than text"
    if problem:
        raise CheckpointError(
            f"saving variable {name!a:.120}", found=f"a name with {problem}", allowed=NAMES_ALLOWED
        )
    return tuple(name.split("/"))


def check_names(names: Iterable[str]) -> None:
    """Raise `CheckpointError` for names that no checkpoint can store."""
    for name in names:
        path_parts(name)


def meta_text(kind: TensorType) -> str:
    """Format the ``meta`` file of a variable: a protobuf message in text form.

    >>> from flow_core.base.dtypes import float32
    >>> print(meta_text(TensorType((2, 3), float32)), end="")
    shape {
      dim: 2
      dim: 3
    }
    data_type: kFloat
    """
    dims = "".join(f"  dim: {n}\n" for n in kind.shape)
    return f"shape {{\n{dims}}}\ndata_type: {_PROTO_NAMES[kind.dtype.name]}\n"


LONGEST_META = 1 << 16
"""Largest size of a ``meta`` file in bytes; the file is read as a whole."""

MOST_AXES = 64  # the limit of numpy
MOST_BYTES = (1 << 63) - 1

_TOKEN = re.compile(r"#[^\n]*|[A-Za-z_][A-Za-z_0-9]*|[0-9]+|\S", re.ASCII)
_END = "(?: [;,])?"
_DIMS = rf"(?: dim : (?:[0-9]+|\[(?: [0-9]+(?: , [0-9]+)*)? \]){_END})*"
_SHAPE = rf"shape(?: :)? (?P<shape>\{{{_DIMS} \}}|<{_DIMS} >){_END}"
_TYPE = rf"data_type : (?P<dtype>[A-Za-z0-9_]+){_END}"
_META = tuple(re.compile(f"{one} {other}") for one, other in ((_SHAPE, _TYPE), (_TYPE, _SHAPE)))


def parse_meta(text: str | bytes, file: Path) -> TensorType:
    """Parse the text of a ``meta`` file, in any notation of protobuf's text format, in linear time.

    Raises:
        CheckpointError: the text is not that of a ``meta`` file, or describes a shape and element
            type that no array can have.

    >>> str(parse_meta("data_type: 3 shape: <dim: [4, 5]>", Path("meta")))
    'float64[4,5]'
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    match = _match_meta(text) if len(text) <= LONGEST_META else None
    dtype = _DTYPES.get(match["dtype"]) if match else None
    dims = re.findall("[0-9]+", match["shape"]) if match else []
    kind = stored_type(dims, dtype) if dtype else None
    if kind is None:
        raise CheckpointError(
            f"reading {file}",
            found=f"{text!r:.120}",
            allowed="a shape and a data_type, such as 'shape { dim: 2 } data_type: kFloat'",
        )
    return kind


def _match_meta(text: str) -> re.Match[str] | None:
    tokens = (token for token in _TOKEN.findall(text) if not token.startswith("#"))
    plain = " ".join(tokens)
    return next(filter(None, (form.fullmatch(plain) for form in _META)), None)


def stored_type(dims: Sequence[object], dtype: object) -> TensorType | None:
    """Return the type that a file declares for an array, or None if no array can have it.

    Args:
        dims: the dimensions, as integers or as strings of decimal digits.

    >>> str(stored_type(["2", 3], "int8")), stored_type([2, -1], "int8"), stored_type([], "record")
    ('int8[2,3]', None, None)
    """
    sizes = [int(n) if isinstance(n, str) and len(n) < 20 else n for n in dims]
    element = _ELEMENTS.get(dtype) if isinstance(dtype, str) else None
    if element is None or len(sizes) > MOST_AXES or any(type(n) is not int for n in sizes):
        return None
    shape = tuple(n for n in sizes if isinstance(n, int))
    filled = prod(n or 1 for n in shape) * element.itemsize
    return (
        TensorType(shape, element) if min(shape, default=0) >= 0 and filled <= MOST_BYTES else None
    )
