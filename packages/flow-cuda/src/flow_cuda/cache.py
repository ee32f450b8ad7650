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

    def path(self, content: Sequence[str], make: Callable[[Path], None]) -> Path:
        """The file for some content; ``make`` writes it where there is none.

        It is written beside its place and moved there in one step: whoever finds it finds all
        of it, however many processes make it at once.
        """
        key = hashlib.sha256("\0".join(content).encode()).hexdigest()[:40]
        found = self.folder / (key + self._suffix)
        if not found.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                fresh = Path(scratch, key + self._suffix)
                make(fresh)
                fresh.replace(found)
        return found


def _base() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flow-cuda")
