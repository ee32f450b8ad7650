"""`flow_cuda.device.hardware.Hardware` of an NVIDIA GPU, over CuPy."""

from __future__ import annotations

import ctypes
import functools
import uuid
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.authoring.specs import Device
from flow_core.base.disk_cache import DiskCache, user_folder
from flow_cuda.codegen import nvrtc
from flow_cuda.codegen.program import Kernel
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.device.hardware import Access, DnnCall, Operands, Product, Span
from flow_cuda.driver.cublaslt import TYPES, LtProducts, compute_type
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.driver.relu_mask_check import masks_are_ours
from flow_cuda.driver.workbench import GpuWorkbench

_DEFAULT_ALGORITHM = -1
_ALREADY_ENABLED = 704  # cudaErrorPeerAccessAlreadyEnabled
PART = 24
"""Kernels that are compiled together."""


@dataclass(eq=False)
class CupyMemory:
    """One allocation; CuPy frees it when nobody holds it."""

    nbytes: int
    held: Any
    address: int


@dataclass(frozen=True, slots=True)
class CupyFunction:
    """A kernel in a loaded module, which must stay alive."""

    kernel: Kernel
    module: Any
    pointer: int


class CupyHardware:
    """One CUDA device.

    Args:
        index: number of the device.
    """

    threads = 256
    most_blocks = 4096

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
        self._lanes: dict[str, Any] = {}
        self._functions: dict[str, CupyFunction] = {}
        self.compute = self.stream("compute")
        with self._device:
            self._blas = self._device.cublas_handle
            self._lt = _lt()
        self._our_masks: bool | None = None

    def allocate(self, nbytes: int) -> CupyMemory:
        """One plain allocation, outside of CuPy's pool."""
        with self._device:
            memory = self._cupy.cuda.Memory(max(nbytes, 256))
        return CupyMemory(nbytes, memory, memory.ptr)

    def pinned(self, nbytes: int) -> Any:
        """A uint8 array of page-locked host memory."""
        with self._device:
            memory = self._cupy.cuda.alloc_pinned_memory(nbytes)
        return np.frombuffer(memory, np.uint8, nbytes)

    def free_bytes(self) -> int:
        """Bytes that can still be allocated."""
        free, _ = self._device.mem_info
        return int(free)

    def function(self, kernel: Kernel) -> CupyFunction:
        """A kernel, compiled or from the cache, and loaded once."""
        if kernel.name not in self._functions:
            self._load([kernel], nvrtc.compiled([kernel], self.architecture))
        return self._functions[kernel.name]

    def preload(self, kernels: Sequence[Kernel]) -> None:
        """Compiles many kernels at once, on all cores, and loads them."""
        wanted = [k for k in kernels if k.name not in self._functions]
        parts = [wanted[i : i + PART] for i in range(0, len(wanted), PART)]
        with ThreadPoolExecutor() as pool:
            codes = list(pool.map(lambda part: nvrtc.compiled(part, self.architecture), parts))
        for part, code in zip(parts, codes, strict=True):
            self._load(part, code)

    def _load(self, kernels: Sequence[Kernel], code: bytes) -> None:
        with self._device:
            module = self._cupy.cuda.function.Module()
            module.load(code)
            for kernel in kernels:
                pointer = module.get_function(kernel.name).ptr
                self._functions[kernel.name] = CupyFunction(kernel, module, pointer)

    def stream(self, name: str) -> Any:
        """A new stream that does not wait for the default one."""
        with self._device:
            return self._cupy.cuda.Stream(non_blocking=True)

    def lane(self, name: str) -> Any:
        """The stream of a name."""
        if name not in self._lanes:
            self._lanes[name] = self.stream(name) if name else self.compute
        return self._lanes[name]

    def reach(self, other: int) -> None:
        """Peer access, where the machine has it; without, copies go through the host's memory."""
        runtime = self._cupy.cuda.runtime
        if other == self.index or not runtime.deviceCanAccessPeer(self.index, other):
            return
        with self._device:
            try:
                runtime.deviceEnablePeerAccess(other)
            except runtime.CUDARuntimeError as error:
                if error.status != _ALREADY_ENABLED:
                    raise

    def launch(
        self,
        stream: Any,
        function: Any,
        blocks: int,
        threads: int,
        arguments: Any,
        access: Access,
    ) -> None:
        """Queues a kernel."""
        pointers = ctypes.addressof(arguments.pointers)
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        with self._device:
            self._driver.launchKernel(function.pointer, *grid, *block, 0, stream.ptr, pointers, 0)

    def copy(self, stream: Any, target: int, source: int, nbytes: int) -> None:
        """Queues a copy; the addresses say in which direction."""
        kind = self._cupy.cuda.runtime.memcpyDefault
        with self._device:
            self._cupy.cuda.runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)

    def zero(self, stream: Any, target: int, nbytes: int) -> None:
        """Queues the clearing of memory."""
        with self._device:
            self._cupy.cuda.runtime.memsetAsync(target, 0, nbytes, stream.ptr)

    def supports(self, product: Product, room: int) -> bool:
        """Whether there is an algorithm; masks must be made of the bits that our kernels read."""
        if self._lt is None:
            return not product.epilogue
        with self._device:
            found = self._lt.plan(product, room) is not None
        masked = product.epilogue.startswith("relu") and product.epilogue != "relu_bias"
        return found and (not masked or self._has_our_masks())

    def _has_our_masks(self) -> bool:
        """Asked of the device once, with a small product."""
        if self._our_masks is None:
            self._our_masks = masks_are_ours(self)
        return self._our_masks

    def product(self, stream: Any, product: Product, operands: Operands) -> None:
        """Queues matrix products, by cuBLAS those that cuBLASLt has no algorithm for."""
        with self._device:
            if self._lt is not None and self._lt.plan(product, operands.room) is not None:
                self._lt.queue(product, operands, stream.ptr)
            else:
                self._plain_product(stream, product, operands)

    def _plain_product(self, stream: Any, p: Product, o: Operands) -> None:
        """cuBLAS sees the transposed matrices, whose columns are our rows."""
        wide = np.float64 if p.dtype == "float64" else np.float32
        alpha, beta = np.array(p.alpha, wide), np.array(0, wide)
        kind, (lead_a, lead_b, lead_c) = TYPES[p.dtype], p.leads
        self._cublas.setStream(self._blas, stream.ptr)
        self._cublas.gemmStridedBatchedEx(
            self._blas, int(p.transpose_b), int(p.transpose_a), p.n, p.m, p.k,
            alpha.ctypes.data,
            o.b, kind, lead_b or (p.k if p.transpose_b else p.n), p.strides[1],
            o.a, kind, lead_a or (p.m if p.transpose_a else p.k), p.strides[0],
            beta.ctypes.data, o.c, kind, lead_c or p.n, p.strides[2], p.batch,
            compute_type(p), _DEFAULT_ALGORITHM,
        )  # fmt: skip

    @property
    def dnn(self) -> DnnPlans | None:
        """Plans of cuDNN's graphs; the library is loaded when somebody asks for them."""
        return dnn_plans(self.index)

    def dnn_call(self, stream: Any, call: DnnCall, access: Access) -> None:
        """Queues a graph of cuDNN's."""
        plans = self.dnn
        if plans is None:
            raise RuntimeError("a graph of cuDNN's without cuDNN")
        with self._device:
            plans.queue(call.problem, call.plan, call.addresses, call.workspace, stream.ptr)

    def record(self, stream: Any) -> Any:
        """An event behind all that is queued."""
        with self._device:
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        """Queues the wait for an event."""
        stream.wait_event(event)

    def synchronize(self, event: Any) -> None:
        """Blocks until an event has happened."""
        event.synchronize()

    def host_writes(self, spans: Sequence[Span]) -> None:
        """Nothing to do: simulators check it."""

    def host_reads(self, spans: Sequence[Span]) -> None:
        """Nothing to do: simulators check it."""

    def begin_capture(self, stream: Any) -> None:
        """From now on work on a stream is recorded."""
        with self._device:
            stream.begin_capture(self._cupy.cuda.runtime.streamCaptureModeThreadLocal)

    def end_capture(self, stream: Any) -> Any:
        """The recorded graph, ready to replay."""
        with self._device:
            return stream.end_capture()

    def replay(self, stream: Any, graph: Any) -> None:
        """Queues a graph."""
        with self._device:
            graph.launch(stream)

    @property
    def workbench(self) -> GpuWorkbench:
        """What comms may do on it."""
        return GpuWorkbench(self)

    def uuid(self) -> str:
        """The UUID, as ``nvidia-smi -L`` prints it."""
        raw = bytes(self._cupy.cuda.runtime.getDeviceProperties(self.index)["uuid"])
        return f"GPU-{uuid.UUID(bytes=raw[:16])}"

    def handle(self, stream: Any) -> int:
        """CUDA's own handle."""
        return int(stream.ptr)

    def within(self, call: Any) -> Any:
        """Calls a function with the device as the current one of the calling thread."""
        with self._device:
            return call()


