"""A folder of files that are keyed by the inputs they were made from, and validated on every read.

Packages keep compiled code and plans here.  Code from disk is executed, so an entry is used only if
it is intact and was written by this user.  Deleting the folder is always safe.

Invariants:

* The folder and its entries belong to this user or root, and no other user may write to them.
* An entry is published by renaming a file that is complete and synced to disk.  An entry ends in a
  SHA-256 digest of its key and content; loaders of ELF files ignore data after the sections.
* Entries are evicted, least recently used first, when their total size exceeds the limit.
  Entries that were used within the last hour are kept if another process may be about to load them
  by their paths.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from flow_core.base.errors import FlowError

LIMIT = 512 * 1024**2
"""Maximum total size of the entries of a folder, in bytes."""

GRACE = 3600.0
"""Time after its last use during which an entry is not evicted, in seconds."""

MARK = b"\nflow disk cache 1\n"
"""Start of the trailer of an entry; the number changes with the format."""

TRAILER = len(MARK) + hashlib.sha256().digest_size


_replacements: dict[Path, Path] = {}
"""Temporary folders of this process, by the cache folders that they replace."""

_unusable: set[Path] = set()
"""Folders of which this process has warned, and for which there is no temporary folder."""

_lock = threading.Lock()

T = TypeVar("T")


class CacheError(FlowError):
    """Neither the cache folder nor the system's temporary folder can be written to."""


class CacheWarning(RuntimeWarning):
    """A cache folder, or an entry of one, cannot be used and is replaced."""


def user_folder(name: str) -> Path:
    """Return the folder of a package's caches, ``$XDG_CACHE_HOME/<name>``.

    If ``XDG_CACHE_HOME`` is unset, the folder is ``~/.cache/<name>``.

    A relative ``XDG_CACHE_HOME`` is ignored, as the XDG base directory specification requires.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), name)


class DiskCache:
    """Entries of one kind in a folder.

    A folder that cannot be used is replaced with a temporary one, with one warning; a damaged
    entry is made again, with a warning that names the entry.

    Args:
        folder: the folder of the entries, which is made when the first entry is written.
        suffix: the suffix of the entries' file names.
        limit: maximum total size of the folder's entries in bytes, including entries with other
            suffixes.
        by_path: whether this process needs its entries as files.  If not, a folder that cannot be
            used is not replaced, and entries may be evicted as soon as they have been used.
    """

    def __init__(
        self, folder: Path, suffix: str, limit: int = LIMIT, *, by_path: bool = True
    ) -> None:
        self._folder, self._suffix, self._limit, self._by_path = folder, suffix, limit, by_path

    @property
    def limit(self) -> int:
        """The maximum total size of the folder's entries in bytes."""
        return self._limit

    @property
    def folder(self) -> Path:
        """The folder of the entries: the requested one, or its replacement."""
        return _replacements.get(self._folder, self._folder)

    def entry(self, key: Sequence[str]) -> Path:
        """Return the path of the entry for a key, whether or not the entry exists."""
        return self.folder / (_digest(*key).hex()[:40] + self._suffix)

    def read(self, key: Sequence[str]) -> bytes | None:
        """Return the content of an entry; None if the entry is missing or damaged."""
        return self.decoded(key, bytes)

    def decoded(self, key: Sequence[str], decode: Callable[[bytes], T]) -> T | None:
        """Return the decoded content of an entry; None if the entry is missing or damaged.

        Args:
            decode: decodes the content; raises `ValueError` for a damaged one.
        """
        entry = self.entry(key)
        try:
            if not _is_trusted(os.stat(self.folder)):
                return None  # `write` warns once and replaces the folder
            content = decode(_content(_owned_bytes(entry, self._limit), key))
        except OSError:
            return None
        except ValueError as error:
            _warn(f"{entry} is not used and will be replaced: {error}")
            return None
        with contextlib.suppress(OSError):  # a read-only folder keeps its times
            os.utime(entry)
        return content

    def write(self, key: Sequence[str], content: bytes) -> None:
        """Publish an entry, replacing any existing one; warn if no folder can store it."""
        data = content + MARK + _signature(key, content)
        with _lock:
            if self._folder in _unusable:
                return
            try:
                self._publish(key, data)
            except (OSError, ValueError) as error:
                if not self._by_path:
                    _unusable.add(self._folder)
                    _warn(
                        f"nothing can be kept in the cache folder {self._folder} ({error}); set "
                        "XDG_CACHE_HOME to a folder of yours"
                    )
                    return
                self._replace_folder(error)
                try:
                    self._publish(key, data)
                except OSError as again:
                    _warn(f"compiled code cannot be kept in {self.folder}: {again}")
            with contextlib.suppress(OSError):
                evict(self.folder, self._limit, GRACE if self._by_path else 0.0)

    def get(self, key: Sequence[str], make: Callable[[], bytes]) -> bytes:
        """Return the content of an entry; if the entry is missing, make and publish it."""
        content = self.read(key)
        if content is None:
            content = make()
            self.write(key, content)
        return content

    def path(self, key: Sequence[str], make: Callable[[], bytes]) -> Path:
        """Return the file of a validated entry, for loaders that ignore data after the content.

        Raises `CacheError` if neither the folder nor a temporary one can be written to.
        """
        self.get(key, make)
        entry = self.entry(key)
        if not entry.exists():
            raise CacheError(
                f"writing compiled code to {self.folder}",
                found="neither this folder nor a temporary one can be written to",
                allowed="a folder with free space that belongs to this user",
                hint="set XDG_CACHE_HOME or TMPDIR to a folder with free space that you own",
            )
        return entry

    def _publish(self, key: Sequence[str], data: bytes) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.stat(self.folder)
        if not _is_trusted(status):
            raise ValueError(f"it belongs to user {status.st_uid}")
        if _writable_by_others(status):
            self.folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
        _write_synced(self.entry(key), data)

    def _replace_folder(self, why: Exception) -> None:
        """Use a temporary folder from now on; remove it when this process ends."""
        try:
            fresh = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}-"))
        except OSError:
            return  # publishing fails again, and `write` warns
        _remove_at_exit(fresh)
        _replacements[self._folder] = fresh
        _warn(
            f"the cache folder {self._folder} cannot be used ({why}); compiled code is kept in "
            f"{fresh} until this process ends; set XDG_CACHE_HOME to a folder of yours to keep it"
        )


