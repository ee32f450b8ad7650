"""What a save may replace: a checkpoint, known by the mark at its top, that holds nothing else.

A folder's files are those that its ``flow.sha256`` lists; without that list, as OneFlow writes
checkpoints, the files ``out`` and ``meta`` of folders that have both a name and an ``out``.
Everything else is foreign, and a folder with anything foreign stays as it is.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from flow_core.base.errors import CheckpointError
from flow_core.checkpoint.layout import DATA, DONE, META, SUMS
from flow_core.checkpoint.sums import is_marked, parents, read_sums

_SHOWN = 5
"""How many foreign names an error tells."""

Owns = Callable[[str], bool]
"""Whether a file at a path relative to a checkpoint belongs to it."""


def obstacle(folder: Path) -> str | None:
    """Why a folder may not be replaced by a save; None when it may."""
    if not is_marked(folder):
        names = sorted(entry.name for entry in folder.iterdir())
        return f"a folder that is no checkpoint: no file {DONE!r} at its top, but {_shown(names)}"
    names = list(islice(foreign(folder), _SHOWN + 1))
    return f"a checkpoint with files that are not its own: {_shown(names)}" if names else None


def _shown(names: list[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(f"{name!a:.100}" for name in names[:_SHOWN]) + more


def foreign(folder: Path, owns: Owns | None = None) -> Iterator[str]:
    """What lies in a checkpoint folder and does not belong to it, as relative paths.

    Args:
        folder: the checkpoint.
        owns: which files are its own; see the module if None.

    Raises:
        OSError: a folder cannot be read.
    """
    files, folders = _contents(folder)
    owns = owns or _owner(folder, files)
    for name, regular in sorted(files.items()):
        if not regular or not (name in (DONE, SUMS) or owns(name)):
            yield name
    yield from (f"{name}/" for name in sorted(folders - parents(files)))


def _contents(folder: Path) -> tuple[dict[str, bool], set[str]]:
    """Everything below a folder: whether it is a regular file, by path; and the subfolders."""
    files: dict[str, bool] = {}
    folders: set[str] = set()
    waiting = [""]
    while waiting:
        below = waiting.pop()
        for entry in os.scandir(folder / below):
            name = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                folders.add(name)
                waiting.append(f"{name}/")
            else:
                files[name] = entry.is_file(follow_symlinks=False)
    return files, folders


def _owner(folder: Path, files: dict[str, bool]) -> Owns:
    try:
        sums = read_sums(folder)
    except CheckpointError:  # damaged: what a checkpoint without it has
        sums = None
    if sums is not None:
        return sums.digests.__contains__

    def in_a_variable(name: str) -> bool:
        above, _, last = name.rpartition("/")
        return bool(above) and last in (DATA, META) and f"{above}/{DATA}" in files

    return in_a_variable


def special(folder: Path) -> str | None:
    """Why a folder is never replaced, checkpoint or not; None for an ordinary one."""
    if folder.parent == folder:
        return "the root of the file system"
    for name, find in (("the home folder", Path.home), ("the working directory", Path.cwd)):
        try:
            place = find().resolve()
        except (OSError, RuntimeError):  # there is none
            continue
        if place.is_relative_to(folder):
            return name if place == folder else f"a folder around {name}"
    return None


def remove(folder: Path, owns: Owns | None = None) -> None:
    """Remove a checkpoint that was replaced or is too old, and nothing else.

    Raises:
        CheckpointError: foreign files are in it, which came while it was replaced; names where
            they are now.
    """
    names = list(islice(foreign(folder, owns), _SHOWN + 1))
    if not names:
        shutil.rmtree(folder)
        return
    kept = folder.with_name(f"kept-{secrets.token_hex(4)}-{folder.name.lstrip('.')}")
    os.rename(folder, kept)
    raise CheckpointError(
        f"removing the checkpoint that was replaced beside {kept}",
        found=f"files that are not its own: {_shown(names)}",
        hint=f"nothing is lost: the new checkpoint is in place, and these files are in {kept}",
    )
