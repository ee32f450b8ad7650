"""Finds oneDNN, loads it, and says why it cannot be used.

Looked up in this order: the file that ``FLOW_ONEDNN_LIBRARY`` names, an installed distribution,
``libdnnl.so.3`` of this environment (conda's or a wheel's) and the system's.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from flow_core.base.errors import FlowError
from flow_core.base.thread_pools import process_budget
from flow_onednn import binding, threads
from flow_onednn.native import compiler

SETTING = "FLOW_ONEDNN_LIBRARY"
INSTALL = "uv add 'flow-onednn[wheel]' on x86 Linux, or conda's onednn, or set " + SETTING
DISTRIBUTIONS = ("onednn-cpu-gomp", "onednn-cpu-iomp", "onednn-cpu-tbb", "onednn")
NAMES = {"darwin": ("libdnnl.3.dylib",), "win32": ("dnnl.dll",)}.get(
    sys.platform, ("libdnnl.so.3",)
)
OLDEST = (3, 2)
OPENMP = "OpenMP"


NO_TILES = "products in float32, between arrays of half the size; without AMX that is faster"


class OneDnnError(FlowError):
    """oneDNN refused a call."""


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded oneDNN with the one engine and stream that this process uses.

    Attributes:
        ffi, lib: cffi's objects.
        engine, stream: the CPU and its queue.
        path: the file, or the name by which the system's loader found it.
        version: (major, minor, patch).
        runtime: what runs its threads.
        isa: the instruction sets that it uses.
        halves: the half types that it has vector instructions for.
        tiles: whether products of these are faster than those of float32, as AMX makes them.
        waits: whether execution returns before the work is done.
        shares: whether its threads are those of our loops, so that a primitive that one of them
            runs keeps to this thread.
    """

    ffi: Any
    lib: Any
    engine: Any
    stream: Any
    path: str
    version: tuple[int, int, int]
    runtime: str
    isa: str
    halves: tuple[str, ...]
    tiles: bool
    waits: bool
    shares: bool

    def check(self, status: int, what: str) -> None:
        """Raises `OneDnnError` unless the status is success."""
        if status:
            raise OneDnnError(
                f"{what} with oneDNN {'.'.join(map(str, self.version))}",
                found=f"status {status}: {status_text(status)}",
                hint="FLOW_DISABLE_PLUGINS=flow-onednn runs on numpy's kernels instead",
            )


