"""Outcomes of trials of primitives, kept on disk for later starts.

The outcome of a trial depends only on the library, the processor, the number of threads and the
primitive.  A trial runs the whole primitive at least twice: the trials of ResNet-50 take seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from flow_core.base.disk_cache import DiskCache, user_folder
from flow_onednn.library import describe
from flow_onednn.native.compiler import processor

SMALLEST = 1 << 20
"""The smallest size in bytes of the arguments of primitives whose outcomes are kept; smaller trials
take less time than writing a file."""

PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "cache size", "flags", "Features")
"""The facts about the processor on which the library's choices may depend."""

LIMIT = 4 << 20
"""Maximum size of the cache in bytes."""


def threads_of(primitive: str, size: int, most: int, trial: Callable[[], int]) -> int:
    """Return the number of threads that a trial has found, in this process or in an earlier one.

    Args:
        primitive: what determines the primitive, as text.
        size: the size of its arguments in bytes.
        most: the number of threads of the pool.
        trial: returns the number of threads, between 1 and ``most``.
    """
    if size < SMALLEST:
        return trial()

    def decode(content: bytes) -> int:
        found = int(content)
        if not 1 <= found <= most:
            raise ValueError(f"it has {found} threads of {most}")
        return found

    cache = DiskCache(user_folder("flow-onednn") / "trials", ".txt", LIMIT, by_path=False)
    key = ("trial 1", describe(), processor(*PROCESSOR), f"{most} threads", primitive)
    found = cache.decoded(key, decode)
    if found is None:
        found = trial()
        cache.write(key, str(found).encode())
    return found
