"""The `flow_cuda.device.hardware.Hardware` of an NVIDIA GPU, implemented with CuPy."""

from __future__ import annotations

import ctypes
import functools
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.authoring.specs import Device
from flow_core.base.arrays import Array
from flow_core.base.disk_cache import DiskCache, user_folder
from flow_cuda.codegen.program import Kernel
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.device.hardware import (
    Access,
    CapturedGraph,
    DnnCall,
    Event,
    Operands,
    Product,
    Span,
    Stream,
)
from flow_cuda.driver.copier import GpuCopier
from flow_cuda.driver.cublaslt import TYPES, LtProducts, compute_type
from flow_cuda.driver.cublaslt_library import CublasLt, CublasLtError
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.driver.modules import Function, Modules

_DEFAULT_ALGORITHM = -1


@dataclass(eq=False)
class CupyMemory:
    """One allocation; CuPy frees it when the last reference to it is dropped."""

    nbytes: int
    held: Any
    address: int


class CupyHardware:
    """One CUDA device."""

    threads = 256
    max_blocks = 4096
    specializes = True

    def __init__(self, index: int) -> None:
        import cupy
        from cupy_backends.cuda.api import driver
        from cupy_backends.cuda.libs import cublas

        self.index = index
        self._cupy, self._driver, self._cublas = cupy, driver, cublas
        self._device = cupy.cuda.Device(index)
        self.architecture = f"sm_{self._device.compute_capability}"
        self.numbers: dict[int, Any] = {}
        self.uploads: Any = None
        self._modules = Modules(self.architecture, self._loaded)
        self.compute = self.stream("compute")
        self.allocations = 0
        with self._device:
            self._blas = self._device.cublas_handle
            self._lt = load_cublaslt(cupy.cuda.runtime.runtimeGetVersion() // 1000)

    def allocate(self, nbytes: int) -> CupyMemory:
        """Allocate with ``cudaMalloc``, outside of CuPy's memory pool."""
        self.allocations += 1
        with self._device:
            memory = self._cupy.cuda.Memory(max(nbytes, 256))
        return CupyMemory(nbytes, memory, memory.ptr)

    def pinned(self, nbytes: int) -> Array:
        self.allocations += 1
        with self._device:
            memory = self._cupy.cuda.alloc_pinned_memory(nbytes)
        return np.frombuffer(memory, np.uint8, nbytes)

    def free_bytes(self) -> int:
        free, _ = self._device.mem_info
        return int(free)

    def function(self, kernel: Kernel) -> Function:
        """Return a kernel, which is compiled together with others before the first launch."""
        return self._modules.function(kernel)

    def load(self) -> None:
        """Load all requested kernels; compile those that are not in the cache on all cores."""
        self._modules.finish()

    def _loaded(self, code: bytes) -> Any:
        with self._device:
            module = self._cupy.cuda.function.Module()
            module.load(code)
        return module

    def stream(self, name: str) -> Stream:
        """Create a stream that does not synchronize with the default stream."""
        with self._device:
            return self._cupy.cuda.Stream(non_blocking=True)

    def launch(
        self,
        stream: Stream,
        function: Any,
        blocks: int,
        threads: int,
        arguments: Any,
        access: Access,
    ) -> None:
        if not function.pointer:
            self.load()
        pointers = ctypes.addressof(arguments.pointers)
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        with self._device:
            self._driver.launchKernel(function.pointer, *grid, *block, 0, stream.ptr, pointers, 0)

    def copy(self, stream: Stream, target: int, source: int, nbytes: int) -> None:
        """Queue a copy; CUDA derives the direction from the addresses."""
        kind = self._cupy.cuda.runtime.memcpyDefault
        with self._device:
            self._cupy.cuda.runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)

    def zero(self, stream: Stream, target: int, nbytes: int) -> None:
        with self._device:
            self._cupy.cuda.runtime.memsetAsync(target, 0, nbytes, stream.ptr)

    def supports(self, product: Product, operands: Operands) -> bool:
        if self._lt is None:
            return not product.epilogue
        with self._device:
            return self._lt.plan(product, operands) is not None

    def product(self, stream: Stream, product: Product, operands: Operands) -> None:
        """Queue a matrix product; cuBLAS computes products for which cuBLASLt has no algorithm."""
        with self._device:
            if self._lt is not None and self._lt.plan(product, operands) is not None:
                self._lt.queue(product, operands, stream.ptr)
            else:
                self._cublas_product(stream, product, operands)

    def _cublas_product(self, stream: Stream, p: Product, o: Operands) -> None:
        """Compute the transposed product with cuBLAS, whose matrices are column-major."""
        alpha, beta = np.array(p.alpha, p.accumulated), np.array(0, p.accumulated)
        kind_a, kind_b, kind_c = (TYPES[dtype] for dtype in p.dtypes)
        lead_a, lead_b, lead_c = p.leads
        self._cublas.setStream(self._blas, stream.ptr)
        self._cublas.gemmStridedBatchedEx(
            self._blas, int(p.transpose_b), int(p.transpose_a), p.n, p.m, p.k,
            alpha.ctypes.data,
            o.b, kind_b, lead_b or (p.k if p.transpose_b else p.n), p.strides[1],
            o.a, kind_a, lead_a or (p.m if p.transpose_a else p.k), p.strides[0],
            beta.ctypes.data, o.c, kind_c, lead_c or p.n, p.strides[2], p.batch,
            compute_type(p), _DEFAULT_ALGORITHM,
        )  # fmt: skip

    @property
    def dnn(self) -> DnnPlans | None:
        """The planner of cuDNN graphs; the library is loaded on first access."""
        return dnn_plans(self.index)

    def dnn_call(self, stream: Stream, call: DnnCall, access: Access) -> None:
        plans = self.dnn
        if plans is None:
            raise RuntimeError("cuDNN is not available, but a cuDNN graph was queued")
        with self._device:
            plans.queue(call.problem, call.plan, call.addresses, call.workspace, stream.ptr)

    def record(self, stream: Stream) -> Event:
        with self._device:
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(stream)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def synchronize(self, event: Event) -> None:
        event.synchronize()

    def host_writes(self, spans: Sequence[Span]) -> None:
        """Do nothing; only simulators check accesses of the host."""

    def host_reads(self, spans: Sequence[Span]) -> None:
        """Do nothing; only simulators check accesses of the host."""

    def begin_capture(self, stream: Stream) -> None:
        """Begin graph capture on a stream; other threads may still allocate and free memory."""
        with self._device:
            stream.begin_capture(self._cupy.cuda.runtime.streamCaptureModeRelaxed)

    def end_capture(self, stream: Stream) -> CapturedGraph:
        with self._device:
            return stream.end_capture()

    def replay(self, stream: Stream, graph: CapturedGraph) -> None:
        with self._device:
            graph.launch(stream)

    @property
    def copier(self) -> GpuCopier:
        return GpuCopier(self)

    def uuid(self) -> str:
        """Return the UUID, as printed by ``nvidia-smi -L``."""
        raw = bytes(self._cupy.cuda.runtime.getDeviceProperties(self.index)["uuid"])
        return f"GPU-{uuid.UUID(bytes=raw[:16])}"

    def handle(self, stream: Stream) -> int:
        return int(stream.ptr)

    def within(self, call: Any) -> Any:
        with self._device:
            return call()


