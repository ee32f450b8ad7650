"""Files that processes leave behind when they are killed.

MPICH and Open MPI remove the files by which they share memory when a process ends well.  These lie
in memory: some megabytes for each start of a job that was ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

_NAMES = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.")
"""How the files begin."""


_PREFIX = "flow-dist-"
_NEW = 60.0
"""Seconds for which a folder may be without its lock: it has only just been made."""


class Scratch:
    """A folder for a launcher's files, made when it is needed.

    A supervisor that is killed leaves its folder behind, and the next one removes it: whoever
    needs a folder has it locked.
    """

    def __init__(self) -> None:
        self._path = ""
        self._lock: int | None = None

    def path(self) -> str:
        """The folder, an empty one at the first call."""
        if not self._path:
            _remove_abandoned()
            self._path = tempfile.mkdtemp(prefix=_PREFIX)
            self._lock = _lock(self._path)
        return self._path

    def remove(self) -> None:
        """Remove the folder, if there is one, and all that is in it."""
        if self._path:
            shutil.rmtree(self._path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self._path, self._lock = "", None


def _remove_abandoned() -> None:
    """Remove this user's folders that nobody has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _NEW:
                continue
            lock = _lock(str(folder))
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: str) -> int | None:
    """A lock of a folder, which ends with this process; None while another process has it."""
    import fcntl

    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        return None
    return opened


def files_of(process: int | str) -> set[Path]:
    """The files that a process has open; none where the system does not tell (Linux does)."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            name = line[line.find("/") :]
            if name.startswith(_NAMES) and not name.endswith(" (deleted)"):
                found.add(Path(name))
    return found


def remove(files: Iterable[Path]) -> None:
    """Removes files, which others may have removed already."""
    for path in files:
        with contextlib.suppress(OSError):
            path.unlink()


def remove_own() -> None:
    """Takes the names from what this process shares; that itself lasts as long as its processes.

    Call it when all others of the job on this host have opened the files.
    """
    remove(files_of("self"))
