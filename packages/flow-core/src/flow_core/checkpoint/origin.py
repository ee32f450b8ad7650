"""Reading the files of exactly one save while other processes may replace the checkpoint.

Invariant: an `Origin` returns the bytes that the files had when the `Origin` was created.  One of
two mechanisms ensures this:

- If the checkpoint has a list of digests, ``flow.sha256``, the list is read once, and every file is
  read into memory and compared with its digest.  Files of another save are rejected unless their
  contents are equal.
- If it has no such list, as in checkpoints that OneFlow wrote, all files are listed with their
  `Stamp` (device, inode, size, modification time) until two consecutive lists are equal.  Because
  a replaced file does not come back, all listed files existed together between the two listings.
  When a file is read, its stamp must equal the listed stamp both before and after.

A mismatch raises `CheckpointReplacedError` if the path now holds another checkpoint, else
`CheckpointError`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.errors import CheckpointError, CheckpointReplacedError
from flow_core.base.formats.regular_files import open_regular
from flow_core.checkpoint.layout import DATA, META, SUMS
from flow_core.checkpoint.sums import Sums, read_all, read_sums

Array = np.ndarray[Any, np.dtype[Any]]
Stamp = tuple[int, ...]
"""The identity of a file's contents: its device, inode, size and modification time."""

TRIES = 20
"""How often to repeat a listing of files, or a load, while other processes replace files."""


def stamp(path: str | Path | int) -> Stamp | None:
    """Return the stamp of a regular file, or None if there is no such file."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class SameFile:
    """A file that is opened several times, and must not change in the meantime."""

    __slots__ = ("_path", "_stamp")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: Stamp | None = None

    @contextmanager
    def opened(self) -> Iterator[BufferedReader]:
        """Open the file; check before and after the ``with`` block that it is unchanged.

        Raises:
            CheckpointReplacedError: another program wrote the file since it was first opened.
            OSError: there is no such file, or it is not a regular file.
        """
        with open_regular(self._path) as handle:
            self._check(handle)
            yield handle
            self._check(handle)

    def _check(self, handle: BufferedReader) -> None:
        current = stamp(handle.fileno())
        if self._stamp not in (None, current):
            raise CheckpointReplacedError(
                f"reading {self._path}",
                found="a file that another program wrote in the meantime",
                allowed="the file that was opened",
                hint="open it again: flow.checkpoint.get(path)",
            )
        self._stamp = current


class Origin:
    """The files of one save of a checkpoint.

    Attributes:
        root: the checkpoint's folder.
        sums: the checkpoint's list of digests, or None.
        stamps: the stamps of all files if the checkpoint has no list of digests.
    """

    __slots__ = ("root", "stamps", "sums")

    def __init__(
        self, root: Path, sums: Sums | None, stamps: Mapping[Path, Stamp | None] | None = None
    ) -> None:
        self.root, self.sums, self.stamps = root, sums, stamps or {}

    @classmethod
    def around(cls, folder: Path) -> Origin:
        """Return the origin of one variable's folder.

        It is the checkpoint whose list of digests contains the folder's files, if there is one.
        """
        for root in folder.absolute().parents:
            sums = read_sums(root)
            if sums is not None and cls(root, sums)._name(folder.absolute() / DATA) in sums.digests:
                return cls(root, sums)
        return cls(folder, None, {folder / name: stamp(folder / name) for name in (DATA, META)})

    def has(self, file: Path) -> bool:
        if self.sums is not None:
            return self._name(file) in self.sums.digests
        return self.stamps.get(file) is not None

    def array(self, file: Path, nbytes: int) -> Array:
        """Read a file of known size, or raise `CheckpointError`."""
        try:
            with self._opened(file) as handle:
                size = os.fstat(handle.fileno()).st_size
                if size != nbytes:
                    raise self.refused(file, f"{size} bytes", f"{nbytes}, according to 'meta'")
                data = np.empty(nbytes, np.uint8)
                filled = handle.readinto(data.data) if nbytes else 0
            self._check(file, data.data[:filled], nbytes)
        except (OSError, MemoryError) as error:
            raise self.refused(file, str(error) or "more bytes than fit in memory") from error
        return data

    def text(self, file: Path, longest: int) -> bytes:
        """Read a file of at most ``longest`` bytes, or raise `CheckpointError`."""
        try:
            with self._opened(file) as handle:
                raw = read_all(handle, longest)
            if raw is None:
                raise self.refused(file, "a larger file", f"at most {longest} bytes")
            self._check(file, memoryview(raw), len(raw))
        except OSError as error:
            raise self.refused(file, str(error)) from error
        return raw

    def is_current(self) -> bool:
        """Return whether the path still holds the files of this save."""
        if self.sums is None:
            return all(stamp(file) == known for file, known in self.stamps.items())
        try:
            current = read_sums(self.root)
        except (OSError, CheckpointError):
            return False
        return current is not None and current.own == self.sums.own

    def refused(self, file: Path, found: str, allowed: str | None = None) -> CheckpointError:
        """Return the error for a file that has changed or is damaged."""
        if not self.is_current():
            return CheckpointReplacedError(
                f"reading {file}",
                found="another checkpoint, saved to this path in the meantime",
                allowed="the checkpoint that was opened",
                hint="open it again: flow.checkpoint.get(path)",
            )
        return CheckpointError(f"reading {file}", found=found, allowed=allowed)

    def _opened(self, file: Path) -> BufferedReader:
        known = stamp(file)
        if known is None:
            raise self.refused(file, "no file")
        if self.sums is None and known != self.stamps.get(file):
            raise self.refused(file, "a file that changed after the checkpoint was opened")
        return open_regular(file)

    def _check(self, file: Path, data: memoryview, nbytes: int) -> None:
        if self.sums is None:
            good = len(data) == nbytes and stamp(file) == self.stamps.get(file)
        else:
            good = hashlib.sha256(data).hexdigest() == self.sums.digests.get(self._name(file))
        if not good:
            raise self.refused(
                file,
                "bytes that differ from those saved: the file is damaged",
                None if self.sums is None else f"a file with its digest in {self.root / SUMS}",
            )

    def _name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()
