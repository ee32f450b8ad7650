"""Find and load oneDNN, or report why it is unavailable.

The search order is: the file that the environment variable ``FLOW_ONEDNN_LIBRARY`` names, an
installed distribution, ``libdnnl.so.3`` in this Python environment (from conda or a wheel), and the
system library.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from flow_core.base.errors import FlowError, install_command
from flow_core.base.thread_pools import process_budget
from flow_onednn import binding, threads
from flow_onednn.binding import CData
from flow_onednn.native import compiler

SETTING = "FLOW_ONEDNN_LIBRARY"
INSTALL = (
    f"{install_command('flow-onednn[wheel]')} on x86 Linux, or conda's onednn, or set {SETTING}"
)
DISTRIBUTIONS = ("onednn-cpu-gomp", "onednn-cpu-iomp", "onednn-cpu-tbb", "onednn")
NAMES = {"darwin": ("libdnnl.3.dylib",), "win32": ("dnnl.dll",)}.get(
    sys.platform, ("libdnnl.so.3",)
)
OLDEST = (3, 2)
OPENMP = "OpenMP"
AMD = "AuthenticAMD"


MIXED = "function_config.enable_auto_mixed_precision(True)"
NO_HALF = "products in float32 on converted arrays, which is faster on this processor"


class OneDnnError(FlowError):
    """A oneDNN call failed."""


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded oneDNN with the engine and stream that this process uses."""

    ffi: CData
    lib: CData
    engine: CData
    stream: CData
    path: str  # the library file, or the name that the system loader resolved
    version: tuple[int, int, int]  # (major, minor, patch)
    runtime: str  # of the threads
    isa: str  # name of the highest instruction set that oneDNN is allowed to use
    half_types: tuple[str, ...]  # half-precision types with vector instructions
    half_unit: str  # the instructions that make half-precision products faster than float32, or ""
    has_int8: bool  # whether there are dot products of int8
    asynchronous: bool  # whether execution returns before the work is complete
    # Whether oneDNN uses the OpenMP runtime of the C loops; if so, a primitive that a thread of a
    # loop executes runs on that thread only.
    shares_pool: bool

    def check(self, status: int, what: str) -> None:
        """Raise `OneDnnError` if a status code is not that of success."""
        if status:
            raise OneDnnError(
                f"{what} with oneDNN {'.'.join(map(str, self.version))}",
                found=f"status {status}: {status_text(status)}",
                hint="set FLOW_DISABLE_PLUGINS=flow-onednn to use the numpy kernels",
            )


def status_text(status: int) -> str:
    """Return the text of a status code.

    >>> status_text(2)
    'invalid arguments'
    """
    return binding.STATUS[status] if 0 <= status < len(binding.STATUS) else "unknown"


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why no library is usable."""

    reason: str


@functools.cache
def state() -> Library | Missing:
    """Load the library on the first call; return it, or the reason why it is missing."""
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


def has_int8() -> bool:
    """Return whether the processor has dot products of int8, which float32 does not outrun."""
    found = state()
    return isinstance(found, Library) and found.has_int8


def library() -> Library:
    """Return the library; raise `OneDnnError` if it is missing."""
    found = state()
    if isinstance(found, Missing):
        raise OneDnnError("using oneDNN", found=found.reason, hint=INSTALL)
    return found


def available() -> bool:
    """Return whether a usable library is present."""
    return isinstance(state(), Library)


def half_types() -> tuple[str, ...]:
    """Return the half-precision types with native instructions; an empty tuple without a library.

    >>> set(half_types()) <= {"bfloat16"}
    True
    """
    found = state()
    return found.half_types if isinstance(found, Library) else ()


def has_fast_half() -> bool:
    """Return whether half-precision products are faster than float32 products."""
    found = state()
    return isinstance(found, Library) and bool(found.half_unit)


def half_unit(mask: int, vendor: str) -> str:
    """Return the instructions that make half-precision products faster than float32, or "".

    AMX multiplies bfloat16 many times as fast.  The dot products of AVX-512 take half the time of
    float32 on AMD's Zen 4 (512 x 512 x 512: 1.2 and 2.4 ms on a thread), and twice that time on
    Intel's cores.

    >>> half_unit(binding.AMX, "GenuineIntel"), half_unit(binding.BF16, "AuthenticAMD")
    ('AMX', 'AVX-512')
    >>> half_unit(binding.BF16, "GenuineIntel"), half_unit(0x27, "AuthenticAMD")
    ('', '')
    """
    if mask & binding.AMX == binding.AMX:
        return "AMX"
    return "AVX-512" if mask & binding.BF16 == binding.BF16 and vendor == AMD else ""


@functools.cache
def vendor() -> str:
    """Return the vendor of an x86 processor on Linux; "" elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(r"^vendor_id\s*: (\w+)$", text, re.MULTILINE)
    return found[1] if found else ""


