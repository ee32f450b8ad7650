"""The OpenMP thread pool that oneDNN and the compiled C loops share.

`flow_core.base.thread_pools` sets the pool size in the thread that looks up, binds and runs
kernels. This module loads the OpenMP runtime with the thread budget of the process, which is the
default pool size for all other threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

from flow_core.base.thread_budget import STANDARD
from flow_core.base.thread_pools import (
    current_kernel_threads,
    find_open_mp,
    process_budget,
    set_kernel_threads,
)


@functools.cache
def runtime() -> Any:
    """Load the OpenMP runtime of this process; None if it is not libgomp.

    The thread count is passed in the runtime's environment variable, because a count that is set
    later applies to the calling thread only, whereas the threads of streams and of asynchronous
    jobs run steps as well.
    """
    if sys.platform != "linux":
        return None
    before = os.environ.get(STANDARD)
    try:
        os.environ[STANDARD] = str(process_budget().count)
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


def resize_pool() -> None:
    """Set the pool size, which is needed if another library loaded the runtime first."""
    if runtime() is not None:
        find_open_mp()
        set_kernel_threads(current_kernel_threads())


def count() -> int:
    """Return the number of threads in the calling thread's pool.

    >>> count() >= 1
    True
    """
    pool = runtime()
    return int(pool.omp_get_max_threads()) if pool is not None else 1


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """Set the size of the calling thread's pool for a ``with`` block."""
    pool = runtime()
    if pool is None:
        yield
        return
    before = count()
    pool.omp_set_num_threads(size)
    try:
        yield
    finally:
        pool.omp_set_num_threads(before)


def single_threaded() -> contextlib.AbstractContextManager[None]:
    """Set the calling thread's pool to one thread for a ``with`` block."""
    return limited(1)


MAX_PARTITIONS = 8
"""Maximum number of partial sums into which a sum is split."""


def partition_count(work: int, minimum: int) -> int:
    """Return the number of partitions of a sum: 1, 2, 4 or 8.

    The number fixes the order of the additions, so it depends on sizes only, never on the number of
    threads. Each thread computes one or more partitions.

    Args:
        work: total work, as a number of elements or other units.
        minimum: the least work that a partition must have, in the same units.

    >>> [partition_count(work, 100) for work in (99, 200, 799, 10_000)]
    [1, 2, 4, 8]
    """
    limit = max(1, min(MAX_PARTITIONS, work // minimum))
    return 1 << limit.bit_length() - 1


def uses_pool(path: str) -> bool:
    """Return whether the library at ``path`` uses this module's OpenMP runtime."""
    pool = runtime()
    if pool is None:
        return False
    try:
        symbol = ctypes.CDLL(path).omp_in_parallel
    except (OSError, AttributeError):
        return False
    symbols = (symbol, pool.omp_in_parallel)
    found, expected = (ctypes.cast(f, ctypes.c_void_p).value for f in symbols)
    return found == expected


@contextlib.contextmanager
def whole_budget() -> Iterator[None]:
    """Grant the calling thread the whole thread budget for a ``with`` block."""
    before = current_kernel_threads()
    set_kernel_threads(process_budget().count)
    try:
        yield
    finally:
        set_kernel_threads(before)
