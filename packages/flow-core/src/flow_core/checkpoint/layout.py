"""Names of variables as paths, and the text of OneFlow's ``meta`` files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from flow_core.dtypes import as_dtype
from flow_core.errors import CheckpointError
from flow_core.ir import TensorType
from flow_core.shapes import Shape

DATA = "out"
META = "meta"
DONE = "snapshot_done"

_PROTO_NAMES: Mapping[str, str] = {
    "char": "kChar",
    "float32": "kFloat",
    "float64": "kDouble",
    "int8": "kInt8",
    "int32": "kInt32",
    "int64": "kInt64",
    "uint8": "kUInt8",
    "float16": "kFloat16",
    "bfloat16": "kBFloat16",  # this and bool came after 0.3.4, which cannot read them
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
_DTYPES = {**_PROTO_NUMBERS, **{proto: name for name, proto in _PROTO_NAMES.items()}}


def path_parts(name: str) -> tuple[str, ...]:
    """The folders of a variable's name; raises `CheckpointError` for one that leaves the folder.

    >>> path_parts("encoder/dense-weight")
    ('encoder', 'dense-weight')
    """
    parts = tuple(name.split("/"))
    if any(part in ("", ".", "..") for part in parts) or re.search(r"[\0\\]|^[A-Za-z]:", name):
        raise CheckpointError(
            "a variable's name as a path in a checkpoint",
            found=repr(name),
            allowed="relative names without empty parts, '.', '..', backslashes and drive letters",
        )
    return parts


def check_names(names: Iterable[str]) -> None:
    """Refuses names that cannot stand side by side in one folder.

    A variable's folder holds the files ``out`` and ``meta``, so that ``a`` and ``a/out`` clash.
    """
    known = {path_parts(name) for name in names}
    if (DONE,) in known:
        raise CheckpointError(f"a variable named {DONE!r}", found="the name of a file of its own")
    for parts in known:
        if parts[-1] in (DATA, META) and parts[:-1] in known:
            raise CheckpointError(
                "saving variables",
                found=f"{'/'.join(parts)!r} beside {'/'.join(parts[:-1])!r}",
                allowed=f"no variable named {DATA!r} or {META!r} below another one",
            )


def meta_text(kind: TensorType) -> str:
    """The ``meta`` file of a variable: a protobuf message in text form.

    >>> from flow_core.dtypes import float32
    >>> print(meta_text(TensorType((2, 3), float32)), end="")
    shape {
      dim: 2
      dim: 3
    }
    data_type: kFloat
    """
    dims = "".join(f"  dim: {n}\n" for n in kind.shape)
    return f"shape {{\n{dims}}}\ndata_type: {_PROTO_NAMES[kind.dtype.name]}\n"


_COMMENT = re.compile(r"#[^\n]*")
_MESSAGE = re.compile(
    r"\s*(?:(?:shape\s*:?\s*(?P<shape>\{[^{}]*\}|<[^<>]*>)"
    r"|data_type\s*:\s*(?P<dtype>\w+))\s*[;,]?\s*)",
)
_DIMS = re.compile(r"\s*dim\s*:\s*(?:(?P<one>\d+)|\[(?P<many>[\s\d,]*)\])\s*[;,]?\s*")


def parse_meta(text: str, file: Path) -> TensorType:
    """Reads a ``meta`` file in any spelling of protobuf's text form.

    >>> str(parse_meta("data_type: 3 shape: <dim: [4, 5]>", Path("meta")))
    'float64[4,5]'
    """
    fields: dict[str, str] = {}
    rest = _COMMENT.sub("", text)
    while match := _MESSAGE.match(rest):
        fields.update({k: v for k, v in match.groupdict().items() if v is not None})
        rest = rest[match.end() :]
    shape = _parse_dims(fields.get("shape", ""))
    dtype = _DTYPES.get(fields.get("dtype", ""))
    if rest.strip() or shape is None or dtype is None:
        raise CheckpointError(
            f"reading {file}",
            found=f"{text!r:.120}",
            allowed="a shape and a data_type, such as 'shape { dim: 2 } data_type: kFloat'",
        )
    return TensorType(shape, as_dtype(dtype))


def _parse_dims(text: str) -> Shape | None:
    if not text:
        return None
    rest, dims = text[1:-1].strip(), []
    while match := _DIMS.match(rest):
        dims += [int(n) for n in re.findall(r"\d+", match["one"] or match["many"])]
        rest = rest[match.end() :]
    return None if rest else tuple(dims)