def candidates() -> Iterator[str]:
    """Yield the paths or names under which to look for the library, in search order."""
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


def _open(ffi: CData, path: str) -> Library | Missing:
    threads.runtime()  # must be called before the library is loaded, which uses the same runtime
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
        return Missing(f"{path} has no CPU engine (a SYCL build without its OpenCL runtime?)")
    unknown = _enum_mismatch(ffi, lib)
    if unknown:
        return Missing(f"{path} has another ABI: {unknown}")
    threads.resize_pool()
    return _start(ffi, lib, path, version, raw.cpu_runtime)


def _enum_mismatch(ffi: CData, lib: CData) -> str:
    """Describe the first enumerator whose name differs in the library; return "" if none does."""
    for kind, names in binding.NAMES.items():
        to_string = getattr(lib, f"dnnl_{kind}2str")
        for number, name in names.items():
            found = ffi.string(to_string(number)).decode()
            if found != name:
                return f"{kind} {number} is {found!r}, not {name!r}"
    return ""


def _start(
    ffi: CData, lib: CData, path: str, version: tuple[int, int, int], runtime: int
) -> Library | Missing:
    engine, stream = ffi.new("dnnl_engine_t *"), ffi.new("dnnl_stream_t *")
    status = lib.dnnl_engine_create(engine, binding.CPU, 0)
    status = status or lib.dnnl_stream_create(stream, engine[0], 1)
    # Once its cache has dropped entries, oneDNN 3.2 returned products without their post-ops:
    # the kernel kit, in one process with 8 or 256 entries.  `primitives` shares equal ones itself.
    status = status or lib.dnnl_set_primitive_cache_capacity(0)
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
        half_unit(mask, vendor()),
        any(mask & bits == bits for bits in binding.VNNI),
        runtime not in binding.SYNCHRONOUS,
        binding.RUNTIMES.get(runtime) == OPENMP and threads.uses_pool(path),
    )


def isa_text(mask: int) -> str:
    """Return the name of the highest instruction set that a mask contains.

    >>> isa_text(0x7)
    'AVX2'
    """
    return next((name for bits, name in binding.ISAS if mask & bits == bits), "no vector unit")


def describe() -> str:
    """Return the version, threading runtime, instruction set and settings of the library."""
    found = state()
    if isinstance(found, Missing):
        return "not used"
    names = sorted(name for name in os.environ if name.startswith(("ONEDNN_", "DNNL_")))
    settings = [f"{name}={os.environ[name]}" for name in names]
    return " ".join((".".join(map(str, found.version)), found.runtime, found.isa, *settings))


def doctor() -> list[str]:
    """Return the lines about the library for ``flow doctor``."""
    found = state()
    if isinstance(found, Missing):
        return [f"oneDNN: not used, {found.reason}", f"to install it: {INSTALL}"]
    version = ".".join(map(str, found.version))
    return [
        f"oneDNN: {version} at {found.path}",
        f"instruction sets: {found.isa}; threads: {found.runtime}"
        + (
            f", {process_budget()}" if found.runtime == OPENMP else f"; C loops: {process_budget()}"
        ),
        "bfloat16: " + (f"{found.half_unit}, used with {MIXED}" if found.half_unit else NO_HALF),
    ]
