"""A device that is the host: kernels run as C++, streams are queues, and their order is checked.

Work runs as late as it may: only when somebody waits for it.  So work that forgot to wait finds
old numbers, as it might on a device.  Beyond that, whatever is queued is compared with all that
was queued before: two pieces of work that touch the same bytes, one of them writing, must be
ordered by streams, events or the waiting caller, or `OrderError` is raised at once.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flow_core.dtypes import as_dtype
from flow_core.errors import FlowError
from flow_cuda.cudnn import DnnPlans
from flow_cuda.hardware import Access, DnnCall, Operands, Product, Span
from flow_cuda.host_compiler import HostCompiler, HostFunction
from flow_cuda.lt import LtProducts
from flow_cuda.program import Kernel
from flow_cuda.rehearsed_cudnn import RehearsedBench, RehearsedCudnn
from flow_cuda.rehearsed_lt import RehearsedLt

Clock = dict[str, int]
HOST = "host"


class OrderError(FlowError):
    """Two pieces of work touch the same bytes, and nothing orders them."""


class RehearsalError(FlowError):
    """Something that CUDA would refuse, or that would break memory."""


@dataclass(eq=False)
class HostMemory:
    """Host memory in place of device memory, aligned to 256 bytes."""

    nbytes: int
    raw: Any
    address: int


@dataclass(eq=False)
class Work:
    """A queued piece of work."""

    name: str
    stream: str
    run: Callable[[], None]
    access: Access
    clock: Clock
    done: bool = False


@dataclass(eq=False)
class FakeStream:
    """A queue; its clock says what is ordered before the next work."""

    name: str
    clock: Clock = field(default_factory=dict)
    recording: list[tuple[str, Callable[[], None], Access]] | None = None


@dataclass(frozen=True)
class FakeEvent:
    """A point in a stream."""

    clock: Clock


@dataclass(frozen=True)
class FakeGraph:
    """Recorded work."""

    steps: tuple[tuple[str, Callable[[], None], Access], ...]


class Rehearsal:
    """`flow_cuda.hardware.Hardware` on the host.

    Args:
        index: number of the device.
        nbytes: memory that it pretends to have.
        compiler: shared by rehearsals that run the same kernels.
        library: in place of cuBLASLt.
        cudnn: in place of cuDNN.

    Attributes:
        log: names of what was queued or called, in order.
    """

    architecture = "sm_90"
    threads = 16
    most_blocks = 7

    def __init__(
        self,
        index: int = 0,
        nbytes: int = 1 << 32,
        compiler: HostCompiler | None = None,
        library: RehearsedLt | None = None,
        cudnn: RehearsedCudnn | None = None,
    ) -> None:
        self.index, self._nbytes = index, nbytes
        self.compiler = compiler or HostCompiler()
        self.products = LtProducts(library or RehearsedLt())
        self.dnn = rehearsed_plans(cudnn or RehearsedCudnn())
        self.log: list[str] = []
        self.numbers: dict[int, Any] = {}
        self.clock: Clock = {}
        self._streams = 0
        self._queue: list[Work] = []
        self._past: list[Work] = []
        self._spans: dict[int, Span] = {}
        self._handles: dict[int, FakeStream] = {}
        self.compute = self.stream("compute")

    # ------------------------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> HostMemory:
        """Memory full of 0xA5, which no kernel may take for granted."""
        if nbytes > self.free_bytes():
            raise RehearsalError("allocating", found=f"{nbytes} bytes, {self.free_bytes()} free")
        self.log.append(f"allocate {nbytes}")
        raw = np.full(nbytes + 256, 0xA5, np.uint8)
        memory = HostMemory(nbytes, raw, raw.ctypes.data + -raw.ctypes.data % 256)
        key = id(memory)
        self._spans[key] = memory.address, memory.address + nbytes
        weakref.finalize(memory, self._spans.pop, key, None)
        return memory

    def pinned(self, nbytes: int) -> Any:
        """Host memory."""
        self.log.append(f"pinned {nbytes}")
        made = np.full(nbytes, 0xA5, np.uint8)
        self._spans[id(made)] = made.ctypes.data, made.ctypes.data + nbytes
        weakref.finalize(made, self._spans.pop, id(made), None)
        return made

    def free_bytes(self) -> int:
        """What is left of the memory that it pretends to have."""
        return self._nbytes - sum(stop - start for start, stop in self._spans.values())

    # -------------------------------------------------------------------------------- order

    def stream(self, name: str) -> FakeStream:
        """A new queue."""
        self._streams += 1
        return FakeStream(f"{name}#{self._streams}")

    def record(self, stream: Any) -> FakeEvent:
        """The clock of a stream."""
        if stream.recording is not None:
            raise RehearsalError("recording an event", found="a stream that is being captured")
        return FakeEvent(_merged(stream.clock, self.clock))

    def wait(self, stream: Any, event: Any) -> None:
        """The stream's later work comes after the event."""
        self.log.append(f"{stream.name} waits")
        stream.clock = _merged(stream.clock, event.clock)

    def synchronize(self, event: Any) -> None:
        """Runs what comes before the event, and nothing else."""
        self.log.append("synchronize")
        self.clock = _merged(self.clock, event.clock)
        for work in self._queue:
            if _before(work, event.clock):
                work.run()
                work.done = True
        self._queue = [w for w in self._queue if not w.done]
        self._past = [w for w in self._past if not _before(w, self.clock)]

    def host_writes(self, spans: Sequence[Span]) -> None:
        """Checks that nothing pending touches pinned memory."""
        self._check("the host", Access((), tuple(spans)), self.clock)

    def host_reads(self, spans: Sequence[Span]) -> None:
        """Checks that nothing pending writes pinned memory."""
        self._check("the host", Access(tuple(spans)), self.clock)

    def _add(self, stream: Any, name: str, run: Callable[[], None], access: Access) -> None:
        self._check_inside(name, access)
        if stream.recording is not None:
            stream.recording.append((name, run, access))
            return
        self.log.append(f"{stream.name}: {name}")
        clock = _merged(stream.clock, self.clock)
        self._check(name, access, clock)
        clock[stream.name] = clock.get(stream.name, 0) + 1
        stream.clock = clock
        work = Work(name, stream.name, run, access, clock)
        self._queue.append(work)
        self._past.append(work)

    def _check(self, name: str, access: Access, clock: Clock) -> None:
        for work in self._past:
            if not _before(work, clock) and _conflict(work.access, access):
                raise OrderError(
                    f"queueing {name}",
                    found=f"{work.name} on {work.stream} touches the same bytes, "
                    "and nothing orders the two",
                    allowed="a wait for an event recorded after it",
                )

    def _check_inside(self, name: str, access: Access) -> None:
        for start, stop in (*access.reads, *access.writes):
            if not any(a <= start and stop <= b for a, b in self._spans.values()):
                raise RehearsalError(
                    f"queueing {name}", found="an address outside of all allocations"
                )

    # --------------------------------------------------------------------------------- work

    def function(self, kernel: Kernel) -> HostFunction:
        """A kernel, compiled for the host."""
        return self.compiler.function(kernel)

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

        def run() -> None:
            if function.call(ctypes.addressof(arguments.pointers), blocks, threads):
                raise RehearsalError(
                    f"running {function.kernel.name}",
                    found="a barrier that some threads of a block did not come to",
                )

        self._add(stream, function.kernel.name, run, access)

    def copy(self, stream: Any, target: int, source: int, nbytes: int) -> None:
        """Queues a copy."""
        access = Access(((source, source + nbytes),), ((target, target + nbytes),))
        run = _Call(ctypes.memmove, target, source, nbytes)
        if nbytes:
            self._add(stream, f"copy {nbytes}", run, access)

    def zero(self, stream: Any, target: int, nbytes: int) -> None:
        """Queues the clearing of memory."""
        access = Access((), ((target, target + nbytes),))
        if nbytes:
            self._add(stream, "zero", _Call(ctypes.memset, target, 0, nbytes), access)

    def supports(self, product: Product, room: int) -> bool:
        """Whether the library has an algorithm."""
        return self.products.plan(product, room) is not None

    def product(self, stream: Any, product: Product, operands: Operands) -> None:
        """Queues matrix products."""
        reads, writes = _spans(product, operands)
        run = _Call(self.products.queue, product, operands, 0)
        name = f"product {product.epilogue}".strip()
        self._add(stream, name, run, Access(tuple(reads), tuple(writes)))

    def dnn_call(self, stream: Any, call: DnnCall, access: Access) -> None:
        """Queues a graph of cuDNN's."""
        run = _Call(
            self.dnn.queue, call.problem, call.plan, call.addresses, call.workspace,
            self.handle(stream),
        )  # fmt: skip
        self._add(stream, f"cudnn {call.problem.title}", run, access)

    # ------------------------------------------------------------------------------- graphs

    def begin_capture(self, stream: Any) -> None:
        """From now on work is recorded."""
        self.log.append("begin capture")
        stream.recording = []

    def end_capture(self, stream: Any) -> FakeGraph:
        """What was recorded."""
        self.log.append("end capture")
        steps, stream.recording = stream.recording or [], None
        return FakeGraph(tuple(steps))

    def replay(self, stream: Any, graph: Any) -> None:
        """Queues what was recorded."""
        self.log.append(f"replay {len(graph.steps)}")
        for step in graph.steps:
            self._add(stream, *step)

    # ---------------------------------------------------------------------- other libraries

    def uuid(self) -> str:
        """A name."""
        return f"rehearsed {self.index}"

    def handle(self, stream: Any) -> int:
        """A number by which `enqueue` finds the stream."""
        self._handles[id(stream)] = stream
        return id(stream)

    def within(self, call: Callable[[], Any]) -> Any:
        """Calls a function."""
        return call()

    def enqueue(self, handle: int, name: str, run: Callable[[], None], access: Access) -> None:
        """What another library does to a stream: queues work, or has it captured."""
        self._add(self._handles[handle], name, run, access)


