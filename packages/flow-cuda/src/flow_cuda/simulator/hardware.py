"""A device that is the host: kernels run as C++, streams are queues, and their order is checked.

Work runs as late as it may: only when somebody waits for it.  So work that forgot to wait finds
old numbers, as it might on a device.  Beyond that, whatever is queued is compared with all that
was queued before: two pieces of work that touch the same bytes, one of them writing, must be
ordered by streams, events or the waiting caller, or `OrderError` is raised at once.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flow_core.base.errors import FlowError
from flow_cuda.codegen.host_compiler import HostCompiler, HostFunction
from flow_cuda.codegen.program import Kernel
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.device.hardware import Access, DnnCall, Operands, Product, Span, touched_by
from flow_cuda.driver.cublaslt import LtProducts
from flow_cuda.driver.workbench import GpuWorkbench
from flow_cuda.simulator.cublaslt import SimulatedLt
from flow_cuda.simulator.cudnn import SimulatedBench, SimulatedCudnn

Clock = dict[str, int]
HOST = "host"


class OrderError(FlowError):
    """Two pieces of work touch the same bytes, and nothing orders them."""


class SimulatorError(FlowError):
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
    """A queue; its clock says what is ordered before the next work.

    Attributes:
        name: unlike any other one's.
        device: whose it is.
        clock: of the last work; while the stream is captured, of the last recorded work.
        recording: the capture that it is part of.
    """

    name: str
    device: int
    clock: Clock = field(default_factory=dict)
    recording: Capture | None = None


@dataclass(eq=False)
class Capture:
    """Work that is recorded, of the stream that it began on and of those that were drawn in.

    Attributes:
        origin: the stream on which it began.
        before: the clock of each stream when it was drawn in, in that order.
        steps: the work, with clocks that begin at nothing.
    """

    origin: FakeStream
    before: dict[FakeStream, Clock] = field(default_factory=dict)
    steps: list[Work] = field(default_factory=list)

    def draw_in(self, stream: FakeStream) -> None:
        """Makes a stream part of it."""
        self.before[stream] = stream.clock
        stream.clock, stream.recording = {}, self

    def end(self) -> tuple[str, ...]:
        """Gives the streams back; names those that the first one has not waited for."""
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
    """A point in a stream, or in a capture."""

    clock: Clock
    capture: Capture | None = None


@dataclass(eq=False)
class FakeGraph:
    """Recorded work.

    Attributes:
        name: unlike any other one's.
        steps: the work.
        clock: of the end of its last replay, which the next one waits for.
    """

    name: str
    steps: tuple[Work, ...]
    clock: Clock = field(default_factory=dict)


class Machine:
    """What the simulated devices of a process have in common.

    Attributes:
        clock: what the host has waited for.
        queue: work that has not run, in the order in which it was queued.
        past: work that later work is compared with.
        spans: where allocations lie: from, to, and the device; None for page-locked memory.
        used: bytes of each device that are taken.
        lost: work whose page-locked memory is free again, though it has not run.
        count: of streams and graphs, which are numbered.
    """

    def __init__(self) -> None:
        self.clock: Clock = {}
        self.queue: list[Work] = []
        self.past: list[Work] = []
        self.spans: dict[int, tuple[int, int, int | None]] = {}
        self.used: Counter[int | None] = Counter()
        self.lost: list[str] = []
        self.count = 0

    def named(self, name: str) -> str:
        """A name that nothing else has."""
        self.count += 1
        return f"{name}#{self.count}"

    def keep(self, owner: Any, start: int, nbytes: int, device: int | None) -> None:
        """Takes note of an allocation, for as long as its owner lives."""
        key = id(owner)
        self.spans[key] = start, start + nbytes, device
        self.used[device] += nbytes
        freed = weakref.finalize(owner, self._forget, key)
        freed.atexit = False  # steps that are in flight when a program ends are still run

    def _forget(self, key: int) -> None:
        start, stop, device = self.spans.pop(key)
        self.used[device] -= stop - start
        if device is None:  # the next allocation may be given it at once
            gone = Access((), ((start, stop),))
            self.lost += [work.name for work in self.queue if _conflict(work.access, gone)]

    def place(self, span: Span) -> int | None:
        """The device of some bytes, None for page-locked memory.

        Raises:
            LookupError: they are not all of one allocation.
        """
        for start, stop, device in self.spans.values():
            if start <= span[0] and span[1] <= stop:
                return device
        raise LookupError(span)

    def add(self, work: Work) -> None:
        """Queues a piece of work."""
        self.check(work.name, work.access, work.clock)
        self.queue.append(work)
        self.past.append(work)

    def check(self, name: str, access: Access, clock: Clock) -> None:
        """Compares what is to be queued, or done by the host, with all that was queued before."""
        for work in self.past:
            if not _before(work, clock) and _conflict(work.access, access):
                raise OrderError(
                    f"queueing {name}",
                    found=f"{work.name} on {work.stream} touches the same bytes, "
                    "and nothing orders the two",
                    allowed="a wait for an event recorded after it",
                )

    def reach(self, clock: Clock) -> None:
        """Runs what comes before a point, and nothing else; the host has waited for it.

        Raises:
            OrderError: page-locked memory was given back before what reads or writes it has run.
        """
        if self.lost:
            raise OrderError(
                "running what was queued",
                found=f"page-locked memory of {', '.join(self.lost)} is free again",
                allowed="memory that lives until the work on it has run",
            )
        self.clock = _merged(self.clock, clock)
        for work in self.queue:
            if _before(work, clock):
                work.run()
                work.done = True
        self.queue = [w for w in self.queue if not w.done]
        self.past = [w for w in self.past if not _before(w, self.clock)]
        self.clock = self.needed(self.clock)

    def needed(self, clock: Clock) -> Clock:
        """A clock without the lanes of graphs whose work is over: nobody asks for them again."""
        lanes = {work.stream for work in self.past}
        return {name: n for name, n in clock.items() if "/" not in name or name in lanes}


class Simulator:
    """`flow_cuda.device.hardware.Hardware` on the host.

    Args:
        index: number of the device.
        nbytes: memory that it pretends to have.
        compiler: shared by simulators that run the same kernels.
        library: in place of cuBLASLt.
        machine: shared with the other devices of the process; one of its own when None.
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
        self._lanes: dict[str, FakeStream] = {}
        self._handles: dict[int, FakeStream] = {}
        self.compute = self.stream("compute")

    # ------------------------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> HostMemory:
        """Memory full of 0xA5, which no kernel may take for granted."""
        if nbytes > self.free_bytes():
            raise SimulatorError("allocating", found=f"{nbytes} bytes, {self.free_bytes()} free")
        self.log.append(f"allocate {nbytes}")
        raw = np.full(nbytes + 256, 0xA5, np.uint8)
        memory = HostMemory(nbytes, raw, raw.ctypes.data + -raw.ctypes.data % 256)
        self.machine.keep(memory, memory.address, nbytes, self.index)
        return memory

    def pinned(self, nbytes: int) -> Any:
        """Host memory."""
        self.log.append(f"pinned {nbytes}")
        made = np.full(nbytes, 0xA5, np.uint8)
        self.machine.keep(made, made.ctypes.data, nbytes, None)
        return made

    def free_bytes(self) -> int:
        """What is left of the memory that it pretends to have."""
        return self._nbytes - self.machine.used[self.index]

    # -------------------------------------------------------------------------------- order

    def stream(self, name: str) -> FakeStream:
        """A new queue."""
        return FakeStream(self.machine.named(name), self.index)

    def lane(self, name: str) -> FakeStream:
        """The queue of a name."""
        if name not in self._lanes:
            self._lanes[name] = self.stream(name) if name else self.compute
        return self._lanes[name]

    def reach(self, other: int) -> None:
        """Nothing to do: all memory is the host's."""

    def record(self, stream: Any) -> FakeEvent:
        """The clock of a stream."""
        if stream.recording is not None:
            return FakeEvent(dict(stream.clock), stream.recording)
        return FakeEvent(_merged(stream.clock, self.machine.clock))

    def wait(self, stream: Any, event: Any) -> None:
        """The stream's later work comes after the event."""
        self.log.append(f"{stream.name} waits")
        if stream.recording is None and event.capture is not None:
            event.capture.draw_in(stream)
        if stream.recording is not event.capture:
            raise SimulatorError(
                f"a wait of {stream.name}",
                found="a stream that is being captured, and an event outside of that capture",
                allowed="events recorded in streams of the same capture",
            )
        stream.clock = self.machine.needed(_merged(stream.clock, event.clock))

    def synchronize(self, event: Any) -> None:
        """Runs what comes before the event, and nothing else."""
        self.log.append("synchronize")
        if event.capture is not None:
            raise SimulatorError(
                "waiting for an event", found="one of a stream that is being captured"
            )
        self.machine.reach(event.clock)

    def host_writes(self, spans: Sequence[Span]) -> None:
        """Checks that nothing pending touches pinned memory."""
        self.machine.check("the host", Access((), tuple(spans)), self.machine.clock)

    def host_reads(self, spans: Sequence[Span]) -> None:
        """Checks that nothing pending writes pinned memory."""
        self.machine.check("the host", Access(tuple(spans)), self.machine.clock)

    def _add(
        self, stream: Any, name: str, run: Callable[[], None], access: Access, peers: bool = False
    ) -> None:
        self._check_place(stream, name, access, peers)
        clock = stream.clock if stream.recording else _merged(stream.clock, self.machine.clock)
        clock = {**clock, stream.name: clock.get(stream.name, 0) + 1}
        work = Work(name, stream.name, run, access, clock)
        if stream.recording is not None:
            stream.recording.steps.append(work)
        else:
            self.log.append(f"{stream.name}: {name}")
            self.machine.add(work)
        stream.clock = clock

    def _check_place(self, stream: Any, name: str, access: Access, peers: bool) -> None:
        """Work is queued on streams of its device, in whose memory it stays unless it copies."""
        if stream.device != self.index:
            raise SimulatorError(
                f"queueing {name}",
                found=f"{stream.name}, a stream of device {stream.device}",
                allowed=f"streams of device {self.index}",
            )
        for span in (*access.reads, *access.writes):
            try:
                place = self.machine.place(span)
            except LookupError:
                raise SimulatorError(
                    f"queueing {name}", found="an address outside of all allocations"
                ) from None
            if place not in (None, self.index) and not peers:
                raise SimulatorError(
                    f"queueing {name} on device {self.index}",
                    found=f"memory of device {place}",
                    allowed="copies alone between devices",
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
                raise SimulatorError(
                    f"running {function.kernel.name}",
                    found="a barrier that some threads of a block did not come to",
                )

        self._add(stream, function.kernel.name, run, access)

    def copy(self, stream: Any, target: int, source: int, nbytes: int) -> None:
        """Queues a copy."""
        access = Access(((source, source + nbytes),), ((target, target + nbytes),))
        run = _Call(ctypes.memmove, target, source, nbytes)
        if nbytes:
            self._add(stream, f"copy {nbytes}", run, access, peers=True)

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
        run = _Call(self.products.queue, product, operands, 0)
        name = f"product {product.epilogue}".strip()
        self._add(stream, name, run, touched_by(product, operands))

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
        Capture(stream).draw_in(stream)

    def end_capture(self, stream: Any) -> FakeGraph:
        """What was recorded."""
        self.log.append("end capture")
        capture = stream.recording
        if late := capture.end():
            raise SimulatorError(
                f"ending the capture of {stream.name}",
                found=f"work on {', '.join(late)} that it does not wait for",
                allowed="streams that are joined to the one where the capture began",
            )
        return FakeGraph(self.machine.named("graph"), tuple(capture.steps))

    def replay(self, stream: Any, graph: Any) -> None:
        """Queues what was recorded, each stream's work on one of the graph's own."""
        self.log.append(f"replay {len(graph.steps)}")
        before = self.machine.needed(_merged(stream.clock, self.machine.clock))
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
    def workbench(self) -> GpuWorkbench:
        """As of a device."""
        return GpuWorkbench(self)

    def uuid(self) -> str:
        """A name."""
        return f"simulated {self.index}"

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


def simulated_plans(library: SimulatedCudnn) -> DnnPlans:
    """Plans of a library that is simulated; none of its choices lie on disk."""
    return DnnPlans(library, "sm_90", SimulatedBench(library))


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
