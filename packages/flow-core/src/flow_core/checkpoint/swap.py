"""Atomic replacement of a folder by a finished one.

If the process is killed at any time, the old or the new folder is complete.  A save writes into a
hidden sibling folder, ``.NAME.saving-*``, and renames that folder.  If the destination exists, the
two folders are exchanged in one system call where possible (Linux, macOS).  On other systems, the
existing folder is first renamed to ``.NAME.replaced``, from which `recover` restores it if the save
was killed in between.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flow_core.checkpoint.layout import DONE

_AT_FDCWD = {"linux": -100, "darwin": -2}
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2, RENAME_SWAP of renameatx_np
_FUNCTION = {"linux": "renameat2", "darwin": "renameatx_np"}


_TOKEN = 8
"""The number of random bytes in the name of a hidden folder."""


def _saving(path: Path) -> str:
    return f".{path.name}.saving-"


def _replaced(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


_mine = threading.local()
"""The folders whose locks this thread holds; locking such a folder again would deadlock."""


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the exclusive writer lock of a folder, across threads and processes.

    The operating system releases the lock when the process that owns it dies.  Yield True, or False
    if the file system has no such locks; in that case, the hidden folders of concurrent writers
    cannot be told apart from leftovers.
    """
    held: dict[Path, bool] = vars(_mine).setdefault("held", {})
    if folder in held:
        yield held[folder]
        return
    with _flock(folder) as alone:
        held[folder] = alone
        try:
            yield alone
        finally:
            del held[folder]


@contextmanager
def _flock(folder: Path) -> Iterator[bool]:
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # the file system has no locks
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def fresh_folder(path: Path) -> Path:
    """Create an empty hidden folder beside ``path``."""
    folder = path.with_name(_saving(path) + secrets.token_hex(_TOKEN))
    folder.mkdir()
    return folder


def remove_leftovers(path: Path) -> None:
    """Remove the hidden folders of killed saves to ``path``; the caller must hold the lock."""
    form = re.compile(re.escape(_saving(path)) + f"[0-9a-f]{{{2 * _TOKEN}}}")
    for entry in list(path.parent.iterdir()):
        is_left = form.fullmatch(entry.name) or (entry == _replaced(path) and _is_marked(entry))
        if is_left and not entry.is_symlink():
            shutil.rmtree(entry)


def recover(path: Path) -> None:
    """Restore a checkpoint that a killed save had renamed but not yet replaced.

    The caller must hold the lock.
    """
    if _is_aside(path):
        os.rename(_replaced(path), path)


def recover_locked(path: Path) -> None:
    """Call `recover` while holding the lock if a checkpoint has to be restored."""
    if _is_aside(path):
        with locked(path.parent):
            recover(path)


def _is_aside(path: Path) -> bool:
    return bool(path.name) and not path.exists() and _is_marked(_replaced(path))


def _is_marked(folder: Path) -> bool:
    return (folder / DONE).is_file()


def sync_tree(folder: Path) -> None:
    """Sync all files and folders below ``folder`` to disk."""
    for root, _, files in os.walk(folder):
        for name in files:
            sync(os.path.join(root, name))
        sync(root)


def sync(path: str | Path) -> None:
    """Sync one file or folder to disk."""
    if sys.platform == "win32":  # Windows cannot open folders or sync read-only handles
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put_in_place(new: Path, path: Path, remove: Callable[[Path], object] = shutil.rmtree) -> None:
    """Move ``new`` to ``path`` and remove the previous folder; the caller must hold the lock.

    Args:
        new: a synced folder beside ``path``.
    """
    if not path.exists() or not any(path.iterdir()):
        _rename_over(new, path)
    elif not exchange(new, path):
        _replace_in_two_steps(new, path)
    sync(path.parent)
    for old in (new, _replaced(path)):
        if (old == new and old.exists()) or _is_marked(old):
            remove(old)


def _rename_over(new: Path, path: Path) -> None:
    if sys.platform == "win32" and path.exists():  # Windows cannot rename over an empty folder
        path.rmdir()
    os.rename(new, path)


def _replace_in_two_steps(new: Path, path: Path) -> None:
    if _is_marked(_replaced(path)):  # a killed save left it on a file system without locks
        shutil.rmtree(_replaced(path))
    os.rename(path, _replaced(path))
    os.rename(new, path)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; return False if the system does not support this."""
    rename = _rename_function()
    if rename is None:
        return False
    cwd = _AT_FDCWD[sys.platform]
    done: int = rename(cwd, os.fsencode(one), cwd, os.fsencode(other), _EXCHANGE)
    return done == 0


def _rename_function() -> Callable[..., int] | None:
    name = _FUNCTION.get(sys.platform)
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None) if name else None
    if function is None:
        return None
    function.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    ]
    typed: Callable[..., int] = function
    return typed
