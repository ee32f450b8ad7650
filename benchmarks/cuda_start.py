"""What NVRTC takes at the first and at the second start of ResNet-50 and BERT-base, without a GPU.

    python benchmarks/cuda_start.py [resnet50] [bert_base] [--architecture sm_90]

The train jobs of `cuda_checks.py` (bfloat16, batches of 256 and 64) are compiled and bound for a
device that has memory but runs nothing.  The kernels that binding requests are then compiled as on
a GPU (`flow_cuda.driver.modules`), with an empty cache in a new folder, and once more from that
cache.  The columns are the kernels, the modules, seconds of the processor, and elapsed seconds.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "helpers")]

import cuda_rig  # noqa: E402 - found by the line above
from cuda_cases import Collector  # noqa: E402
from cuda_simulator import plugin as simulated  # noqa: E402
from cuda_simulator.hardware import HostMemory, Simulator  # noqa: E402

from flow_cuda.codegen import nvrtc  # noqa: E402
from flow_cuda.codegen.program import Kernel  # noqa: E402
from flow_cuda.driver.cupy_hardware import CupyHardware  # noqa: E402
from flow_cuda.driver.modules import Modules  # noqa: E402

BYTES = 1 << 37
NORESERVE = 0x4000  # Linux; Python 3.13 adds mmap.MAP_NORESERVE
RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE


class Idle(Simulator):
    """A device that binds kernels as a GPU does, and runs nothing; its memory is never touched."""

    threads, max_blocks = CupyHardware.threads, CupyHardware.max_blocks
    specializes = True

    def __init__(self, index: int, **given: Any) -> None:
        super().__init__(index, BYTES, **given)

    def allocate(self, nbytes: int) -> HostMemory:
        """Reserve addresses."""
        raw = np.frombuffer(mmap.mmap(-1, nbytes + 256, flags=RESERVED), np.uint8)
        memory = HostMemory(nbytes, raw, raw.ctypes.data + -raw.ctypes.data % 256)
        self.machine.register(memory, memory.address, nbytes, self.index)
        return memory

    def _add(self, stream: Any, name: str, run: Any, access: Any, peers: bool = False) -> None:
        """Queue nothing."""


def kernels_of(workload: str) -> list[Kernel]:
    """Return the kernels that the first step of a train job launches."""
    found, run = Collector(), cuda_rig.Run(True, time.monotonic() + 3600)
    with (
        mock.patch.object(simulated, "Simulator", Idle),
        mock.patch.object(simulated, "compiler", return_value=found),
        mock.patch.object(cuda_rig, "SMALL_SIZES", cuda_rig.SIZES),
        mock.patch.object(cuda_rig, "compiled_at_once", lambda run, make: make()),
    ):
        _, job, feeds = cuda_rig.bench_job(run, workload)
        job(*feeds)
    return list(found.found.values())


def start(kernels: Sequence[Kernel], architecture: str) -> tuple[int, float, float]:
    """Compile and load kernels; return modules, seconds of the processor, elapsed seconds."""
    loaded: list[bytes] = []

    def load(code: bytes) -> Any:
        loaded.append(code)
        return SimpleNamespace(get_function=lambda name: SimpleNamespace(ptr=1))

    modules = Modules(architecture, load)
    for kernel in kernels:
        modules.function(kernel)
    began, used = time.perf_counter(), time.process_time()
    modules.finish()
    return len(loaded), time.process_time() - used, time.perf_counter() - began


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=["resnet50", "bert_base"])
    parser.add_argument("--architecture", default="sm_90")
    given = parser.parse_args(words)
    print(f"NVRTC {'.'.join(map(str, nvrtc.version()))}, {os.cpu_count()} cores")
    print(f"{'network':12} start  kernels modules processor s elapsed s")
    for workload in given.workloads:
        kernels = kernels_of(workload)
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(nvrtc, "user_folder", lambda name, to=folder: Path(to)),
        ):
            for which in ("first", "second"):
                count, used, elapsed = start(kernels, given.architecture)
                print(
                    f"{workload:12} {which:6} {len(kernels):7} {count:7} {used:11.2f} "
                    f"{elapsed:9.2f}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
