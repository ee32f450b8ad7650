"""Files as ``torch.save`` writes them, made without torch, and damaged or hostile ones."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK, STOP = b"(", b"."
HOOKS = b"ccollections\nOrderedDict\n)R"


class Raw(bytes):
    """Opcodes that leave one value on the stack."""


def tensor(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    kind: str = "FloatStorage",
    *,
    key: str = "0",
    count: int | None = None,
    offset: int = 0,
    metadata: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> Raw:
    """A tensor: shape, strides, and its storage; ``dtype`` for the types without such storages."""
    module, _, name = ("torch." + kind).rpartition(".")
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    elements = offset + last + 1 if count is None else count
    storage = MARK + pickled("storage") + glob(module, name) + pickled(key) + pickled("cpu")
    out = glob("torch._utils", f"_rebuild_tensor_v{2 if dtype is None else 3}") + MARK
    out += storage + pickled(elements) + b"tQ" + pickled(offset) + pickled(shape)
    out += pickled(strides) + b"\x89" + HOOKS
    out += b"" if dtype is None else glob("torch", dtype)
    return Raw(out + (b"" if metadata is None else pickled(dict(metadata))) + b"tR")


def glob(module: str, name: str) -> Raw:
    """A function or class by its name."""
    return Raw(f"c{module}\n{name}\n".encode())


def called(module: str, name: str, *arguments: Any) -> Raw:
    """The result of a call."""
    return Raw(glob(module, name) + pickled(arguments) + b"R")


def pickled(value: Any) -> bytes:
    """The opcodes of a value made of dicts, lists, tuples, texts, numbers and `Raw` parts."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or value is None:
        return {True: b"\x88", False: b"\x89", None: b"N"}[value]
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(text)) + text
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return b"J" + struct.pack("<i", value)
        digits = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(digits)]) + digits
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, dict):
        return b"}(" + b"".join(pickled(x) for pair in value.items() for x in pair) + b"u"
    inner = b"".join(map(pickled, value))
    return b"](" + inner + b"e" if isinstance(value, list) else MARK + inner + b"t"


@dataclass(frozen=True)
class Saved:
    """A file of torch.

    Attributes:
        tree: the saved object, or the opcodes of its pickle.
        storages: data by key.
        byte_order: contents of the file "byteorder"; None for files of torch before 2.1.
        checksums: whether CRC-32s are computed.
        compressed: whether the files in it are compressed, which torch never does.
    """

    tree: Any
    storages: Mapping[str, bytes]
    byte_order: bytes | None = b"little"
    checksums: bool = True
    compressed: bool = False

    def data(self) -> bytes:
        """Return the file."""
        made = io.BytesIO()
        method = zipfile.ZIP_DEFLATED if self.compressed else zipfile.ZIP_STORED
        with zipfile.ZipFile(made, "w", method) as archive:
            files = {"data.pkl": b"\x80\x02" + pickled(self.tree) + STOP, "version": b"3\n"}
            if self.byte_order is not None:
                files["byteorder"] = self.byte_order
            files |= {f"data/{key}": data for key, data in self.storages.items()}
            for name, data in files.items():
                archive.writestr(zipfile.ZipInfo(f"archive/{name}"), data, method)
        return made.getvalue() if self.checksums else patched(made.getvalue(), crc=0)

    def write(self, path: Path) -> Path:
        """Write the file, and return its path."""
        path.write_bytes(self.data())
        return path


FIELDS = {"flags": ("<H", 6, 8), "method": ("<H", 8, 10), "crc": ("<I", 14, 16),
          "packed": ("<I", 18, 20), "size": ("<I", 22, 24)}  # fmt: skip
"""Format and offsets of fields in the local header and in the directory of a zip file."""


def patched(data: bytes, name: str = "", **fields: int) -> bytes:
    """A zip file with other fields in the two headers of its file ``name``, or of all files."""
    made = bytearray(data)
    for place, (signature, at) in enumerate(((b"PK\3\4", 30), (b"PK\1\2", 46))):
        start = made.find(signature)
        while start >= 0:
            (length,) = struct.unpack_from("<H", made, start + (26, 28)[place])
            if made[start + at : start + at + length].endswith(name.encode()):
                for field, value in fields.items():
                    form, *offsets = FIELDS[field]
                    struct.pack_into(form, made, start + offsets[place], value)
            start = made.find(signature, start + 4)
    return bytes(made)