def evict(folder: Path, limit: int, grace: float = GRACE) -> None:
    """Remove the least recently used files until a folder's files take three quarters of a limit.

    Nothing is removed if the total is within the limit, and no file that was used within the last
    ``grace`` seconds is removed.
    """
    files = sorted(_files(folder))
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return
    newest = time.time() - grace
    for used, size, path in files:
        if total <= limit * 3 // 4 or (grace and used > newest):
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total -= size


def _files(folder: Path) -> Iterator[tuple[float, int, str]]:
    """Yield the time of last use, the size and the path of each file of a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield status.st_mtime, status.st_size, entry.path


def _owned_bytes(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file that only this user and root can write to.

    Raises `ValueError` if the file is not regular or exceeds a limit, or other users own it or may
    write to it.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if not _is_trusted(status):
            raise ValueError(f"it belongs to user {status.st_uid}")
        if _writable_by_others(status):
            raise ValueError("other users may write to it")
        if status.st_size > limit + TRAILER:
            raise ValueError(f"it has {status.st_size:,} bytes")
        return file.read(limit + TRAILER)


def _is_trusted(status: os.stat_result) -> bool:
    """Return whether a file or folder belongs to this user or root; True on non-POSIX systems."""
    return not hasattr(os, "geteuid") or status.st_uid in (0, os.geteuid())


def _writable_by_others(status: os.stat_result) -> bool:
    return os.name == "posix" and bool(status.st_mode & 0o022)


def _content(data: bytes, key: Sequence[str]) -> bytes:
    content, trailer = data[:-TRAILER], data[-TRAILER:]
    if not trailer.startswith(MARK):
        raise ValueError("it is incomplete")
    if trailer[len(MARK) :] != _signature(key, content):
        raise ValueError("its digest differs")
    return content


def _signature(key: Sequence[str], content: bytes) -> bytes:
    return hashlib.sha256(_digest(*key) + content).digest()


def _digest(*key: str) -> bytes:
    """Return a digest of strings that also depends on the boundaries between the strings."""
    parts = (text.encode("utf-8", "surrogatepass") for text in key)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _write_synced(path: Path, data: bytes) -> None:
    """Write a temporary file in the same folder, sync it, and rename it to ``path``."""
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, on systems whose folders can be opened and synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_at_exit(folder: Path) -> None:
    """Remove a folder when this process ends, but not when a forked child process ends."""
    import atexit

    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def _warn(text: str) -> None:
    warnings.warn(text, CacheWarning, stacklevel=3)