def _lt() -> LtProducts | None:
    """cuBLASLt, where its bindings are installed."""
    try:
        from nvmath.bindings import cublasLt
    except ImportError:
        return None
    return LtProducts(cublasLt)


def CudaDriver(device: Device) -> GpuDriver:  # named in records like a class
    """Return the driver of a CUDA device, over CuPy."""
    return GpuDriver(CupyHardware(device.index))


@functools.cache
def dnn_plans(index: int) -> DnnPlans | None:
    """What plans cuDNN's graphs on a device; None, and a warning, where it does not start."""
    import cupy

    device = cupy.cuda.Device(index)

    def within(call: Callable[[], Any]) -> Any:
        with device:
            return call()

    def started() -> DnnPlans:
        import cudnn

        units = device.attributes["MultiProcessorCount"]
        architecture = f"sm_{device.compute_capability} x {units}"
        folder = user_folder("flow-cuda") / "cudnn"
        caches = DiskCache(folder, ".json"), DiskCache(folder, ".plan")
        return DnnPlans(cudnn, architecture, CupyBench(device), caches[0], within, caches[1])

    try:
        found: DnnPlans = within(started)
    except (ImportError, OSError, RuntimeError) as error:
        if not isinstance(error, ModuleNotFoundError):
            text = f"cuDNN does not start, and kernels of flow-cuda take its place: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None
    return found


class CupyBench:
    """`flow_cuda.cudnn.plans.Bench` on a device.

    Args:
        device: CuPy's.
    """

    times = 5

    def __init__(self, device: Any) -> None:
        import cupy

        self._cupy, self._device = cupy, device
        with device:
            self._queue = cupy.cuda.Stream(non_blocking=True)
        self.stream = int(self._queue.ptr)

    def seconds(self, run: Callable[[Sequence[int]], None], nbytes: Sequence[int]) -> float:
        """The fastest of some runs on scratch memory, after one that does not count."""
        with self._device:
            kept = [self._cupy.cuda.Memory(max(n, 256)) for n in nbytes]
            for memory in kept:
                self._cupy.cuda.runtime.memsetAsync(memory.ptr, 0, memory.size, self.stream)
            addresses = [memory.ptr for memory in kept]
            run(addresses)
            return min(self._timed(run, addresses) for _ in range(self.times))

    def _timed(self, run: Callable[[Sequence[int]], None], addresses: Sequence[int]) -> float:
        start, stop = (self._cupy.cuda.Event() for _ in range(2))
        start.record(self._queue)
        run(addresses)
        stop.record(self._queue)
        stop.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, stop)) / 1000
