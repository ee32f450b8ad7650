"""The one OpenMP thread pool that oneDNN and our compiled kernels share, and its size."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

SETTING = "ONEFLOW_CPU_THREADS"
STANDARD = "OMP_NUM_THREADS"


@functools.cache
def runtime() -> Any:
    """The OpenMP runtime of this process, None where it is not libgomp.

    It is loaded with our number of threads in its own variable: what is set later holds for the
    thread that sets it, and steps also run on threads of streams and of asynchronous jobs.
    """
    if sys.platform != "linux":
        return None
    before, count = os.environ.get(STANDARD), wanted()
    try:
        if count is not None:
            os.environ[STANDARD] = str(count)
        return ctypes.CDLL("libgomp.so.1")
    except OSError:
        return None
    finally:
        _restore(before)


def _restore(value: str | None) -> None:
    if value is None:
        os.environ.pop(STANDARD, None)
    else:
        os.environ[STANDARD] = value


def wanted() -> int | None:
    """The number of threads that the environment asks for; None leaves it to the runtime.

    ``ONEFLOW_CPU_THREADS`` goes before ``OMP_NUM_THREADS``, which the runtime reads itself.
    """
    text = os.environ.get(SETTING, "")
    return int(text) if text.isdigit() and int(text) > 0 else None


def apply() -> None:
    """Sizes the pool also where something else has loaded the runtime before us.

    Without a wish, there is one thread per core that this process may use.
    """
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


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """While it lasts, what asks this thread's pool for its size is told 1."""
    pool = runtime()
    if pool is None:
        yield
        return
    before = count()
    pool.omp_set_num_threads(1)
    try:
        yield
    finally:
        pool.omp_set_num_threads(before)


def runs(path: str) -> bool:
    """Whether a loaded library takes its threads from our pool, and not from another OpenMP's."""
    pool = runtime()
    if pool is None:
        return False
    try:
        asked = ctypes.CDLL(path).omp_in_parallel
    except (OSError, AttributeError):
        return False
    found, ours = (ctypes.cast(f, ctypes.c_void_p).value for f in (asked, pool.omp_in_parallel))
    return found == ours


def text() -> str:
    """For ``flow doctor``: how many threads, and who says so."""
    source = SETTING if wanted() else STANDARD if os.environ.get(STANDARD) else "cores"
    return f"{count()} by {source}"
