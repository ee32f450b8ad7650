"""The kernels of a device: requested while binding, then compiled together, many per module."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from flow_cuda.codegen import nvrtc
from flow_cuda.codegen.program import Kernel

PER_MODULE = 24
"""The largest mean number of kernels per module, which share the headers."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Function:
    """A kernel on a device."""

    kernel: Kernel
    pointer: int = 0  # the address of its function; 0 until it is loaded
    module: Any = None  # which this object keeps alive


class Modules:
    """The kernels of a device.

    Args:
        load: loads a cubin or PTX; the result has ``get_function(name).ptr``.
    """

    def __init__(self, architecture: str, load: Callable[[bytes], Any]) -> None:
        self._architecture, self._load = architecture, load
        self._functions: dict[str, Function] = {}
        self._lock = threading.Lock()

    def function(self, kernel: Kernel) -> Function:
        """Return a kernel, which `finish` loads."""
        return self._functions.setdefault(kernel.name, Function(kernel))

    def finish(self) -> None:
        """Load all requested kernels; compile those that are not in the cache on all cores."""
        with self._lock:
            waiting = [f for f in tuple(self._functions.values()) if not f.pointer]
            if waiting:
                self._finish(waiting)

    def _finish(self, waiting: Sequence[Function]) -> None:
        parts, started, done = grouped(waiting), time.perf_counter(), 0
        with ThreadPoolExecutor() as pool:
            made = {pool.submit(self._compiled, part): part for part in parts}
            for future in as_completed(made):
                module = self._load(future.result())
                for function in made[future]:
                    function.module = module
                    function.pointer = module.get_function(function.kernel.name).ptr
                done += len(made[future])
                seconds = time.perf_counter() - started
                log.info("loaded %d of %d kernels in %.1f s", done, len(waiting), seconds)

    def _compiled(self, part: Sequence[Function]) -> bytes:
        return nvrtc.compile_kernels([f.kernel for f in part], self._architecture)


def grouped(functions: Iterable[Function]) -> list[list[Function]]:
    """Group kernels by the hashes in their names, so that most groups of a changed job are cached.

    >>> from flow_cuda.codegen.program import make_kernel
    >>> kernels = [make_kernel("k", (), f"// {i}") for i in range(100)]
    >>> [len(group) for group in grouped(map(Function, kernels))]
    [10, 12, 16, 10, 18, 11, 15, 8]
    """
    rows = sorted(functions, key=lambda f: f.kernel.name)
    count = 1 << max(0, (len(rows) - 1) // PER_MODULE).bit_length()
    groups: dict[int, list[Function]] = {}
    for function in rows:
        key = int(function.kernel.name.rpartition("_")[2], 16) % count
        groups.setdefault(key, []).append(function)
    return [groups[key] for key in sorted(groups)]
