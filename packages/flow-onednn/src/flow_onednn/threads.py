"""The one OpenMP thread pool that oneDNN and our compiled kernels share, and its size."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any

SETTING = "ONEFLOW_CPU_THREADS"
STANDARD = "OMP_NUM_THREADS"


@functools.cache
def runtime() -> Any:
    """The OpenMP runtime of this process, None where it is not libgomp."""
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL("libgomp.so.1")
    except OSError:
        return None


def wanted() -> int | None:
    """The number of threads that the environment asks for; None leaves it to the runtime.

    ``ONEFLOW_CPU_THREADS`` goes before ``OMP_NUM_THREADS``, which the runtime reads itself.
    """
    text = os.environ.get(SETTING, "")
    return int(text) if text.isdigit() and int(text) > 0 else None


def apply() -> None:
    """Sizes the pool; without a wish, one thread per core that this process may use."""
    pool = runtime()
    if pool is None or (wanted() is None and os.environ.get(STANDARD)):
        return
    pool.omp_set_num_threads(wanted() or len(os.sched_getaffinity(0)))


def count() -> int:
    """How many threads the pool has.

    >>> count() >= 1
    True
    """
    pool = runtime()
    return int(pool.omp_get_max_threads()) if pool is not None else 1


def text() -> str:
    """For ``flow doctor``: how many threads, and who says so."""
    source = SETTING if wanted() else STANDARD if os.environ.get(STANDARD) else "cores"
    return f"{count()} by {source}"
