"""Remove MPI files and scratch folders of processes that were killed.

MPICH and Open MPI unlink their shared-memory files when a process ends normally.  After a kill, the
files stay, so each killed run of a job would leave some megabytes of memory in use.  MPICH's
launcher also leaves a description of the host, which it writes to /tmp whatever TMPDIR is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

_NAMES = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.", "/tmp/hydra_hwloc_xmlfile_")
"""Prefixes of the MPI libraries' files."""


_PREFIX = "flow-dist-"
_MIN_AGE = 60.0
"""Age in seconds from which an unlocked folder counts as abandoned; a new one may be unlocked."""


class Scratch:
    """A temporary folder for a launcher's files, created on first use.

    The process holds a lock on its folder until it ends, so a later supervisor can find and remove
    the folders of killed processes.
    """

    def __init__(self) -> None:
        self._path = ""
        self._lock: int | None = None

    def path(self) -> str:
        """Return the folder; the first call creates it."""
        if not self._path:
            _remove_abandoned()
            self._path = tempfile.mkdtemp(prefix=_PREFIX)
            self._lock = _lock(self._path)
        return self._path

    def remove(self) -> None:
        """Remove the folder and its contents, if the folder was created."""
        if self._path:
            shutil.rmtree(self._path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self._path, self._lock = "", None


def _remove_abandoned() -> None:
    """Remove this user's folders that no process has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _MIN_AGE:
                continue
            lock = _lock(str(folder))
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: str) -> int | None:
    """Lock a folder until this process ends; return None if another process holds the lock."""
    import fcntl

    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        return None
    return opened


def mpi_files(process: int | str) -> set[Path]:
    """Return the MPI files that a process maps or has open; an empty set except on Linux."""
    names = []
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            names.append(line[line.find("/") :])
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(os.readlink(link))
    return {Path(n) for n in names if n.startswith(_NAMES) and not n.endswith(" (deleted)")}


def remove(files: Iterable[Path]) -> None:
    """Unlink files, ignoring those that are already gone."""
    for path in files:
        with contextlib.suppress(OSError):
            path.unlink()


def own_files() -> set[Path]:
    """Return the MPI files of this process and of its launcher, the nearest parent with any."""
    import psutil

    launchers = (mpi_files(parent.pid) for parent in psutil.Process().parents())
    return mpi_files("self") | next(filter(None, launchers), set())


def remove_own() -> None:
    """Unlink the MPI files of this process and of its launcher; mappings stay valid.

    Call this function after all ranks on this host have mapped or read the files.
    """
    remove(own_files())
