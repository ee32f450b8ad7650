"""Reading the files of one save, and of no other.

Another process may put another checkpoint in the place of the one that is being read, at any
moment.  The invariant of this module: *what an `Origin` returns is, byte for byte, what the files
had when it was made*.  Two means hold it:

- A checkpoint with ``flow.sha256``: the list is read once, in one piece, and every file is read
  into memory and compared with its digest there.  Files of another save do not pass, unless they
  are equal.
- A checkpoint without, as OneFlow writes it: files are listed with their `Stamp` (device, inode,
  size, time of change) until two lists in a row are equal.  As a replaced file never returns, all
  of them were there at the moment between the two.  A file that is read must have its stamp, before
  and after.

Whatever does not fit is an error: `CheckpointReplacedError` if the checkpoint at the path is
another one by now, else `CheckpointError`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.errors import CheckpointError, CheckpointReplacedError
from flow_core.checkpoint.layout import DATA, META, SUMS
from flow_core.checkpoint.sums import Sums, read_all, read_sums

Array = np.ndarray[Any, np.dtype[Any]]
Stamp = tuple[int, ...]
"""What tells a file from another one at the same path: device, inode, size, time of change."""

TRIES = 20
"""How often a list of files or a load is tried again while other processes replace files."""


def stamp(path: str | Path | int) -> Stamp | None:
    """The stamp of a file, None where there is no regular file."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class Origin:
    """The files of one save of a checkpoint.

    Attributes:
        root: the checkpoint's folder.
        sums: its list of digests, None where it has none.
        stamps: of all files, where there is no list.
    """

    __slots__ = ("root", "stamps", "sums")

    def __init__(
        self, root: Path, sums: Sums | None, stamps: Mapping[Path, Stamp | None] | None = None
    ) -> None:
        self.root, self.sums, self.stamps = root, sums, stamps or {}

    @classmethod
    def around(cls, folder: Path) -> Origin:
        """The origin of a single variable's folder: of the checkpoint that lists it, if any."""
        for root in folder.absolute().parents:
            sums = read_sums(root)
            if sums is not None and cls(root, sums)._name(folder.absolute() / DATA) in sums.digests:
                return cls(root, sums)
        return cls(folder, None, {folder / name: stamp(folder / name) for name in (DATA, META)})

    def has(self, file: Path) -> bool:
        """Whether the save has a file."""
        if self.sums is not None:
            return self._name(file) in self.sums.digests
        return self.stamps.get(file) is not None

    def array(self, file: Path, nbytes: int) -> Array:
        """The bytes of a file of known size.  Raises `CheckpointError`."""
        try:
            with self._opened(file) as handle:
                size = os.fstat(handle.fileno()).st_size
                if size != nbytes:
                    raise self.refused(file, f"{size} bytes", f"{nbytes}, as its 'meta' says")
                data = np.empty(nbytes, np.uint8)
                filled = handle.readinto(data.data) if nbytes else 0
            self._check(file, data.data[:filled], nbytes)
        except (OSError, MemoryError) as error:
            raise self.refused(file, str(error) or "more than the memory holds") from error
        return data

    def text(self, file: Path, longest: int) -> bytes:
        """The bytes of a small file.  Raises `CheckpointError`."""
        try:
            with self._opened(file) as handle:
                raw = read_all(handle, longest)
            if raw is None:
                raise self.refused(file, "too large a file", f"at most {longest} bytes")
            self._check(file, memoryview(raw), len(raw))
        except OSError as error:
            raise self.refused(file, str(error)) from error
        return raw

    def is_current(self) -> bool:
        """Whether the files at the path are still those of this save."""
        if self.sums is None:
            return all(stamp(file) == known for file, known in self.stamps.items())
        try:
            found = read_sums(self.root)
        except (OSError, CheckpointError):
            return False
        return found is not None and found.own == self.sums.own

    def refused(self, file: Path, found: str, allowed: str | None = None) -> CheckpointError:
        """The error for a file that is not what it was."""
        if not self.is_current():
            return CheckpointReplacedError(
                f"reading {file}",
                found="another checkpoint, which was saved at this path in the meantime",
                allowed="the checkpoint that was opened",
                hint="open it again: flow.checkpoint.get(path)",
            )
        return CheckpointError(f"reading {file}", found=found, allowed=allowed)

    def _opened(self, file: Path) -> Any:
        known = stamp(file)  # before opening: a named pipe would wait for a writer
        if known is None:
            raise self.refused(file, "no file")
        if self.sums is None and known != self.stamps.get(file):
            raise self.refused(file, "a file that was changed since the checkpoint was opened")
        return file.open("rb")

    def _check(self, file: Path, data: memoryview, nbytes: int) -> None:
        if self.sums is None:
            good = len(data) == nbytes and stamp(file) == self.stamps.get(file)
        else:
            good = hashlib.sha256(data).hexdigest() == self.sums.digests.get(self._name(file))
        if not good:
            raise self.refused(
                file,
                "bytes that are not those that were saved: the file is damaged",
                None if self.sums is None else f"a file with its digest in {self.root / SUMS}",
            )

    def _name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()
