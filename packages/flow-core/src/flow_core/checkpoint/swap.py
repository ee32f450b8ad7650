"""Putting a finished folder in the place of another one, so that a kill leaves one of them whole.

A save writes into a hidden sibling, ``.NAME.saving-*``, and renames it.  A folder that is already
there is exchanged in one step where the system can (Linux, macOS); elsewhere it first becomes the
hidden ``.NAME.replaced``, from which `recover` brings it back if nothing took its place.
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
"""Bytes of the random part of a hidden folder's name."""


def _saving(path: Path) -> str:
    return f".{path.name}.saving-"


def _replaced(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


_mine = threading.local()
"""Folders whose locks a thread holds: asking again would wait for itself."""


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the only writer's right in a folder, across threads and processes.

    The system gives it back when its owner dies.  Gives False where there are no such locks;
    then the folders of other writers cannot be told from leftovers.
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
        except OSError:  # a file system without locks
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def fresh_folder(path: Path) -> Path:
    """An empty hidden folder beside ``path``."""
    folder = path.with_name(_saving(path) + secrets.token_hex(_TOKEN))
    folder.mkdir()
    return folder


def remove_leftovers(path: Path) -> None:
    """Remove what killed saves of ``path`` left behind.  Needs the lock."""
    form = re.compile(re.escape(_saving(path)) + f"[0-9a-f]{{{2 * _TOKEN}}}")
    for entry in list(path.parent.iterdir()):
        is_left = form.fullmatch(entry.name) or (entry == _replaced(path) and _is_marked(entry))
        if is_left and not entry.is_symlink():
            shutil.rmtree(entry)


def recover(path: Path) -> None:
    """Brings a checkpoint back which a killed save had moved aside and not yet replaced.

    Needs the lock.
    """
    if _is_aside(path):
        os.rename(_replaced(path), path)


def recover_locked(path: Path) -> None:
    """`recover`, taking the lock if there is something to bring back."""
    if _is_aside(path):
        with locked(path.parent):
            recover(path)


def _is_aside(path: Path) -> bool:
    return bool(path.name) and not path.exists() and _is_marked(_replaced(path))


def _is_marked(folder: Path) -> bool:
    return (folder / DONE).is_file()


def sync_tree(folder: Path) -> None:
    """Waits until all files and folders below ``folder`` are on disk."""
    for root, _, files in os.walk(folder):
        for name in files:
            sync(os.path.join(root, name))
        sync(root)


def sync(path: str | Path) -> None:
    """Waits until one file or folder is on disk."""
    if sys.platform == "win32":  # opens no folders, and syncs no files that are open for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put_in_place(new: Path, path: Path, remove: Callable[[Path], object] = shutil.rmtree) -> None:
    """Make ``new`` the folder at ``path`` and remove what was there.  Needs the lock.

    Args:
        new: a folder that is on disk, beside ``path``.
        path: where it goes.
        remove: removes the folder that was there.
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
    if sys.platform == "win32" and path.exists():  # renames over no folder, not even an empty one
        path.rmdir()
    os.rename(new, path)


def _replace_in_two_steps(new: Path, path: Path) -> None:
    if _is_marked(_replaced(path)):  # of a killed save, where there are no locks to clean up under
        shutil.rmtree(_replaced(path))
    os.rename(path, _replaced(path))
    os.rename(new, path)


def exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step; False where the system cannot."""
    rename = _rename_function()
    if rename is None:
        return False
    here = _AT_FDCWD[sys.platform]
    done: int = rename(here, os.fsencode(one), here, os.fsencode(other), _EXCHANGE)
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
