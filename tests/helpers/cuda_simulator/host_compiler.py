"""Compile kernels as host C++, to run and check kernels on machines without a GPU.

The environment variable ``FLOW_CUDA_CXX`` names the compiler (default: ``c++``). Libraries are
cached by content in ``$XDG_CACHE_HOME/flow-cuda/host``; see `flow_core.base.disk_cache`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import processes

from flow_core.base.disk_cache import DiskCache, user_folder
from flow_core.base.errors import FlowError
from flow_cuda.codegen.program import Kernel, translation_unit

SETTING = "FLOW_CUDA_CXX"
HERE = Path(__file__).parent
# -O0 compiles three times as fast as -O1; on the host, kernels process only small arrays
FLAGS = ("-O0", "-shared", "-fPIC", "-std=gnu++17", "-fwrapv", "-ffp-contract=off", "-w")


class HostCompileError(FlowError):
    """The host compiler is missing or rejected generated C++."""


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A kernel as a C function of argument pointers, the number of blocks and of threads."""

    kernel: Kernel
    call: Any


@functools.cache
def compiler() -> str | None:
    """Return the path of the compiler; None if no compiler is found."""
    return shutil.which(os.environ.get(SETTING, "c++"))


@functools.cache
def _version(path: str) -> str:
    return processes.run([path, "--version"], check=True).stdout.splitlines()[0]


def host_call(kernel: Kernel) -> str:
    """Return a C++ function that calls the kernel once, given pointers to arguments."""
    casts = (f"*({kind} *)a[{i}]" for i, (kind, _) in enumerate(kernel.parameters))
    return f"static void run_{kernel.name}(void **a) {{ {kernel.name}({', '.join(casts)}); }}\n"


def host_unit(kernels: Sequence[Kernel]) -> str:
    """Return C++ with a C function per kernel that runs it on the host."""
    entries = (
        f"{host_call(k)}"
        f'extern "C" int host_{k.name}(void **a, unsigned blocks, unsigned threads) '
        f"{{ return run_grid(run_{k.name}, a, blocks, threads, {int(k.barriers)}); }}\n"
        for k in kernels
    )
    headers = ((HERE / name).read_text() for name in ("host.h", "models.h"))
    return "\n".join((*headers, translation_unit(kernels), *entries))


class HostCompiler:
    """A compiler of kernels, with a cache; it compiles one or many kernels at a time."""

    def __init__(self, cache: DiskCache | None = None) -> None:
        self._cache = cache or DiskCache(user_folder("flow-cuda") / "host", ".so")
        self._functions: dict[str, HostFunction] = {}

    def function(self, kernel: Kernel) -> HostFunction:
        """Return a kernel as a host function, compiled on first use.

        Raises:
            HostCompileError: no compiler is installed, or compilation failed.
        """
        if kernel.name not in self._functions:
            self.preload([kernel])
        return self._functions[kernel.name]

    def preload(self, kernels: Iterable[Kernel]) -> None:
        """Compile many kernels into one library, which is faster than one library per kernel."""
        wanted = [k for k in kernels if k.name not in self._functions]
        wanted = list({k.name: k for k in wanted}.values())
        if not wanted:
            return
        path = compiler()
        if path is None:
            raise HostCompileError(
                "compiling a kernel for the host",
                found=f"no C++ compiler {os.environ.get(SETTING, 'c++')!r}",
                hint=f"install one, or set the environment variable {SETTING} to its name",
            )
        text = host_unit(wanted)
        file = self._cache.path((text, _version(path), *FLAGS), lambda: _compile(path, text))
        library = ctypes.CDLL(str(file))
        for kernel in wanted:
            call = getattr(library, f"host_{kernel.name}")
            call.argtypes = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            self._functions[kernel.name] = HostFunction(kernel, call)


def _compile(compiler: str, text: str) -> bytes:
    """Compile C++ source to a shared library and return its bytes."""
    with tempfile.TemporaryDirectory() as scratch:
        source, made = Path(scratch, "kernels.cpp"), Path(scratch, "kernels.so")
        source.write_text(text)
        command = [compiler, *FLAGS, str(source), "-o", str(made)]
        done = processes.run(command)
        if done.returncode:
            raise HostCompileError(f"running {' '.join(command)}", found=done.stderr.strip()[:3000])
        return made.read_bytes()
