"""Files by which MPI's libraries share memory, and which processes that are killed leave behind.

MPICH and Open MPI remove them when a process ends well.  They lie in memory: some megabytes for
each start of a job that was ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

_NAMES = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.")
"""How the files begin."""


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
