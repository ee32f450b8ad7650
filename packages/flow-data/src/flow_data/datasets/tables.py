"""Tables of numbers and text: `csv` and `text`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from typing import NamedTuple

import numpy as np

from flow_core.base.errors import DataError, nearest
from flow_core.base.formats.regular_files import open_regular
from flow_data.datasets.files import Examples
from flow_data.instances import Array

PathLike = str | os.PathLike[str]


class Table(NamedTuple):
    """The columns of a table.

    Attributes:
        inputs: float32, shape (rows, columns).
        labels: the column of labels: int32 for integers and for classes, else float32; None
            without one.
        names: the names of the columns of ``inputs``.
        classes: the texts that the labels number, in alphabetical order; empty for numbers.
    """

    inputs: Array
    labels: Array | None
    names: tuple[str, ...]
    classes: tuple[str, ...]

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.inputs.shape))
        return f"Table({shape}, names={list(self.names)}, classes={list(self.classes)})"


def csv(path: PathLike, label: str | int | None = -1, *, delimiter: str = ",") -> Table:
    r"""Read a table of numbers, with or without a line of names.

    Args:
        path: the file, in UTF-8.
        label: name or number of the column of labels, by default the last one; None for none.
        delimiter: what separates columns.

    Returns:
        The columns of numbers, and the labels.

    Raises:
        DataError: the file cannot be read, lines have different numbers of columns, a value is not
            a number, or there is no such column.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+") as file:
    ...     _ = file.write("length,kind\n1.5,b\n2.5,a\n")
    ...     _ = file.seek(0)
    ...     table = csv(file.name)
    >>> table, table.labels
    (Table(2 x 1, names=['length'], classes=['a', 'b']), array([1, 0], dtype=int32))
    """
    rows = _rows(path, delimiter)
    names = tuple(f"column {i}" for i in range(len(rows[0])))
    if not any(map(_is_number, rows[0])):
        names, rows = tuple(rows[0]), rows[1:]
    if not rows:
        what = f"reading {os.fspath(path)!r}"
        raise DataError.at_caller(what, found="names alone", allowed="one line or more")
    chosen = _column(label, names)
    columns = list(zip(*rows, strict=True))
    inputs = [_floats(path, names[i], c) for i, c in enumerate(columns) if i != chosen]
    kept = tuple(name for i, name in enumerate(names) if i != chosen)
    labels, classes = (None, ()) if chosen is None else _labels(columns[chosen])
    return Table(
        np.array(inputs, np.float32).T.reshape(len(rows), len(inputs)), labels, kept, classes
    )


def _rows(path: PathLike, delimiter: str) -> list[list[str]]:
    import csv as reader

    what = f"reading {os.fspath(path)!r}"
    try:
        with TextIOWrapper(open_regular(path), "utf-8-sig", newline="") as file:
            rows = [
                [cell.strip() for cell in row] for row in reader.reader(file, delimiter=delimiter)
            ]
    except (OSError, ValueError, TypeError, reader.Error) as error:
        raise DataError.at_caller(what, found=f"{type(error).__name__}: {error}") from error
    rows = [row for row in rows if row]
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        found = f"lines of {' and '.join(map(str, sorted(widths)))} columns" if rows else "no line"
        raise DataError.at_caller(what, found=found, allowed="lines of one length")
    return rows


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(label: str | int | None, names: Sequence[str]) -> int | None:
    count = len(names)
    if label is None:
        return None
    if isinstance(label, str) and label in names:
        return names.index(label)
    if isinstance(label, int) and -count <= label < count:
        return label % count
    raise DataError.at_caller(
        "flow.data.datasets.csv",
        found=f"label={label!r:.60}",
        allowed=f"None, a number from {-count} to {count - 1}, or one of {', '.join(names)}",
        hint=nearest(str(label), names) or None,
    )


def _floats(path: PathLike, name: str, column: Sequence[str]) -> list[float]:
    for row, text in enumerate(column):
        if not _is_number(text):
            raise DataError.at_caller(
                f"reading {os.fspath(path)!r}",
                found=f"{text!r:.60} in {name!r}, row {row}",
                allowed="numbers in all columns but that of the labels",
            )
    return [float(text) for text in column]


def _labels(column: Sequence[str]) -> tuple[Array, tuple[str, ...]]:
    if not all(map(_is_number, column)):
        classes = tuple(sorted(set(column)))
        return np.array([classes.index(text) for text in column], np.int32), classes
    found = np.array([float(text) for text in column])
    whole = np.isfinite(found).all() and (found == np.rint(found)).all()
    return found.astype(
        np.int32 if whole and np.abs(found).max(initial=0) < 2**31 else np.float32
    ), ()


@dataclass(frozen=True)
class Text:
    """A text as numbers of characters.

    Attributes:
        tokens: int32, one number per character.
        vocabulary: the characters that the numbers stand for, in the order of their code points.
    """

    tokens: Array = field(repr=False)
    vocabulary: str

    def encode(self, text: str) -> Array:
        """Return the numbers of the characters of another text.

        Raises:
            DataError: the vocabulary lacks a character.
        """
        numbers = {c: i for i, c in enumerate(self.vocabulary)}
        missing = [c for c in text if c not in numbers]
        if missing:
            raise DataError.at_caller(
                "Text.encode",
                found=f"the character {missing[0]!r}",
                allowed=f"the characters {self.vocabulary!r:.200}",
            )
        return np.array([numbers[c] for c in text], np.int32)

    def decode(self, tokens: Sequence[int] | Array) -> str:
        return "".join(self.vocabulary[int(i)] for i in np.ravel(tokens))

    def examples(self, length: int) -> Examples:
        """Return sections of the text as inputs, and the same sections one character later.

        Raises:
            DataError: the text is shorter than a section.
        """
        count = (len(self.tokens) - 1) // length if isinstance(length, int) and length > 0 else 0
        if count < 1:
            raise DataError.at_caller(
                "Text.examples",
                found=f"length={length!r:.40}",
                allowed=f"1 to {len(self.tokens) - 1}",
            )
        parts = (self.tokens[start : start + count * length] for start in (0, 1))
        return Examples(*(part.reshape(count, length) for part in parts))


def text(path: PathLike) -> Text:
    """Read a text file in UTF-8 as a sequence of characters.

    Args:
        path: the file.

    Returns:
        The numbers of the characters, and what they stand for.

    Raises:
        DataError: the file cannot be read, or is empty.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+") as file:
    ...     _ = file.write("banana")
    ...     _ = file.seek(0)
    ...     found = text(file.name)
    >>> found, found.tokens
    (Text(vocabulary='abn'), array([1, 0, 2, 0, 2, 0], dtype=int32))
    """
    what = f"reading {os.fspath(path)!r}" if isinstance(path, str | os.PathLike) else "reading"
    try:
        with TextIOWrapper(open_regular(path), "utf-8") as file:
            found = file.read()
    except (OSError, ValueError, TypeError) as error:
        raise DataError.at_caller(what, found=f"{type(error).__name__}: {error}") from error
    if not found:
        raise DataError.at_caller(what, found="an empty file", allowed="characters")
    codes = np.frombuffer(found.encode("utf-32-le"), np.uint32)
    known, tokens = np.unique(codes, return_inverse=True)
    return Text(tokens.astype(np.int32), "".join(map(chr, known)))
