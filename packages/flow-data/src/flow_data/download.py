"""Download files with a progress line, and verify each file before it gets its final name."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from flow_core.base.errors import DataError

_CHUNK = 1 << 16
_TIMEOUT = 30.0  # seconds without a received byte


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     sha256(Path(file.name))[:8]
    'e3b0c442'
    """
    return _digest(path, "sha256")


def _digest(path: Path, kind: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: _hash(kind)).hexdigest()


def _hash(kind: str) -> Any:
    return hashlib.new(kind, usedforsecurity=False)


def digest_of(data: bytes, kind: str) -> str:
    """Return a digest of bytes in hexadecimal.

    >>> digest_of(b"", "md5")[:8]
    'd41d8cd9'
    """
    found = _hash(kind)
    found.update(data)
    return str(found.hexdigest())


def check_digest(path: Path, kind: str, expected: str, hint: str) -> None:
    """Raise `DataError` if a digest of a file, "sha256" or "md5", is not the expected one."""
    found = _digest(path, kind)
    if found != expected.lower():
        name = NAMES[kind]
        raise DataError.at_caller(
            f"checking {path}", found=f"{name} {found}", allowed=f"{name} {expected}", hint=hint
        )


NAMES = {"sha256": "SHA-256", "md5": "MD5"}


def download(url: str, target: Path, check: Callable[[Path], None]) -> None:
    """Download a file; it appears at ``target`` only if it is complete and ``check`` accepts it.

    Args:
        target: the path; missing folders are created.
        check: called with the downloaded file; raises an error if the file is not the expected one.

    Raises:
        DataError: the server or the file system fails, or the transfer ends early.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _part_of(target) as part:
            _fetch(url, part, target.name)
            check(part)
            os.replace(part, target)
    except (OSError, ValueError) as error:  # ValueError: a malformed URL
        raise DataError(f"downloading {url}", found=str(error)) from error


@contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    """Yield a hidden path beside ``target``; finally remove a file that is left at this path."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _fetch(url: str, part: Path, name: str) -> None:
    from urllib.request import urlopen  # loads ssl and http, which an import of flow_data need not

    with urlopen(url, timeout=_TIMEOUT) as source, open(part, "xb") as out:
        total = int(source.headers.get("Content-Length") or 0)
        done = _copy(source, out, name, total)
        os.fsync(out.fileno())
    if total and done != total:
        raise OSError(f"the transfer ended after {done} of {total} bytes")


def _copy(source: IO[bytes], out: IO[bytes], name: str, total: int) -> int:
    done = 0
    with _progress(name, total) as show:
        while chunk := source.read(_CHUNK):
            out.write(chunk)
            done += len(chunk)
            show(done)
    return done


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows the megabytes so far if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    end = f" of {total / 1e6:.1f}" if total else ""
    try:
        yield lambda done: _show(f"\r{name}: {done / 1e6:.1f}{end} MB")
    finally:
        _show("\n")


def _show(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