def rehearsed_plans(library: RehearsedCudnn) -> DnnPlans:
    """Plans of a library that is rehearsed; none of its choices lie on disk."""
    return DnnPlans(library, "sm_90", RehearsedBench(library))


class _Call:
    """A call of a function whose result nobody wants."""

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
    return _meet(a.writes, (*b.reads, *b.writes)) or _meet(a.reads, b.writes)


def _meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)


def _spans(p: Product, o: Operands) -> tuple[list[Span], list[Span]]:
    """What a product reads and writes."""
    size = as_dtype(p.dtype).itemsize
    stored = (
        (p.k, p.m) if p.transpose_a else (p.m, p.k),
        (p.n, p.k) if p.transpose_b else (p.k, p.n),
    )
    shapes = (*stored, (p.m, p.n))
    spans: list[Span] = []
    for start, (rows, columns), lead, step in zip(
        (o.a, o.b, o.c), shapes, p.leads, p.strides, strict=True
    ):
        last = (p.batch - 1) * step + (rows - 1) * (lead or columns) + columns
        spans.append((start, start + last * size))
    reads, writes = spans[:2], spans[2:]
    if o.bias:
        count = p.m if p.epilogue == "sum_a" else p.n
        made = "sum" in p.epilogue
        (writes if made else reads).append((o.bias, o.bias + count * size))
    if o.saved:
        nbytes = p.m * p.saved_lead * size
        if p.epilogue.startswith("relu"):
            nbytes = p.m * p.saved_lead // 8
        (writes if "saved" in p.epilogue else reads).append((o.saved, o.saved + nbytes))
    if o.workspace:
        writes.append((o.workspace, o.workspace + o.room))
    return reads, writes
