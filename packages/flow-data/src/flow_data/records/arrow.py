"""Read Arrow's IPC files and streams with bounds.

pyarrow's own readers end the process for some damaged files, and for mapped files that another
program truncates. Here, the metadata is parsed in Python, and the bytes of a record batch are read
into memory. pyarrow receives buffers whose places and sizes have been compared with these bytes,
and then validates the values: offsets of lists and bytes, indices of dictionaries, and nulls.

Source of the format: Arrow's "Columnar Format", version 1.5, with ``Schema.fbs``, ``Message.fbs``
and ``File.fbs``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatbuffers import number_types as numbers
from flatbuffers.table import Table

from flow_data.records.arrow_types import VIEWS, Column, columns
from flow_data.records.flat import child, root, vector
from flow_data.records.opened import OpenFile

_MAGIC = b"ARROW1"
_CONTINUED = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_VERSIONS = (3, 4)
"""The numbers of the versions 4 and 5 of the metadata."""

_MOST = 1 << 30
"""The maximum size of a compressed record batch after decompression, in bytes."""

_CODECS = ("lz4", "zstd")


@dataclass(frozen=True)
class _Block:
    """A message: the first byte of its metadata and of its body, and the size of the body."""

    start: int
    body: int
    size: int


@dataclass(frozen=True)
class Batch:
    """A record batch of a file."""

    rows: int
    block: _Block
    # For each number of a dictionary, the places of its pieces.
    dictionaries: Mapping[int, tuple[_Block, ...]]


class ArrowFile:
    """An Arrow IPC file or stream.

    Raises:
        OSError: the path does not name a regular file, or the file cannot be opened.
        ValueError: the metadata is malformed, or does not fit into the file. Malformed metadata may
            also raise struct.error or TypeError.
    """

    def __init__(self, path: str, library: Any) -> None:
        self._library = library
        self._file = OpenFile(path)
        self._size = self._file.size
        self._cached: tuple[Any, dict[int, Any]] = (None, {})
        head = self._bytes(0, min(8, self._size))
        blocks = self._listed() if head[:6] == _MAGIC else self._chained()
        self._columns, self.batches = self._index(blocks)

    def _bytes(self, start: int, size: int) -> bytes:
        """Read bytes; another program may have truncated the file since it was opened."""
        if not 0 <= start <= start + size <= self._size:
            raise ValueError(f"{size} bytes at byte {start} of {self._size}")
        pieces = []
        while size:
            piece = self._file.read(size, start)
            if not piece:
                raise ValueError(f"{size} bytes less at byte {start}: the file has shrunk")
            pieces.append(piece)
            start, size = start + len(piece), size - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # ------------------------------------------------------------------------------- messages

    def _listed(self) -> Iterator[tuple[Table, _Block | None]]:
        """Yield the schema and the messages that the footer of a file lists."""
        (size,) = struct.unpack("<i", self._bytes(self._size - 10, 4))
        if self._bytes(self._size - 6, 6) != _MAGIC:
            raise ValueError("no footer: the file is not complete")
        footer = root(self._bytes(self._size - 10 - size, size))
        yield child(footer, 6, "schema"), None
        for slot in (8, 10):
            start, count = vector(footer, slot, 24) or (0, 0)
            for at in range(start, start + 24 * count, 24):
                place, length, body = struct.unpack_from("<qi4xq", footer.Bytes, at)
                yield self._message(place, length, body)

    def _chained(self) -> Iterator[tuple[Table, _Block | None]]:
        """Yield the messages of a stream, each of which follows the one before."""
        at = 0
        while at < self._size:
            message, block = self._message(at)
            if block is None:
                return
            if message.GetSlot(6, 0, numbers.Uint8Flags) == _SCHEMA:
                yield child(message, 8, "schema"), None
            else:
                yield message, block
            at = block.body + block.size

    def _message(
        self, at: int, listed: int | None = None, body: int | None = None
    ) -> tuple[Table, _Block | None]:
        """Return the message at a byte of the file; no block at the end of a stream."""
        start, (size,) = at + 4, struct.unpack("<I", self._bytes(at, 4))
        if size == _CONTINUED:
            start, (size,) = at + 8, struct.unpack("<I", self._bytes(at + 4, 4))
        if not size and listed is None:
            return Table(b"", 0), None
        if listed is not None and start + size > at + listed:
            raise ValueError(f"metadata of {size} bytes in {listed}")
        message = root(self._bytes(start, size))
        if message.GetSlot(4, 0, numbers.Int16Flags) not in _VERSIONS:
            raise ValueError("metadata of another version than 4 and 5")
        length = message.GetSlot(10, 0, numbers.Int64Flags)
        block = _Block(start, start + size if listed is None else at + listed, length)
        if length < 0 or block.body + length > self._size or body not in (None, length):
            raise ValueError(f"a body of {length} bytes at byte {block.body} of {self._size}")
        return message, block

    def _index(
        self, messages: Iterator[tuple[Table, _Block | None]]
    ) -> tuple[tuple[Column, ...], Sequence[Batch]]:
        schema, block = next(messages, (None, None))
        if schema is None or block is not None:
            raise ValueError("no schema")
        found: list[Batch] = []
        known: dict[int, tuple[_Block, ...]] = {}
        for message, place in messages:
            kind = message.GetSlot(6, 0, numbers.Uint8Flags)
            if place is None or kind not in (_DICTIONARY, _BATCH):
                raise ValueError(f"a message of kind {kind}")
            header = child(message, 8, "header")
            if kind == _BATCH:
                found.append(Batch(_rows(header), place, known))
                continue
            number = header.GetSlot(4, 0, numbers.Int64Flags)
            before = known.get(number, ()) if header.GetSlot(8, False, numbers.BoolFlags) else ()
            known = {**known, number: (*before, place)}
        return columns(schema, self._library), found

    # ---------------------------------------------------------------------------------- values

    def read(self, number: int) -> list[tuple[str, Any]]:
        """Return the name and the array of each column; a text if the column's type is not read.

        Raises:
            Exception: the batch is malformed, in one of many ways; pyarrow raises errors of its
                own classes.
        """
        batch = self.batches[number]
        dictionaries = self._dictionaries(batch.dictionaries)
        body = self._body(batch.block, _BATCH)
        arrays = [body.array(column, dictionaries) for column in self._columns]
        body.end()
        for array in arrays:
            if not isinstance(array, str):
                if len(array) != batch.rows:
                    raise ValueError(f"{len(array)} rows in a batch of {batch.rows}")
                array.validate(full=True)
        return list(zip((column.name for column in self._columns), arrays, strict=True))

    def _dictionaries(self, places: Mapping[int, tuple[_Block, ...]]) -> Mapping[int, Any]:
        """Return the dictionaries of a batch, in which earlier ones may be nested."""
        if self._cached[0] is not places:
            made: dict[int, Any] = {}
            for number, blocks in places.items():
                column = _value(self._columns, number)
                if column is not None and not column.refused:
                    made[number] = self._joined(column, blocks, made)
            self._cached = (places, made)
        return self._cached[1]

    def _joined(self, column: Column, blocks: Sequence[_Block], known: Mapping[int, Any]) -> Any:
        """Return a dictionary of one or more pieces."""
        pieces = []
        for block in blocks:
            body = self._body(block, _DICTIONARY)
            pieces.append(body.array(column, known))
            body.end()
            pieces[-1].validate(full=True)
        return self._library.concat_arrays(pieces)

    def _body(self, block: _Block, kind: int) -> _Body:
        metadata = self._bytes(block.start, block.body - block.start)
        header = child(root(metadata), 8, "header")
        if kind == _DICTIONARY:
            header = child(header, 6, "values")
        return _Body(header, self._bytes(block.body, block.size), self._library)


def _rows(header: Table) -> int:
    rows: int = header.GetSlot(4, 0, numbers.Int64Flags)
    if rows < 0:
        raise ValueError(f"a batch of {rows} rows")
    return rows


def _value(found: Sequence[Column], number: int) -> Column | None:
    """Return the values of a dictionary as a column."""
    for column in found:
        if column.dictionary == number:
            return Column(column.name, column.kind, column.buffers, column.made, column.parts)
        nested = _value(column.parts, number)
        if nested is not None:
            return nested
    return None


class _Body:
    """The bytes of a record batch, and its columns' nodes (length, nulls) and buffers in order."""

    def __init__(self, header: Table, data: bytes, library: Any) -> None:
        self._library = library
        self._data = library.py_buffer(data)
        self._nodes = iter(_structs(header, 6, "<qq"))
        self._buffers = iter(_structs(header, 8, "<qq"))
        self._views = iter(_structs(header, 12, "<q"))
        self._codec: Any = None
        self._left = _MOST
        self._most = 8 * len(data)
        if header.Offset(10):
            number = child(header, 10, "compression").GetSlot(4, 0, numbers.Int8Flags)
            if number not in range(len(_CODECS)):
                raise ValueError(f"compression of kind {number}")
            self._codec = library.Codec(_CODECS[number])
            self._most = 8 * _MOST

    def end(self) -> None:
        """Check that all nodes and buffers have been used."""
        if any(next(left, None) is not None for left in (self._nodes, self._buffers, self._views)):
            raise ValueError("more nodes or buffers than the schema's columns have")

    def array(
        self, column: Column, dictionaries: Mapping[int, Any], most: int | None = None
    ) -> Any:
        """Return a column; a text instead of an array if it is not read.

        Args:
            column: the column, which is the next one.
            dictionaries: the dictionaries by their numbers.
            most: the maximum length of the column; only a column outside of lists has none, since
                a length need not take any bytes in columns of nulls.
        """
        length, nulls = _next(self._nodes, "node")
        if not 0 <= nulls <= length or (most is not None and length > most):
            raise ValueError(f"{length} values, {nulls} nulls in {column.name!r}")
        if column.dictionary is not None:
            return self._encoded(column, length, nulls, dictionaries.get(column.dictionary))
        more = _next(self._views, "views")[0] if column.kind in VIEWS else 0
        buffers = [self._buffer() for _ in range(column.buffers + more)]
        inside = most if column.kind == "Struct" else self._most
        parts = [self.array(part, dictionaries, inside) for part in column.parts]
        if column.refused:
            return column.refused
        made = column.made(tuple(part.type for part in parts)) if column.made else None
        if column.kind == "Null":
            return self._library.Array.from_buffers(made, length, [None])
        return self._made(made, length, nulls, buffers, parts)

    def _encoded(self, column: Column, length: int, nulls: int, values: Any) -> Any:
        buffers = [self._buffer() for _ in range(2)]
        if column.refused:
            return column.refused
        if values is None:
            raise ValueError(f"no dictionary of {column.name!r}")
        indices = self._made(column.index, length, nulls, buffers, [])
        indices.validate(full=True)
        return self._library.DictionaryArray.from_arrays(indices, values)

    def _made(
        self, made: Any, length: int, nulls: int, buffers: list[Any], parts: Sequence[Any]
    ) -> Any:
        if not nulls:
            buffers[0] = None
        elif buffers[0].size * 8 < length:
            raise ValueError(f"{nulls} nulls in a bitmap of {buffers[0].size} bytes")
        if not length:  # writers may omit the first offset
            buffers[1:] = [b if b.size else self._library.py_buffer(bytes(8)) for b in buffers[1:]]
        from_buffers = self._library.Array.from_buffers
        return from_buffers(made, length, buffers, nulls, children=list(parts) or None)

    def _buffer(self) -> Any:
        start, size = _next(self._buffers, "buffer")
        if not 0 <= start <= start + size <= self._data.size or size < 0 or start % 8:
            raise ValueError(f"a buffer of {size} bytes at byte {start} of {self._data.size}")
        data = self._data.slice(start, size)
        if self._codec is None or not size:
            return data
        if size < 8:
            raise ValueError(f"a compressed buffer of {size} bytes")
        (declared,) = struct.unpack("<q", data.slice(0, 8))
        data = data.slice(8)
        if declared == -1:  # stored as it is
            return data
        self._left -= declared
        if declared < 0 or self._left < 0:
            raise ValueError(f"a buffer of {declared} bytes; a batch may have {_MOST} in all")
        return self._codec.decompress(data, declared)


def _structs(table: Table, slot: int, layout: str) -> Iterator[tuple[int, ...]]:
    width = struct.calcsize(layout)
    start, count = vector(table, slot, width) or (0, 0)
    return struct.iter_unpack(layout, table.Bytes[start : start + count * width])


def _next(values: Iterator[tuple[int, ...]], what: str) -> tuple[int, ...]:
    found = next(values, None)
    if found is None:
        raise ValueError(f"no {what} for a column of the schema")
    return found
