"""Compiled code that is kept on disk."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from flow_core.base.disk_cache import DiskCache
from fuzzing.target import Target

_KEY = ("convolution", "float32", "plan 3")
_CONTENT = b"serialized" * 20


def _kept(folder: Path) -> tuple[DiskCache, Path]:
    """A cache with one plan, and the file of the plan."""
    cache = DiskCache(folder / "cudnn", ".plan")
    cache.write(_KEY, _CONTENT)
    return cache, cache.entry(_KEY)


def _seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [_kept(Path(folder))[1].read_bytes()]


def _open(folder: Path) -> Callable[[bytes, int], object]:
    """Whatever is in the file, the plan that was kept is read, or none."""
    cache, path = _kept(folder)

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = cache.read(_KEY)
        if found not in (None, _CONTENT):
            raise AssertionError(f"{found!r:.60} was not kept")

    return read


TARGETS = (Target("kept-plan", _seeds, _open, weight=0.5),)