def status_text(status: int) -> str:
    """The words for a status.

    >>> status_text(2)
    'invalid arguments'
    """
    return binding.STATUS[status] if 0 <= status < len(binding.STATUS) else "unknown"


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no usable library."""

    reason: str


@functools.cache
def state() -> Library | Missing:
    """The library, loaded at the first question, or why there is none."""
    try:
        ffi = compiler.ffi(binding.CDEF.replace(" ...;", ""))
    except ImportError as error:
        return Missing(f"cffi cannot be imported: {error}")
    problems = []
    for path in candidates():
        found = _open(ffi, path)
        if isinstance(found, Library):
            return found
        problems.append(found.reason)
        if os.environ.get(SETTING):
            break
    return Missing("; ".join(problems))


def library() -> Library:
    """The library; `state` must have said that there is one."""
    found = state()
    if isinstance(found, Missing):
        raise OneDnnError("using oneDNN", found=found.reason, hint=INSTALL)
    return found


def available() -> bool:
    """Whether there is a usable library."""
    return isinstance(state(), Library)


def halves() -> tuple[str, ...]:
    """The half types that the library computes with; none without one.

    >>> set(halves()) <= {"bfloat16"}
    True
    """
    found = state()
    return found.halves if isinstance(found, Library) else ()


def tiles() -> bool:
    """Whether products of half types are worth it.

    Without AMX, Intel's processors multiply bfloat16 at half the rate of float32.
    """
    found = state()
    return isinstance(found, Library) and found.tiles


def candidates() -> Iterator[str]:
    """Where the library may be, best first."""
    chosen = os.environ.get(SETTING)
    if chosen:
        yield chosen
        return
    yield from map(str, _installed())
    prefixes = dict.fromkeys((os.environ.get("CONDA_PREFIX", sys.prefix), sys.prefix))
    for prefix in prefixes:
        yield from (str(p) for n in NAMES if (p := Path(prefix, "lib", n)).exists())
    yield from NAMES


def _installed() -> Iterator[Path]:
    for name in DISTRIBUTIONS:
        try:
            files = metadata.files(name) or ()
        except metadata.PackageNotFoundError:
            continue
        yield from (Path(str(f.locate())).resolve() for f in files if f.name in NAMES)


def _open(ffi: Any, path: str) -> Library | Missing:
    threads.runtime()  # before the library loads it
    try:
        lib = ffi.dlopen(path)
    except OSError as error:
        return Missing(str(error))
    try:
        raw = lib.dnnl_version()
    except ffi.error:
        return Missing(f"{path} is not oneDNN")
    version = (raw.major, raw.minor, raw.patch)
    if not (version[0] == OLDEST[0] and version >= OLDEST):
        text = ".".join(map(str, version))
        return Missing(f"{path} is oneDNN {text}; 3.{OLDEST[1]} or a later 3.x is needed")
    if not lib.dnnl_engine_get_count(binding.CPU):
        return Missing(f"{path} finds no CPU engine (a SYCL build without its OpenCL runtime?)")
    unknown = _misunderstood(ffi, lib)
    if unknown:
        return Missing(f"{path} is of another interface: {unknown}")
    threads.apply()
    return _started(ffi, lib, path, version, raw.cpu_runtime)


def _misunderstood(ffi: Any, lib: Any) -> str:
    """The first of our numbers that the library gives another meaning; empty if none."""
    for kind, names in binding.NAMES.items():
        ask = getattr(lib, f"dnnl_{kind}2str")
        for number, name in names.items():
            found = ffi.string(ask(number)).decode()
            if found != name:
                return f"{kind} {number} is {found!r}, not {name!r}"
    return ""


def _started(
    ffi: Any, lib: Any, path: str, version: tuple[int, int, int], runtime: int
) -> Library | Missing:
    engine, stream = ffi.new("dnnl_engine_t *"), ffi.new("dnnl_stream_t *")
    status = lib.dnnl_engine_create(engine, binding.CPU, 0)
    status = status or lib.dnnl_stream_create(stream, engine[0], 1)
    if status:
        return Missing(f"{path} does not start: {status_text(status)}")
    mask = lib.dnnl_get_effective_cpu_isa()
    return Library(
        ffi,
        lib,
        engine[0],
        stream[0],
        path,
        version,
        binding.RUNTIMES.get(runtime, f"runtime {runtime}"),
        isa_text(mask),
        ("bfloat16",) if mask & binding.BF16 == binding.BF16 else (),
        mask & binding.AMX == binding.AMX,
        runtime not in binding.SYNCHRONOUS,
        binding.RUNTIMES.get(runtime) == OPENMP and threads.runs(path),
    )


def isa_text(mask: int) -> str:
    """The richest known instruction set within a mask.

    >>> isa_text(0x7)
    'AVX2'
    """
    return next((name for bits, name in binding.ISAS if mask & bits == bits), "no vector unit")


def doctor() -> list[str]:
    """Lines for ``flow doctor``."""
    found = state()
    if isinstance(found, Missing):
        return [f"oneDNN: not used, {found.reason}", f"to have it: {INSTALL}"]
    version = ".".join(map(str, found.version))
    return [
        f"oneDNN: {version} at {found.path}",
        f"instruction sets: {found.isa}; threads: {found.runtime}"
        + (
            f", {process_budget()}"
            if found.runtime == OPENMP
            else f"; of loops in C: {process_budget()}"
        ),
        "bfloat16: " + ("products in AMX" if found.tiles else NO_TILES),
    ]
