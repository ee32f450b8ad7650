"""Compiled files, kept by what they were made of.

They lie in ``$XDG_CACHE_HOME/flow-cuda`` (``~/.cache/flow-cuda``); deleting it is always safe.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


class Cache:
    """A folder of files of one kind.

    Args:
        kind: name of the folder.
        suffix: of the files.
        base: where the folder is; default: the user's cache.
    """

    def __init__(self, kind: str, suffix: str, base: Path | None = None) -> None:
        self._suffix = suffix
        self.folder = (base or _base()) / kind

    def place(self, content: Sequence[str]) -> Path:
        """Where the file for some content is, if there is one."""
        key = hashlib.sha256("\0".join(content).encode()).hexdigest()[:40]
        return self.folder / (key + self._suffix)

    def path(self, content: Sequence[str], make: Callable[[Path], object]) -> Path:
        """The file for some content; ``make`` writes it where there is none."""
        found = self.place(content)
        if not found.exists():
            self.put(content, make)
        return found

    def put(self, content: Sequence[str], make: Callable[[Path], object]) -> None:
        """Has ``make`` write the file for some content, in place of one that is there.

        It is written beside its place and moved there in one step: whoever finds it finds all
        of it, however many processes make it at once.
        """
        found = self.place(content)
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            fresh = Path(scratch, found.name)
            make(fresh)
            fresh.replace(found)


def _base() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flow-cuda")
