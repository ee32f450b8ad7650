"""Compiled plans that are kept on disk."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from flow_cuda.cache import Cache
from flow_cuda.kept_plans import KeptPlans
from fuzzing.target import Target

_KEY = ("convolution", "float32", "plan 3")
_CONTENT = b"serialized" * 20


def _kept(folder: Path) -> tuple[KeptPlans, Path]:
    """A cache with one plan, and the file of the plan."""
    kept = KeptPlans(Cache("cudnn", ".plan", folder), "9.1", "sm_90")
    kept.write(_CONTENT, *_KEY)
    (path,) = (folder / "cudnn").iterdir()
    return kept, path


def _seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [_kept(Path(folder))[1].read_bytes()]


def _open(folder: Path) -> Callable[[bytes, int], object]:
    """Whatever is in the file, the plan that was kept is read, or none."""
    kept, path = _kept(folder)

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = kept.read(*_KEY)
        if found not in (None, _CONTENT):
            raise AssertionError(f"{found!r:.60} was not kept")

    return read


TARGETS = (Target("kept-plan", _seeds, _open, weight=0.5),)
