"""Regular files that stay open, for reads at any place."""

from __future__ import annotations

import os

from flow_core.base.formats.regular_files import AnyPath, open_regular


class OpenFile:
    """A regular file, which is closed when nothing refers to it; threads may share it.

    Raises `OSError` if the path does not name a regular file, or the file cannot be opened.
    """

    __slots__ = ("descriptor", "size")

    def __init__(self, path: AnyPath) -> None:
        with open_regular(path) as file:
            self.descriptor = os.dup(file.fileno())
        # The number of bytes that it had when it was opened.
        self.size = os.fstat(self.descriptor).st_size

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    def read(self, size: int, start: int) -> bytes:
        """Return bytes from a place on, or fewer where the file ends."""
        return os.pread(self.descriptor, size, start)
