"""The rule for what a save may replace: a folder with a marker file and no foreign files.

The rule is the same for paths and URLs: it asks a `Place`, which lists what is at the destination.

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
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from flow_core.base.errors import CheckpointError
from flow_core.checkpoint.layout import DATA, DONE, META, SUMS
from flow_core.checkpoint.sums import Sums, parents, read_sums

_SHOWN = 5
"""The largest number of foreign files that an error names."""

Owns = Callable[[str], bool]
"""A predicate: whether the file at a path, relative to a checkpoint, belongs to the checkpoint."""


class Place(Protocol):
    """The destination of a save: a path, or a URL."""

    def kind(self) -> str | None:
        """Return "file", "folder", a description of anything else, or None if nothing exists."""

    def special(self) -> str | None:
        """Return the reason why a folder must never be replaced, None if it may be."""

    def names(self) -> list[str]:
        """Return the names of the files and folders at the top of a folder."""

    def contents(self) -> tuple[dict[str, bool], set[str]]:
        """Return all files below a folder, mapped to whether they are regular, and all subfolders.

        The paths are relative to the folder.
        """

    def sums(self) -> Sums | None:
        """Return the list of digests; None if there is none; raise `CheckpointError` if damaged."""

    def open(self) -> object:
        """Open a file in the format of the save; raise `CheckpointError` if it has another."""


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A path."""

    path: Path  # the absolute path, without symbolic links
    reader: Callable[[Path], Any] = read_sums  # opens a file in the format of the save

    def kind(self) -> str | None:
        if not self.path.exists():
            return None
        kinds = {"folder": self.path.is_dir(), "file": self.path.is_file()}
        return next((kind for kind, is_kind in kinds.items() if is_kind), "special file")

    def special(self) -> str | None:
        if self.path.parent == self.path:
            return "the root of the file system"
        for name, find in (("the home folder", Path.home), ("the working directory", Path.cwd)):
            try:
                folder = find().resolve()
            except (OSError, RuntimeError):  # the system does not define this folder
                continue
            if folder.is_relative_to(self.path):
                return name if folder == self.path else f"a parent of {name}"
        return None

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def contents(self) -> tuple[dict[str, bool], set[str]]:
        files: dict[str, bool] = {}
        folders: set[str] = set()
        waiting = [""]
        while waiting:
            below = waiting.pop()
            for entry in os.scandir(self.path / below):
                name = f"{below}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.add(name)
                    waiting.append(f"{name}/")
                else:
                    files[name] = entry.is_file(follow_symlinks=False)
        return files, folders

    def sums(self) -> Sums | None:
        return read_sums(self.path)

    def open(self) -> object:
        return self.reader(self.path)


def check(place: Place, attempted: str, *, single: str | None, overwrite: bool) -> None:
    """Raise `CheckpointError` if something exists at a place that a save must not replace.

    Args:
        single: name of the format if the checkpoint is a single file, None for a folder.
    """
    kind = place.kind()
    if kind is None:
        return
    in_the_way = _beside_file(place, kind, single) if single else _beside_folder(place, kind)
    empty = kind == "folder" and not place.names()
    if in_the_way is None and (overwrite or empty):
        return
    raise CheckpointError.at_caller(
        attempted,
        found=f"{in_the_way or 'a checkpoint'}, which already exists",
        allowed="a path that does not exist"
        + ("" if single else ", an empty folder")
        + ", or with overwrite=True a checkpoint without other files",
        hint="save to another path, or "
        + ("pass overwrite=True" if in_the_way is None else "move the existing files"),
    )


def _beside_file(place: Place, kind: str, format: str) -> str | None:
    if kind != "file":
        return f"a {kind}"
    try:
        place.open()
    except CheckpointError as error:
        return f"a file that is not a {format} file: {error.found}"
    return None


def _beside_folder(place: Place, kind: str) -> str | None:
    if kind != "folder":
        return f"a {kind}"
    special = place.special()
    if special is not None:
        return f"{special}, which a save never replaces"
    return obstacle(place) if place.names() else None


def obstacle(place: Place) -> str | None:
    """Return why a save may not replace a folder, or None if it may."""
    names = sorted(place.names())
    files, folders = place.contents() if DONE in names else ({}, set[str]())
    if not files.get(DONE):
        return f"a folder that is not a checkpoint: no file {DONE!r}, but {_shown(names)}"
    names = list(islice(_foreign(files, folders, _owner(place, files)), _SHOWN + 1))
    return f"a checkpoint with foreign files: {_shown(names)}" if names else None


def _shown(names: list[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(f"{name!a:.100}" for name in names[:_SHOWN]) + more


def foreign(folder: Path, owns: Owns | None = None) -> Iterator[str]:
    """Yield the foreign files of a checkpoint folder, as relative paths.

    Args:
        owns: whether a file belongs to the checkpoint; if None, the rule of this module decides.

    Raises:
        OSError: a folder cannot be read.
    """
    place = LocalPlace(folder)
    files, folders = place.contents()
    yield from _foreign(files, folders, owns or _owner(place, files))


def _foreign(files: dict[str, bool], folders: set[str], owns: Owns) -> Iterator[str]:
    for name, regular in sorted(files.items()):
        if not regular or not (name in (DONE, SUMS) or owns(name)):
            yield name
    yield from (f"{name}/" for name in sorted(folders - parents(files)))


def _owner(place: Place, files: dict[str, bool]) -> Owns:
    try:
        sums = place.sums()
    except CheckpointError:  # the list is damaged: apply the rule for checkpoints without a list
        sums = None
    if sums is not None:
        return sums.digests.__contains__

    def in_a_variable(name: str) -> bool:
        above, _, last = name.rpartition("/")
        return bool(above) and last in (DATA, META) and f"{above}/{DATA}" in files

    return in_a_variable


def remove(folder: Path, owns: Owns | None = None) -> None:
    """Remove a replaced or outdated checkpoint, but keep foreign files.

    Raises `CheckpointError` if the folder holds foreign files, which were created during the
    replacement; the error names the folder that keeps them.
    """
    names = list(islice(foreign(folder, owns), _SHOWN + 1))
    if not names:
        shutil.rmtree(folder)
        return
    moved = folder.with_name(f"kept-{secrets.token_hex(4)}-{folder.name.lstrip('.')}")
    os.rename(folder, moved)
    raise CheckpointError(
        f"removing the replaced checkpoint, now {moved}",
        found=f"foreign files: {_shown(names)}",
        hint=f"nothing is lost: the new checkpoint is complete, and these files are in {moved}",
    )