def load_cublaslt(major: int) -> LtProducts | None:
    """Return the planner of matrix products; warn and return None if cuBLASLt does not start."""
    try:
        return LtProducts(CublasLt(major))
    except (OSError, AttributeError, CublasLtError) as error:
        text = f"cuBLASLt failed to initialize; cuBLAS replaces it, without epilogues: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None


def CudaDriver(device: Device) -> GpuDriver:  # run records show this name as a class name
    """Return the driver of a CUDA device, implemented with CuPy."""
    return GpuDriver(CupyHardware(device.index))


@functools.cache
def dnn_plans(index: int) -> DnnPlans | None:
    """Return the cuDNN planner of a device; warn and return None if cuDNN does not initialize."""
    import cupy

    device = cupy.cuda.Device(index)

    def within(call: Callable[[], Any]) -> Any:
        with device:
            return call()

    def start() -> DnnPlans:
        import cudnn

        units = device.attributes["MultiProcessorCount"]
        architecture = f"sm_{device.compute_capability} x {units}"
        folder = user_folder("flow-cuda") / "cudnn"
        caches = DiskCache(folder, ".json"), DiskCache(folder, ".plan")
        return DnnPlans(cudnn, architecture, CupyBench(device), caches[0], within, caches[1])

    try:
        found: DnnPlans = within(start)
    except Exception as error:  # noqa: BLE001 - the frontend and CUDA raise errors of many types
        if not (isinstance(error, ModuleNotFoundError) and error.name == "cudnn"):
            text = f"cuDNN failed to initialize; the kernels of flow-cuda replace it: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None
    return found


class CupyBench:
    """The `flow_cuda.cudnn.plans.Bench` of a device."""

    times = 5

    def __init__(self, device: Any) -> None:
        import cupy

        self._cupy, self._device = cupy, device
        with device:
            self._queue = cupy.cuda.Stream(non_blocking=True)
        self.stream = int(self._queue.ptr)

    def seconds(self, run: Callable[[Sequence[int]], None], nbytes: Sequence[int]) -> float:
        """Return the minimum time of several runs on scratch memory, after one warm-up run."""
        with self._device:
            kept = [self._cupy.cuda.Memory(max(n, 256)) for n in nbytes]
            for memory in kept:
                self._cupy.cuda.runtime.memsetAsync(memory.ptr, 0, memory.size, self.stream)
            addresses = [memory.ptr for memory in kept]
            run(addresses)
            return min(self._time_run(run, addresses) for _ in range(self.times))

    def _time_run(self, run: Callable[[Sequence[int]], None], addresses: Sequence[int]) -> float:
        start, stop = (self._cupy.cuda.Event() for _ in range(2))
        start.record(self._queue)
        run(addresses)
        stop.record(self._queue)
        stop.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, stop)) / 1000
