"""``flow.sha256``: the digests of a checkpoint's files, in the format of ``sha256sum -c``.

The file is at the top of a checkpoint folder, beside ``snapshot_done``, where OneFlow's reader
ignores it.  Its last line is the digest of the lines above that line, by which a reader detects a
damaged list.  Two saves have equal lists only if all their files are equal, so the list identifies
a save.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from flow_core.base.errors import CheckpointError
from flow_core.base.formats.regular_files import open_regular
from flow_core.checkpoint.layout import DONE, SUMS

LONGEST = 1 << 26
"""Largest size of a list in bytes; the list is read as a whole."""

_LINE = re.compile(r"(\\?)([0-9a-f]{64})  (.+)", re.DOTALL)
_LAST = "# SHA-256 of the lines above: "
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"))
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Sums:
    """A list of digests."""

    # The SHA-256 digest of each file, in hexadecimal, by the file's path relative to the
    # checkpoint.
    digests: Mapping[str, str]
    own: str  # the digest of the list itself


def write_sums(folder: Path) -> None:
    """Write the list of all files below a folder."""
    names = sorted(files_below(folder))
    text = "".join(_line(name, _digest(folder / name)) for name in names)
    (folder / SUMS).write_bytes(f"{text}{_LAST}{_sha256(text)}\n".encode())


def read_sums(folder: Path) -> Sums | None:
    """Read the list of a checkpoint folder; return None if there is none.

    Raises:
        CheckpointError: the list is damaged.
        OSError: the list cannot be read.
    """
    file = folder / SUMS
    try:
        with open_regular(file) as handle:
            raw = read_all(handle, LONGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    sums = parse_sums(raw or b"")
    if sums is None:
        raise damaged(file)
    return sums


def damaged(file: Path | str) -> CheckpointError:
    """Return the error for a damaged list."""
    return CheckpointError(
        f"reading {file}",
        found="a damaged list of digests",
        allowed="a list of digests that has not changed since the save",
        hint="use another copy of the checkpoint; to load its files unchecked, at your own "
        f"risk, remove {SUMS}",
    )


def read_all(handle: BinaryIO, longest: int) -> bytes | None:
    """Read an open file; return None if it is larger than ``longest`` bytes.

    ``handle.read(longest)`` would allocate ``longest`` bytes even for a small file.
    """
    return handle.read() if os.fstat(handle.fileno()).st_size <= longest else None


def parse_sums(raw: bytes) -> Sums | None:
    """Parse the bytes of a list; return None if they are not a valid list."""
    try:
        text, last, own = raw.decode().rpartition(_LAST)
    except UnicodeDecodeError:
        return None
    if not last or own != f"{_sha256(text)}\n":
        return None
    entries = [_entry(line) for line in text.split("\n")[:-1]]
    digests = dict(filter(None, entries))
    return Sums(digests, own.strip()) if len(digests) == len(entries) else None


def files_below(folder: Path) -> Iterator[str]:
    """Yield the regular files below a folder, as paths with slashes, relative to the folder."""
    for root, _, names in os.walk(folder):
        for name in names:
            yield Path(root, name).relative_to(folder).as_posix()


def parents(names: Iterable[str]) -> set[str]:
    """Return all folders that contain some of the given files, directly or in subfolders.

    >>> sorted(parents(["a/b/out", "c"]))
    ['a', 'a/b']
    """
    folders: set[str] = set()
    for name in names:
        folder = name.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def is_marked(folder: Path) -> bool:
    """Return whether a folder has the marker file of a finished save."""
    return (folder / DONE).is_file()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(file: Path) -> str:
    total = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(_BLOCK):
            total.update(block)
    return total.hexdigest()


def _line(name: str, digest: str) -> str:
    escaped = name
    for plain, escape in _ESCAPES:
        escaped = escaped.replace(plain, escape)
    return f"{'' if escaped == name else chr(92)}{digest}  {escaped}\n"


def _entry(line: str) -> tuple[str, str] | None:
    """Parse a line into a path and a digest.

    Return None if the line is invalid or the path is outside of the checkpoint's folder.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    name = re.sub(r"\\(.)", _unescaped, match[3]) if match[1] else match[3]
    inside = {"", ".", ".."}.isdisjoint(name.split("/")) and "\0" not in name
    return (name, match[2]) if inside else None


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n", "r": "\r"}.get(match[1], match[1])
