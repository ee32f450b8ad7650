"""The rule for what a save may replace: a folder with a marker file and no foreign files.

The marker file says that the folder is a complete checkpoint.  The files of a checkpoint are the
files that its ``flow.sha256`` lists.  A checkpoint without that list, such as one that OneFlow
wrote, owns the files ``out`` and ``meta`` of each subfolder that contains a file ``out`` and whose
path is the name of a variable.  All other files are foreign; a folder with foreign files is never
replaced.
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
"""The largest number of foreign files that an error names."""

Owns = Callable[[str], bool]
"""A predicate: whether the file at a path, relative to a checkpoint, belongs to the checkpoint."""


def obstacle(folder: Path) -> str | None:
    """Return why a save may not replace a folder, or None if it may."""
    if not is_marked(folder):
        names = sorted(entry.name for entry in folder.iterdir())
        return f"a folder that is not a checkpoint: no file {DONE!r}, but {_shown(names)}"
    names = list(islice(foreign(folder), _SHOWN + 1))
    return f"a checkpoint with foreign files: {_shown(names)}" if names else None


def _shown(names: list[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(f"{name!a:.100}" for name in names[:_SHOWN]) + more


def foreign(folder: Path, owns: Owns | None = None) -> Iterator[str]:
    """Yield the foreign files of a checkpoint folder, as relative paths.

    Args:
        folder: the checkpoint.
        owns: whether a file belongs to the checkpoint; if None, the rule of this module decides.

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
    """Return all files below a folder, mapped to whether they are regular, and all subfolders."""
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
    except CheckpointError:  # the list is damaged: apply the rule for checkpoints without a list
        sums = None
    if sums is not None:
        return sums.digests.__contains__

    def in_a_variable(name: str) -> bool:
        above, _, last = name.rpartition("/")
        return bool(above) and last in (DATA, META) and f"{above}/{DATA}" in files

    return in_a_variable


def special(folder: Path) -> str | None:
    """Return why a folder must never be replaced, or None for an ordinary folder."""
    if folder.parent == folder:
        return "the root of the file system"
    for name, find in (("the home folder", Path.home), ("the working directory", Path.cwd)):
        try:
            found = find().resolve()
        except (OSError, RuntimeError):  # the system does not define this folder
            continue
        if found.is_relative_to(folder):
            return name if found == folder else f"a parent of {name}"
    return None


def remove(folder: Path, owns: Owns | None = None) -> None:
    """Remove a replaced or outdated checkpoint, but keep foreign files.

    Raises:
        CheckpointError: the folder holds foreign files, which were created during the replacement;
            the error names the folder that keeps them.
    """
    names = list(islice(foreign(folder, owns), _SHOWN + 1))
    if not names:
        shutil.rmtree(folder)
        return
    kept = folder.with_name(f"kept-{secrets.token_hex(4)}-{folder.name.lstrip('.')}")
    os.rename(folder, kept)
    raise CheckpointError(
        f"removing the replaced checkpoint, now {kept}",
        found=f"foreign files: {_shown(names)}",
        hint=f"nothing is lost: the new checkpoint is complete, and these files are in {kept}",
    )
