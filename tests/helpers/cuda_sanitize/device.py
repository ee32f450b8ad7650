"""A simulated device whose kernels run in programs that a sanitizer has instrumented."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import processes
from cuda_cases import Collector
from cuda_simulator.hardware import Simulator
from cuda_simulator.host_compiler import HERE as SIMULATOR
from cuda_simulator.host_compiler import compiler, host_call

from flow_core.base.errors import FlowError
from flow_cuda.codegen.program import Kernel, translation_unit
from flow_cuda.device.hardware import Access, Span

HERE = Path(__file__).parent
TOOLS = {
    "thread": ("-fsanitize=thread",),
    "address": ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"),
}
"""Compiler options of each tool."""
FLAGS = ("-O1", "-std=gnu++17", "-ffp-contract=off", "-w", "-pthread")
ENVIRONMENT = {
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=66",
}
BLOCKS, THREADS = 4, 256


class SanitizerError(FlowError):
    """A sanitizer found an error in a kernel."""


@functools.cache
def missing() -> str:
    """Return why no program can be instrumented here, or an empty string."""
    path = compiler()
    if path is None:
        return "no C++ compiler"
    with tempfile.TemporaryDirectory() as folder:
        for tool, options in TOOLS.items():
            text, made = Path(folder, "a.cpp"), Path(folder, tool)
            text.write_text("int main() { return 0; }")
            command = [path, *options, str(text), "-o", str(made)]
            if processes.run(command).returncode:
                return f"the C++ compiler has no {tool} sanitizer"
            if processes.run([*_prefix(), str(made)]).returncode:
                return f"programs with the {tool} sanitizer do not run here"
    return ""


def _prefix() -> tuple[str, ...]:
    """Return the words that turn address space randomization off, which ThreadSanitizer rejects."""
    tool = shutil.which("setarch")
    return (tool, os.uname().machine, "-R") if tool else ()


class Program:
    """Kernels in an executable that a sanitizer has instrumented.

    Args:
        kernels: the kernels.
        tool: a key of `TOOLS`.
        folder: the folder of the executable.
        change: changes the source of the kernels.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        tool: str,
        folder: Path,
        change: Callable[[str], str] = str,
    ) -> None:
        self.tool, self.folder = tool, folder
        calls = "".join(host_call(kernel) for kernel in kernels)
        rows = "".join(f'{{"{k.name}", run_{k.name}}}, ' for k in kernels)
        entry = "struct Entry { const char *name; void (*run)(void **); }"
        table = f"{entry} entries[] = {{{rows}{{0, 0}}}};"
        parts = (
            (HERE / "threads.h").read_text(), (SIMULATOR / "models.h").read_text(),
            change(translation_unit(kernels)), calls, table, (HERE / "main.h").read_text(),
        )  # fmt: skip
        text = folder / "kernels.cpp"
        text.write_text("\n".join(parts))
        self._file = folder / "kernels"
        command = [str(compiler()), *FLAGS, *TOOLS[tool], str(text), "-o", str(self._file)]
        done = processes.run(command)
        if done.returncode:
            raise SanitizerError("compiling kernels", found=done.stderr[:2000])

    def run(self, kernel: Kernel, grid: tuple[int, int], arguments: Any, access: Access) -> None:
        """Run a kernel on copies of its arrays, and copy the results back.

        Raises:
            SanitizerError: a sanitizer reported an error.
        """
        spans = merged((*access.reads, *access.writes))
        words = [struct.pack("l", len(spans))]
        for low, high in spans:
            words += [struct.pack("l", high - low), ctypes.string_at(low, high - low)]
        words.append(struct.pack("l", len(kernel.parameters)))
        for (kind, _), packed in zip(kernel.parameters, arguments.packed, strict=True):
            words.append(_parameter(kind, packed, spans))
        file = self.folder / "memory"
        file.write_bytes(b"".join(words))
        command = [*_prefix(), str(self._file), kernel.name, *map(str, grid), str(file)]
        try:
            done = processes.run(command, errors="replace", env={**os.environ, **ENVIRONMENT})
        except processes.TimeoutExpired:
            raise SanitizerError(f"running {kernel.name}", found="no end") from None
        if done.returncode:
            report = "\n".join(done.stderr.strip().splitlines()[:12])
            raise SanitizerError(f"running {kernel.name} ({self.tool})", found=report)
        made = memoryview(file.read_bytes())[8:]
        for low, high in spans:
            ctypes.memmove(low, bytes(made[8 : 8 + high - low]), high - low)
            made = made[8 + high - low :]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return disjoint spans: overlapping ones are one allocation.

    >>> merged([(8, 16), (0, 4), (10, 20)])
    [(0, 4), (8, 20)]
    """
    found: list[Span] = []
    for low, high in sorted(set(spans)):
        if found and low < found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def _parameter(kind: str, packed: Any, spans: Sequence[Span]) -> bytes:
    """Return a parameter as `main.h` reads it."""
    if kind.endswith("*"):
        address = packed.value or 0
        for i, (low, high) in enumerate(spans):
            if low <= address < high:
                return struct.pack("ll", i, address - low)
        return struct.pack("ll", -1, 8) + bytes(8)
    raw = bytes(packed)
    return struct.pack("ll", -1, len(raw)) + raw


class SanitizedDevice(Simulator):
    """A simulated device that runs kernels in an instrumented program.

    Attributes:
        program: the program, which is built when all kernels are known.
    """

    threads = THREADS
    max_blocks = BLOCKS
    program: Program

    def __init__(self) -> None:
        self.collector = Collector()
        collector: Any = self.collector
        super().__init__(compiler=collector)

    def launch(
        self,
        stream: Any,
        function: Any,
        blocks: int,
        threads: int,
        arguments: Any,
        access: Access,
    ) -> None:
        """Queue a kernel launch, on at least `BLOCKS` blocks; idle ones must do no harm."""
        grid = max(blocks, BLOCKS), threads

        def run() -> None:
            self.program.run(function.kernel, grid, arguments, access)

        self._add(stream, function.kernel.name, run, access)
