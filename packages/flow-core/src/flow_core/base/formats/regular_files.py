"""Open and read regular files only.

A path of a user or in a file may name a pipe, a socket or a device.  Opening a pipe waits for a
writer, reading some devices never ends, and opening others has effects, so readers open their
files here.  Every problem with the path or the file is an `OSError`, which readers convert to the
typed error of their format.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

AnyPath = str | os.PathLike[str]

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def open_regular(path: AnyPath) -> BufferedReader:
    r"""Open a regular file for reading; never wait for another program.

    Raises:
        OSError: the path names another kind of file, no file, or cannot name a file, such as one
            with a NUL character; or the file cannot be opened.

    >>> open_regular("a\0b")
    Traceback (most recent call last):
    OSError: [Errno 22] embedded null byte: 'a\x00b'
    """
    try:
        _check(os.stat(path), path)  # before opening, which can have effects on a device
        handle = open(path, "rb", opener=_opened)  # noqa: SIM115 - the result
    except ValueError as error:  # a NUL character, or a surrogate that no file name can encode
        reason = getattr(error, "reason", str(error))
        raise OSError(errno.EINVAL, reason, os.fspath(path)) from None
    try:
        _check(os.fstat(handle.fileno()), path)
    except OSError:
        handle.close()
        raise
    return handle


def read_regular(path: AnyPath, longest: int) -> bytes:
    """Return the contents of a regular file of at most ``longest`` bytes.

    Raises:
        OSError: as in `open_regular`, or the file is longer.
    """
    with open_regular(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        data = handle.read(min(size, longest) + 1)  # one more, as the file may have grown
    if len(data) > longest:
        raise OSError(errno.EFBIG, f"more than {longest} bytes", os.fspath(path))
    return data


def _opened(path: str, flags: int) -> int:
    """Open a file without waiting; another program may have put a pipe in the place of a file."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check(found: os.stat_result, path: AnyPath) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "an unknown kind")
        raise OSError(errno.EINVAL, f"{kind} instead of a regular file", os.fspath(path))
