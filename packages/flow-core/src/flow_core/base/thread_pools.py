"""The thread pools of BLAS and OpenMP in this process, and their sizes.

BLAS is the library that numpy is linked to; its pool belongs to the whole process.  An OpenMP
runtime, which is present if a plugin has loaded one, has a number of threads per calling thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from flow_core.base.thread_budget import Budget, Cores, asked, find_budget

RUNTIMES = ("libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so")
"""File names of OpenMP runtimes."""

LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "OpenBLAS": (
        "scipy_openblas_set_num_threads64_",
        "scipy_openblas_set_num_threads",
        "openblas_set_num_threads64_",
        "openblas_set_num_threads",
    ),
    "MKL": ("MKL_Set_Num_Threads",),
    "BLIS": ("bli_thread_set_num_threads",),
}
"""Functions that set a BLAS library's number of threads; getters have ``get`` instead of ``set``.
"""

CAPS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that limit only BLAS."""


@dataclass(frozen=True, slots=True)
class Blas:
    """The thread pool of numpy's matrix products."""

    name: str
    put: Any  # the function that sets the size
    get: Any  # the function that returns the size
    cap: int  # the largest size that the environment allows

    def size(self, count: int) -> None:
        """Set the number of threads of a product."""
        count = min(count, self.cap)
        if self.get() != count:
            self.put(count)


@cache
def blas() -> Blas | None:
    """Return the BLAS that numpy is linked to; None for a library without a known setter."""
    library = _linked()
    for name, symbols in LIBRARIES.items():
        for symbol in symbols:
            asks = symbol.replace("set", "get").replace("Set", "Get").replace("Get_Num", "Get_Max")
            put, get = getattr(library, symbol, None), getattr(library, asks, None)
            if put is not None and get is not None:
                return Blas(name, put, get, cap(os.environ))
    return None


def _linked() -> Any:
    """Return numpy's extension module, through which symbols of its BLAS resolve."""
    try:
        return ctypes.CDLL(str(_numpy_module().__file__))
    except (ImportError, OSError):
        return None


def _numpy_module() -> Any:
    core = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
    return import_module(f"{core}._multiarray_umath")


def cpu_features() -> tuple[str, ...]:
    """Return the names of the processor's vector instructions that numpy uses."""
    found: dict[str, bool] = _numpy_module().__cpu_features__
    return tuple(sorted(name for name, used in found.items() if used))


def cap(env: Mapping[str, str]) -> int:
    """Return the largest number of BLAS threads that environment variables allow.

    >>> cap({"OPENBLAS_NUM_THREADS": "2"}), cap({}) > 1000
    (2, True)
    """
    limits = [int(env[name]) for name in CAPS if env.get(name, "").isdigit()]
    return next(filter(None, limits), sys.maxsize)


_open_mp: dict[str, Any] = {}


def find_open_mp() -> None:
    """Find the OpenMP runtimes that the process has loaded."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return
    for name in RUNTIMES:
        if name not in _open_mp:
            try:
                _open_mp[name] = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError:
                continue


def open_mp() -> tuple[str, ...]:
    """Return the OpenMP runtimes that `find_open_mp` has found."""
    return tuple(_open_mp)


_budget: list[Budget] = []
_own = threading.local()


def set_budget(budget: Budget) -> None:
    """Set the process's budget, which is the size of all pools unless a plan sets a smaller one."""
    _budget[:] = [budget]
    find_open_mp()
    set_kernel_threads(budget.count)
    pool = blas()
    if pool is not None:
        pool.size(budget.count)


def process_budget() -> Budget:
    """Return the budget passed to `set_budget`, or else the one that the environment requests."""
    return _budget[0] if _budget else find_budget(asked(os.environ))


def current_kernel_threads() -> int:
    """Return the number of threads of kernels that the calling thread looks up, binds or runs."""
    return getattr(_own, "count", 0) or process_budget().count


def set_kernel_threads(kernels: int) -> None:
    """Set the number of OpenMP threads of kernels in the calling thread."""
    _own.count = kernels
    for runtime in _open_mp.values():
        runtime.omp_set_num_threads(kernels)


def with_sized_pools(cores: Cores, run: Callable[[], object]) -> Callable[[], object]:
    """Wrap one thread's work of a step so that it resizes the pools as the plan requires.

    Between steps, the pools have the size of the budget.  Usually, therefore, either no pool or
    only BLAS's pool is resized, and no pool for joined launches, which do not call numpy.
    """
    usual, pool = process_budget().count, blas()
    if cores.kernels not in (0, usual):
        return partial(_run_sized, cores, run)
    if cores.products in (0, usual) or pool is None or hasattr(run, "join"):
        return run
    return partial(_with_products, pool.put, pool.get, min(cores.products, pool.cap), run)


def _run_sized(cores: Cores, run: Callable[[], object]) -> None:
    with sized_pools(cores):
        run()


def _with_products(put: Any, get: Any, count: int, run: Callable[[], object]) -> None:
    before = get()
    put(count)
    try:
        run()
    finally:
        put(before)


@contextmanager
def sized_pools(cores: Cores) -> Iterator[None]:
    """Set the sizes of the pools to those of a plan in a ``with`` block, and restore them after it.

    Only OpenMP runtimes that `find_open_mp` has found are resized, since a search takes 0.1 ms.
    BLAS's pool is process-wide: if several threads work together, one of them uses this context
    manager, and the others call `set_kernel_threads`.
    """
    if not cores.kernels:
        yield
        return
    kernels, pool = current_kernel_threads(), blas()
    products = 0 if pool is None else pool.get()
    set_kernel_threads(cores.kernels)
    if pool is not None:
        pool.size(cores.products)
    try:
        yield
    finally:
        set_kernel_threads(kernels)
        if pool is not None:
            pool.size(products)
