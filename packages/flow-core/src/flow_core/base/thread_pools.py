"""The pools of threads that libraries keep in this process, and their sizes: BLAS's and OpenMP's.

BLAS is whatever numpy is linked to; its pool is one for the whole process.  OpenMP's runtimes have
a number per thread of ours that begins parallel work; they are there when a plugin has loaded one.
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
"""OpenMP's, by the names under which they are loaded."""

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
"""BLAS libraries, by what sets the number of their threads; ``get`` in place of ``set`` asks."""

CAPS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that limit BLAS alone."""


@dataclass(frozen=True, slots=True)
class Blas:
    """The pool of numpy's matrix products.

    Attributes:
        name: of the library.
        put: sets its size.
        get: its size.
        cap: the most that the environment allows.
    """

    name: str
    put: Any
    get: Any
    cap: int

    def size(self, count: int) -> None:
        """Sets how many threads a product has."""
        count = min(count, self.cap)
        if self.get() != count:
            self.put(count)


@cache
def blas() -> Blas | None:
    """The BLAS that numpy is linked to; None for one whose threads we cannot count."""
    library = _linked()
    for name, symbols in LIBRARIES.items():
        for symbol in symbols:
            asks = symbol.replace("set", "get").replace("Set", "Get").replace("Get_Num", "Get_Max")
            put, get = getattr(library, symbol, None), getattr(library, asks, None)
            if put is not None and get is not None:
                return Blas(name, put, get, cap(os.environ))
    return None


def _linked() -> Any:
    """Numpy's own library, in which symbols of what it is linked to are found, too."""
    core = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
    try:
        return ctypes.CDLL(str(import_module(f"{core}._multiarray_umath").__file__))
    except (ImportError, OSError):
        return None


def cap(env: Mapping[str, str]) -> int:
    """The most threads that an environment allows BLAS alone.

    >>> cap({"OPENBLAS_NUM_THREADS": "2"}), cap({}) > 1000
    (2, True)
    """
    found = [int(env[name]) for name in CAPS if env.get(name, "").isdigit()]
    return next(filter(None, found), sys.maxsize)


_open_mp: dict[str, Any] = {}


def look() -> None:
    """Finds the OpenMP runtimes that the process has loaded by now."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return
    for name in RUNTIMES:
        if name not in _open_mp:
            try:
                _open_mp[name] = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError:
                continue


def open_mp() -> tuple[str, ...]:
    """The OpenMP runtimes that `look` has found."""
    return tuple(_open_mp)


_settled: list[Budget] = []
_own = threading.local()


def settle(budget: Budget) -> None:
    """Tells the budget of the process, which all pools have unless they are granted less."""
    _settled[:] = [budget]
    look()
    grant(budget.count)
    found = blas()
    if found is not None:
        found.size(budget.count)


def settled() -> Budget:
    """The budget of the process: what `settle` was told, else what the environment says."""
    return _settled[0] if _settled else find_budget(asked(os.environ))


def granted() -> int:
    """How many threads a kernel has that the calling thread looks up, binds or runs."""
    return getattr(_own, "count", 0) or settled().count


def grant(kernels: int) -> None:
    """Gives kernels so many threads of OpenMP, in the calling thread and from here on."""
    _own.count = kernels
    for runtime in _open_mp.values():
        runtime.omp_set_num_threads(kernels)


def sized(cores: Cores, run: Callable[[], object]) -> Callable[[], object]:
    """A step of a plan in one thread, for which the pools are sized where they are not already.

    They have the budget between steps, so that mostly there is nothing to do, and mostly else only
    BLAS's is smaller.
    """
    usual, found = settled().count, blas()
    if cores.kernels not in (0, usual):
        return partial(_granted, cores, run)
    if cores.products in (0, usual) or found is None:
        return run
    return partial(_with_products, found.put, found.get, min(cores.products, found.cap), run)


def _granted(cores: Cores, run: Callable[[], object]) -> None:
    with granting(cores):
        run()


def _with_products(put: Any, get: Any, count: int, run: Callable[[], object]) -> None:
    before = get()
    put(count)
    try:
        run()
    finally:
        put(before)


@contextmanager
def granting(cores: Cores) -> Iterator[None]:
    """Sizes the pools as a plan has it for a ``with`` block, and puts back what was.

    Of OpenMP's, those that `look` has found: it takes 0.1 ms, too much for each step.
    BLAS's is the whole process's: of threads that work together one does this for all, and the
    others call `grant`.
    """
    if not cores.kernels:
        yield
        return
    kernels, found = granted(), blas()
    products = 0 if found is None else found.get()
    grant(cores.kernels)
    if found is not None:
        found.size(cores.products)
    try:
        yield
    finally:
        grant(kernels)
        if found is not None:
            found.size(products)
