"""The one OpenMP thread pool that oneDNN and our compiled kernels share, and its size.

How many threads kernels have is the plan's business: core sizes the pool
(`flow_core.base.thread_pools`) in the thread that looks them up, binds and runs them.  Here the
runtime is loaded with the budget of the process, so that it holds in all threads of which nobody
has said anything.
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
    """The OpenMP runtime of this process, None where it is not libgomp.

    It is loaded with our number of threads in its own variable: what is set later holds for the
    thread that sets it, and steps also run on threads of streams and of asynchronous jobs.
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


def apply() -> None:
    """Sizes the pool also where something else has loaded the runtime before us."""
    if runtime() is not None:
        find_open_mp()
        set_kernel_threads(current_kernel_threads())


def count() -> int:
    """How many threads the pool has for what the calling thread does.

    >>> count() >= 1
    True
    """
    pool = runtime()
    return int(pool.omp_get_max_threads()) if pool is not None else 1


@contextlib.contextmanager
def limited(most: int) -> Iterator[None]:
    """Sets the size of this thread's pool for a ``with`` block."""
    pool = runtime()
    if pool is None:
        yield
        return
    before = count()
    pool.omp_set_num_threads(most)
    try:
        yield
    finally:
        pool.omp_set_num_threads(before)


def alone() -> contextlib.AbstractContextManager[None]:
    """While it lasts, what asks this thread's pool for its size is told 1."""
    return limited(1)


SHARES = 8
"""The most shares that a sum is split into."""


def shares(work: int, least: int) -> int:
    """The shares that a sum is split into: 1, 2, 4 or 8.

    They fix the order of the additions, so that they depend on sizes and never on the number of
    threads, each of which does one or more.

    Args:
        work: how much there is to do.
        least: how much makes a share worth having.

    >>> [shares(work, 100) for work in (99, 200, 799, 10_000)]
    [1, 2, 4, 8]
    """
    most = max(1, min(SHARES, work // least))
    return 1 << most.bit_length() - 1


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


@contextlib.contextmanager
def of_process() -> Iterator[None]:
    """The whole budget for a ``with`` block, whatever part of it the calling thread has."""
    before = current_kernel_threads()
    set_kernel_threads(process_budget().count)
    try:
        yield
    finally:
        set_kernel_threads(before)
