"""A simulated device, which runs kernels as host C++ and checks the synchronization of streams.

Queued work runs as late as possible: only when the host waits for it. Work that lacks a wait
therefore reads stale data, as it might on a GPU. In addition, the device compares all queued work
with earlier work: if two operations access the same bytes and at least one of them writes, then
streams, events or a wait of the host must order them; otherwise, `OrderError` is raised
immediately.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuda_simulator.cublaslt import SimulatedLt
from cuda_simulator.cudnn import SimulatedBench, SimulatedCudnn
from cuda_simulator.host_compiler import HostCompiler, HostFunction
from flow_core.base.arrays import Array
from flow_core.base.errors import FlowError
from flow_cuda.codegen.program import Kernel
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.device.hardware import Access, DnnCall, Operands, Product, Span, product_access
from flow_cuda.driver.copier import GpuCopier
from flow_cuda.driver.cublaslt import LtProducts

Clock = dict[str, int]
HOST = "host"


class OrderError(FlowError):
    """The error for two unordered operations that access the same bytes."""


class SimulatorError(FlowError):
    """The error for an operation that CUDA would reject or that would corrupt memory."""


@dataclass(eq=False)
class HostMemory:
    """Host memory that stands for device memory, aligned to 256 bytes."""

    nbytes: int
    raw: Any
    address: int


@dataclass(eq=False)
class Work:
    """A queued operation."""

    name: str
    stream: str
    run: Callable[[], None]
    access: Access
    clock: Clock
    done: bool = False


@dataclass(eq=False)
class FakeStream:
    """A queue of work; its vector clock describes which operations precede the next one.

    Attributes:
        name: unique name.
        device: index of its device.
        clock: clock of the last operation; during a capture, of the last captured operation.
        recording: the capture that the stream belongs to; None outside of a capture.
    """

    name: str
    device: int
    clock: Clock = field(default_factory=dict)
    recording: Capture | None = None


@dataclass(eq=False)
class Capture:
    """Work captured from the origin stream and from the streams that joined the capture.

    Attributes:
        origin: the stream on which the capture began.
        before: the clock of each stream when it joined the capture, in the order of joining.
        steps: the work, with clocks relative to the beginning of the capture.
        freed: the bytes freed during the capture, which invalidates it.
    """

    origin: FakeStream
    before: dict[FakeStream, Clock] = field(default_factory=dict)
    steps: list[Work] = field(default_factory=list)
    freed: int = 0

    def join(self, stream: FakeStream) -> None:
        """Add a stream to the capture."""
        self.before[stream] = stream.clock
        stream.clock, stream.recording = {}, self

    def end(self) -> tuple[str, ...]:
        """Release the streams; return the names of streams that the origin has not waited for."""
        late = [
            stream.name
            for stream in self.before
            if stream.clock.get(stream.name, 0) > self.origin.clock.get(stream.name, 0)
        ]
        for stream, clock in self.before.items():
            stream.clock, stream.recording = clock, None
        return tuple(late)


@dataclass(frozen=True)
class FakeEvent:
    """An event on a stream, or in a capture."""

    clock: Clock
    capture: Capture | None = None


@dataclass(eq=False)
class FakeGraph:
    """A captured graph.

    Attributes:
        name: unique name.
        steps: the work.
        clock: clock of the end of the graph's last launch, for which the next launch waits.
    """

    name: str
    steps: tuple[Work, ...]
    clock: Clock = field(default_factory=dict)


class Machine:
    """State shared by the simulated devices of a process.

    Attributes:
        clock: the clock of the host: what it has waited for.
        queue: work that has not run, in queueing order.
        past: earlier work with which new work is compared.
        spans: start, end and device of each allocation; the device of page-locked memory is None.
        used: number of allocated bytes on each device.
        lost: names of queued operations whose page-locked memory was freed before they ran.
        count: number of streams and graphs so far, for unique names.
        captures: the captures in progress.
    """

    def __init__(self) -> None:
        self.clock: Clock = {}
        self.queue: list[Work] = []
        self.past: list[Work] = []
        self.spans: dict[int, tuple[int, int, int | None]] = {}
        self.used: Counter[int | None] = Counter()
        self.lost: list[str] = []
        self.count = 0
        self.captures: list[Capture] = []

    def unique_name(self, name: str) -> str:
        """Return a unique name."""
        self.count += 1
        return f"{name}#{self.count}"

    def register(self, owner: Any, start: int, nbytes: int, device: int | None) -> None:
        """Register an allocation for the lifetime of its owner."""
        key = id(owner)
        self.spans[key] = start, start + nbytes, device
        self.used[device] += nbytes
        freed = weakref.finalize(owner, self._forget, key)
        freed.atexit = False  # at the end of a program, steps in flight still run

    def _forget(self, key: int) -> None:
        start, stop, device = self.spans.pop(key)
        self.used[device] -= stop - start
        for capture in self.captures:
            capture.freed += stop - start
        if device is None:  # the memory may be allocated again immediately
            gone = Access((), ((start, stop),))
            self.lost += [work.name for work in self.queue if _conflict(work.access, gone)]

    def device_of(self, span: Span) -> int | None:
        """Return the device of an address range; None for page-locked memory.

        Raises:
            LookupError: the range is not contained in one allocation.
        """
        for start, stop, device in self.spans.values():
            if start <= span[0] and span[1] <= stop:
                return device
        raise LookupError(span)

    def add(self, work: Work) -> None:
        """Queue an operation."""
        self.check(work.name, work.access, work.clock)
        self.queue.append(work)
        self.past.append(work)

    def check(self, name: str, access: Access, clock: Clock) -> None:
        """Compare an operation of a stream or of the host with all earlier operations."""
        for work in self.past:
            if not _before(work, clock) and _conflict(work.access, access):
                raise OrderError(
                    f"queueing {name}",
                    found=f"{work.name} on {work.stream} accesses the same bytes, "
                    "and nothing orders the two",
                    allowed="a wait for an event recorded after it",
                )

    def run_before(self, clock: Clock) -> None:
        """Run the work that precedes a point for which the host has waited, and no other work.

        Raises:
            OrderError: page-locked memory was freed before operations on it ran.
        """
        if self.lost:
            raise OrderError(
                "running queued work",
                found=f"page-locked memory of {', '.join(self.lost)} is free again",
                allowed="memory that stays allocated until the work on it has run",
            )
        self.clock = _merged(self.clock, clock)
        for work in self.queue:
            if _before(work, clock):
                work.run()
                work.done = True
        self.queue = [w for w in self.queue if not w.done]
        self.past = [w for w in self.past if not _before(w, self.clock)]
        self.clock = self.prune(self.clock)

    def prune(self, clock: Clock) -> Clock:
        """Drop the clock entries of finished graph launches, which nothing uses any more."""
        lanes = {work.stream for work in self.past}
        return {name: n for name, n in clock.items() if "/" not in name or name in lanes}


class Simulator:
    """The `flow_cuda.device.hardware.Hardware` on the host.

    Args:
        index: device number.
        nbytes: simulated memory size.
        compiler: the host compiler; simulators that run the same kernels share one.
        library: the replacement of cuBLASLt.
        machine: the state shared with the other devices of the process; default: a new one.
        cudnn: the replacement of cuDNN.

    Attributes:
        log: names of queued operations and calls, in order.
        specializes: whether kernels are compiled for the sizes of each launch; by default they are
            not, because the host's compiler is slower than its kernels.
    """

    architecture = "sm_90"
    threads = 16
    max_blocks = 7
    specializes = False

    def __init__(
        self,
        index: int = 0,
        nbytes: int = 1 << 32,
        compiler: HostCompiler | None = None,
        library: SimulatedLt | None = None,
        machine: Machine | None = None,
        cudnn: SimulatedCudnn | None = None,
    ) -> None:
        self.index, self._nbytes = index, nbytes
        self.machine = machine or Machine()
        self.compiler = compiler or HostCompiler()
        self.products = LtProducts(library or SimulatedLt())
        self.dnn = simulated_plans(cudnn or SimulatedCudnn())
        self.log: list[str] = []
        self.numbers: dict[int, Any] = {}
        self.uploads: Any = None
        self._handles: dict[int, FakeStream] = {}
        self.compute = self.stream("compute")
        self.allocations = 0

    # ------------------------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> HostMemory:
        """Allocate memory filled with 0xA5, so that kernels cannot rely on its content."""
        self._check_no_capture("allocating device memory")
        if nbytes > self.free_bytes():
            raise SimulatorError("allocating", found=f"{nbytes} bytes, {self.free_bytes()} free")
        self.allocations += 1
        self.log.append(f"allocate {nbytes}")
        raw = np.full(nbytes + 256, 0xA5, np.uint8)
        memory = HostMemory(nbytes, raw, raw.ctypes.data + -raw.ctypes.data % 256)
        self.machine.register(memory, memory.address, nbytes, self.index)
        return memory

    def pinned(self, nbytes: int) -> Array:
        """Return host memory that stands for page-locked memory."""
        self._check_no_capture("allocating page-locked memory")
        self.allocations += 1
        self.log.append(f"pinned {nbytes}")
        made = np.full(nbytes, 0xA5, np.uint8)
        self.machine.register(made, made.ctypes.data, nbytes, None)
        return made

    def _check_no_capture(self, doing: str) -> None:
        if self.machine.captures:
            raise SimulatorError(
                doing, found="a capture in progress", allowed="allocations outside of captures"
            )

    def free_bytes(self) -> int:
        """Return the number of unused bytes of the simulated memory."""
        return self._nbytes - self.machine.used[self.index]

    # -------------------------------------------------------------------------------- order

    def stream(self, name: str) -> FakeStream:
        """Create a queue."""
        return FakeStream(self.machine.unique_name(name), self.index)

    def record(self, stream: FakeStream) -> FakeEvent:
        """Return an event with the clock of the stream."""
        if stream.recording is not None:
            return FakeEvent(dict(stream.clock), stream.recording)
        return FakeEvent(_merged(stream.clock, self.machine.clock))

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        """Order later work of the stream after the event."""
        self.log.append(f"{stream.name} waits")
        if stream.recording is None and event.capture is not None:
            event.capture.join(stream)
        if stream.recording is not event.capture:
            raise SimulatorError(
                f"a wait of {stream.name}",
                found="an event outside of that capture, on a stream that is being captured",
                allowed="events recorded on streams of the same capture",
            )
        stream.clock = self.machine.prune(_merged(stream.clock, event.clock))

    def synchronize(self, event: FakeEvent) -> None:
        """Run the work that precedes the event, and no other work."""
        self.log.append("synchronize")
        if event.capture is not None:
            raise SimulatorError(
                "waiting for an event", found="an event of a stream that is being captured"
            )
        self.machine.run_before(event.clock)

    def host_writes(self, spans: Sequence[Span]) -> None:
        """Check that no pending operation accesses the pinned memory."""
        self.machine.check("the host", Access((), tuple(spans)), self.machine.clock)

    def host_reads(self, spans: Sequence[Span]) -> None:
        """Check that no pending operation writes the pinned memory."""
        self.machine.check("the host", Access(tuple(spans)), self.machine.clock)

    def _add(
        self,
        stream: FakeStream,
        name: str,
        run: Callable[[], None],
        access: Access,
    ) -> None:
        self._check_place(stream, name, access)
        clock = stream.clock if stream.recording else _merged(stream.clock, self.machine.clock)
        clock = {**clock, stream.name: clock.get(stream.name, 0) + 1}
        work = Work(name, stream.name, run, access, clock)
        if stream.recording is not None:
            stream.recording.steps.append(work)
        else:
            self.log.append(f"{stream.name}: {name}")
            self.machine.add(work)
        stream.clock = clock

    def _check_place(self, stream: FakeStream, name: str, access: Access) -> None:
        """Check that work uses streams and memory of its own device only."""
        if stream.device != self.index:
            raise SimulatorError(
                f"queueing {name}",
                found=f"{stream.name}, a stream of device {stream.device}",
                allowed=f"streams of device {self.index}",
            )
        for span in (*access.reads, *access.writes):
            try:
                owner = self.machine.device_of(span)
            except LookupError:
                raise SimulatorError(
                    f"queueing {name}", found="an address outside of all allocations"
                ) from None
            if owner not in (None, self.index):
                raise SimulatorError(
                    f"queueing {name} on device {self.index}",
                    found=f"memory of device {owner}",
                    allowed="memory of its own device, and page-locked memory",
                )

    # --------------------------------------------------------------------------------- work

    def load(self) -> None:
        """Check that no capture runs: the host's compiler has already loaded the kernels."""
        self._check_no_capture("loading kernels")

    def function(self, kernel: Kernel) -> HostFunction:
        """Return a kernel compiled for the host."""
        return self.compiler.function(kernel)

    def launch(
        self,
        stream: FakeStream,
        function: Any,
        blocks: int,
        threads: int,
        arguments: Any,
        access: Access,
    ) -> None:
        """Queue a kernel launch."""

        def run() -> None:
            if function.call(ctypes.addressof(arguments.pointers), blocks, threads):
                raise SimulatorError(
                    f"running {function.kernel.name}",
                    found="a barrier that some threads of a block did not reach",
                )

        self._add(stream, function.kernel.name, run, access)

    def copy(self, stream: FakeStream, target: int, source: int, nbytes: int) -> None:
        """Queue a copy."""
        access = Access(((source, source + nbytes),), ((target, target + nbytes),))
        run = _Call(ctypes.memmove, target, source, nbytes)
        if nbytes:
            self._add(stream, f"copy {nbytes}", run, access)

    def zero(self, stream: FakeStream, target: int, nbytes: int) -> None:
        """Queue setting memory to zero."""
        access = Access((), ((target, target + nbytes),))
        if nbytes:
            self._add(stream, "zero", _Call(ctypes.memset, target, 0, nbytes), access)

    def supports(self, product: Product, operands: Operands) -> bool:
        """Whether the simulated cuBLASLt has an algorithm for the product."""
        return self.products.plan(product, operands) is not None

    def product(self, stream: FakeStream, product: Product, operands: Operands) -> None:
        """Queue a matrix product."""
        run = _Call(self.products.queue, product, operands, 0)
        name = f"product {product.epilogue}".strip()
        self._add(stream, name, run, product_access(product, operands))

    def dnn_call(self, stream: FakeStream, call: DnnCall, access: Access) -> None:
        """Queue a cuDNN graph."""
        run = _Call(
            self.dnn.queue, call.problem, call.plan, call.addresses, call.workspace,
            self.handle(stream),
        )  # fmt: skip
        self._add(stream, f"cudnn {call.problem.title}", run, access)

    # ------------------------------------------------------------------------------- graphs

    def begin_capture(self, stream: FakeStream) -> None:
        """Begin graph capture."""
        self.log.append("begin capture")
        capture = Capture(stream)
        capture.join(stream)
        self.machine.captures.append(capture)

    def end_capture(self, stream: FakeStream) -> FakeGraph:
        """End the capture and return the graph."""
        self.log.append("end capture")
        capture = stream.recording
        if capture is None:
            raise SimulatorError(f"ending the capture of {stream.name}", found="no capture on it")
        self.machine.captures.remove(capture)
        late = capture.end()
        if capture.freed:
            raise SimulatorError(
                f"ending the capture of {stream.name}",
                found=f"{capture.freed} bytes freed during the capture, which invalidates it",
                allowed="memory that is freed before or after the capture",
            )
        if late:
            raise SimulatorError(
                f"ending the capture of {stream.name}",
                found=f"work on {', '.join(late)}, for which the first stream does not wait",
                allowed="streams for which the first stream of the capture waits",
            )
        return FakeGraph(self.machine.unique_name("graph"), tuple(capture.steps))

    def replay(self, stream: FakeStream, graph: FakeGraph) -> None:
        """Queue a captured graph; each captured stream runs on its own stream of the graph."""
        self.log.append(f"replay {len(graph.steps)}")
        before = self.machine.prune(_merged(stream.clock, self.machine.clock))
        start = end = _merged(before, graph.clock)
        for step in graph.steps:
            own = {f"{graph.name}/{name}": count for name, count in step.clock.items()}
            clock = {**start, **{lane: start.get(lane, 0) + n for lane, n in own.items()}}
            lane = f"{graph.name}/{step.stream}"
            self.log.append(f"{lane}: {step.name}")
            self.machine.add(Work(step.name, lane, step.run, step.access, clock))
            end = _merged(end, clock)
        stream.clock = graph.clock = end

    # ---------------------------------------------------------------------- other libraries

    @property
    def copier(self) -> GpuCopier:
        """The copier of the simulated device."""
        return GpuCopier(self)

    def uuid(self) -> str:
        """Return a name that identifies the device."""
        return f"simulated {self.index}"

    def handle(self, stream: FakeStream) -> int:
        """Return a handle with which `enqueue` finds the stream."""
        self._handles[id(stream)] = stream
        return id(stream)

    def within(self, call: Callable[[], Any]) -> Any:
        """Call a function; a simulated device is current everywhere."""
        return call()

    def enqueue(self, handle: int, name: str, run: Callable[[], None], access: Access) -> None:
        """Queue work of another library, or capture it."""
        self._add(self._handles[handle], name, run, access)


def simulated_plans(library: SimulatedCudnn) -> DnnPlans:
    """Return the planner of a simulated library, without a disk cache."""
    return DnnPlans(library, "sm_90", SimulatedBench(library))


class _Call:
    """A function call whose result is discarded."""

    __slots__ = ("_arguments", "_function")

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments

    def __call__(self) -> None:
        self._function(*self._arguments)


def _merged(a: Clock, b: Clock) -> Clock:
    return {k: max(a.get(k, 0), b.get(k, 0)) for k in (*a, *b)}


def _before(work: Work, clock: Clock) -> bool:
    return work.clock[work.stream] <= clock.get(work.stream, 0)


def _conflict(a: Access, b: Access) -> bool:
    return _overlap(a.writes, (*b.reads, *b.writes)) or _overlap(a.reads, b.writes)


def _overlap(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)
