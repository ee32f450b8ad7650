"""The runtime's interface to hardware: protocols for drivers, communicators (comms) and worlds.

A world is the set of processes that run one program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from flow_core.base.thread_budget import Budget
from flow_core.sharding.topology import Device

if TYPE_CHECKING:  # without numpy, for `flow --help`
    from numpy.typing import DTypeLike

    from flow_core.base.arrays import Array, DeviceArray, DriverArray
    from flow_core.comm.exchange import DevicePair, Exchange

Launch = Callable[[], object]
"""Zero-argument callable that runs a bound kernel, or enqueues it on its stream.

The launches of a device are called one by one, in the order of the plan, in the thread that runs
the step.  A launch of an asynchronous driver may return before its work is done; such a launch must
read host memory, such as `BindContext.step`, during the call and not when the work runs.  The
return value of a launch is ignored.

An exception that a launch raises ends the step: later launches are not called, and the caller of
the job receives the exception.  If work fails after its launch has returned, the error is raised
when the host waits for the work; see `Driver`.
"""


class Joinable(Protocol):
    """A launch that other launches of its package can follow in one call.

    A driver may call ``join`` with consecutive launches whose attributes ``join`` are equal, and
    call the launch that it returns in their place.  If a launch fails, a function of the traceback
    has that launch in a local variable, by which the runtime finds its task.  Joined launches do
    not call numpy, whose settings a step would otherwise change before and after them.
    """

    @property
    def join(self) -> Callable[[Sequence[Launch]], Launch]:
        """The function that returns one launch, which runs several launches in order."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Launches that run once for each position of sequences.

    Attributes:
        order: the positions, in their order.
        elements: pairs of an array and a sequence; before each position, the sequence's element is
            copied to the array.
        bodies: two sequences of launches, which alternate; the second one runs last.
        results: for each of the two, pairs of an array and a sequence; after each position, the
            array is copied to the sequence's element.
        step: 0-d int64 array, set to ``counter * len(order)`` plus the position before each one.
        counter: 0-d int64 array with the number of the step, or None for 0.
    """

    order: range
    elements: Sequence[tuple[Array, Array]]
    bodies: tuple[Sequence[Launch], Sequence[Launch]]
    results: tuple[Sequence[tuple[Array, Array]], Sequence[tuple[Array, Array]]]
    step: Array
    counter: Array | None


class Repeatable(Joinable, Protocol):
    """A joinable launch whose package can run a loop of such launches in one call.

    A kernel may call ``repeat`` if the attribute is the same for all launches of the loop, and its
    arrays are C-contiguous.  What holds for joined launches holds for the launch that is returned.
    """

    @property
    def repeat(self) -> Callable[[Loop], Launch]:
        """The function that returns one launch, which runs a loop."""


class Event(Protocol):
    """A point in a stream that other streams and threads can wait for."""

    def wait(self) -> None:
        """Block the calling thread until the event has completed; raise deferred errors."""


class Stream(Protocol):
    """An in-order queue of work on one device."""

    def record(self) -> Event:
        """Return an event that completes when all work enqueued so far is done."""

    def wait_event(self, event: Event) -> None:
        """Make later work wait for an event of any stream.

        An event of another driver has no methods but ``wait``, which this method may call.
        """

    def synchronize(self) -> None:
        """Block until all enqueued work is done; raise deferred errors."""


class Arena(Protocol):
    """One allocation that holds all planned buffers of a device."""

    @property
    def nbytes(self) -> int:
        """Size of the arena in bytes."""

    def view(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Return the C-contiguous array of ``shape`` that starts at byte ``offset``."""


@runtime_checkable
class Driver(Protocol):
    """Allocation, copies and execution on one device; one object per device.

    Drivers derive from this class, which has defaults for the members that few drivers define.

    The driver of a device compiles the launches of the device in a plan: one call of `compile` for
    each sequence of consecutive launches.  Between sequences of different drivers, the runtime
    waits for the earlier launches with events if their driver is asynchronous; launches that run
    synchronously need no wait.  An exchange is compiled by the driver of its first asynchronous
    device or, if all its devices are synchronous, by the driver of its first device.

    Attributes:
        asynchronous: whether launches may return before their work is done.  One thread then calls
            all launches.  The error of work that fails is raised once, at the latest by the next
            `Event.wait`, `Stream.synchronize` or `copy_out` of the device: when results of the job
            are copied to the host, or in a later step.
        compile_group: drivers of a plan whose groups are equal compile their launches together, in
            one call of the first driver's `compile`.  The work of all these drivers is then ordered
            on the first driver's stream: it starts after the work that was enqueued there before
            the compiled callable, and ends before work that is enqueued there later starts.  None
            for a driver that forms a group of its own.
    """

    asynchronous: bool = False
    compile_group: Hashable = None

    def allocate(self, nbytes: int) -> Arena:
        """Allocate ``nbytes`` bytes, not initialized, aligned to `DeviceSpec.alignment`."""

    def stream(self, name: str) -> Stream:
        """Return a stream of the device; equal names mean the same stream.

        All launches of plans are bound to the stream "compute".
        """

    def copy_in(self, target: DriverArray, source: Array) -> None:
        """Copy a host array into a device array of the same shape and dtype.

        The copy runs after all work enqueued before this call, and before all work enqueued after
        it, on all streams of the device.  The caller may change the source after the return.
        """

    def copy_out(self, source: DriverArray, target: Array | None = None) -> Array:
        """Copy a device array to the host, after all work that was enqueued before this call.

        Args:
            source: the device array.
            target: a C-contiguous host array of the same shape and dtype; None for a new one.

        Returns:
            The filled host array.
        """

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """Return one callable that runs launches in order, called once per step.

        The callable calls each launch, except launches whose work it has recorded in an earlier
        call and replays.  A driver may record only launches that it recognizes as launches of its
        own kernels.
        """

    def memory(self) -> int | None:
        """Return the number of bytes available to a plan, or None if no limit is known."""

    def allocations(self) -> int | None:
        """Return the number of allocations so far in the driver's memory; None if not counted.

        The test kits use it to check that launches and copies allocate nothing.
        """
        return None


@dataclass(frozen=True, slots=True)
class Strided:
    """A box (rectangular region) of a device array, for array types that provide no views.

    Attributes:
        array: the C-contiguous array, a `flow_core.base.arrays.DeviceArray`.
        offset: number of elements before the first element of the box.
        shape: shape of the box.
        strides: distance between adjacent elements along each axis, in elements.

    >>> import numpy as np
    >>> box = strided(np.zeros((4, 6)))[1:3, 2:6]
    >>> box.offset, box.shape, box.strides, box.is_contiguous
    (8, (2, 4), (6, 1), False)
    """

    array: DriverArray
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        """Element type, as in numpy."""
        return self.array.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the elements."""
        return self.size * int(self.dtype.itemsize)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are adjacent in memory, in C order."""
        rows = zip(self.shape, self.strides, _steps(self.shape), strict=True)
        return not self.size or all(n == 1 or have == want for n, have, want in rows)

    def __getitem__(self, index: Any) -> Strided:
        """Return a part of the box, given by a slice of step 1 per axis; other axes stay whole."""
        said = [part for part in (index if isinstance(index, tuple) else (index,)) if part != ...]
        ranges = [part.indices(n) for part, n in zip(said, self.shape, strict=False)]
        starts = [start for start, _, _ in ranges]
        offset = self.offset + sum(a * b for a, b in zip(starts, self.strides, strict=False))
        sizes = [max(0, stop - start) for start, stop, _ in ranges]
        return Strided(self.array, offset, (*sizes, *self.shape[len(said) :]), self.strides)

    def reshape(self, shape: int | tuple[int, ...]) -> Strided:
        """Return the elements of a contiguous box in another shape; an integer means one axis."""
        sizes = (self.size,) if isinstance(shape, int) else shape
        return Strided(self.array, self.offset, sizes, _steps(sizes))


def strided(array: DeviceArray) -> Strided:
    """Return a box of a whole C-contiguous array."""
    shape = tuple(array.shape)
    return Strided(array, 0, shape, _steps(shape))


def _steps(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple([prod(shape[axis + 1 :]) for axis in range(len(shape))])


Result = TypeVar("Result")


class DeviceCopier(Protocol):
    """Operations on a device whose memory the host cannot access, for comms of other packages.

    Arrays of such a device have the attributes ``copier``, which is their device's copier,
    and ``address``.  The driver can run all launches that a copier returns in the same way as
    launches of its own kernels, including inside captured graphs.

    Attributes:
        place: globally unique name of the physical device, such as its UUID.
    """

    @property
    def place(self) -> str:
        """The name of the physical device."""

    def scratch(self, nbytes: int) -> Arena:
        """Allocate device memory, freed when neither the arena nor an array in it is referenced."""

    def copy(self, target: Strided, source: Strided) -> Sequence[Launch]:
        """Return launches that copy a box to another one of the same shape and type.

        An empty box needs no launch.
        """

    def combine(
        self, operation: str, target: Strided, parts: Sequence[Strided]
    ) -> Sequence[Launch]:
        """Return launches that combine at least 2 boxes, in order, by "sum", "max" or "min"."""

    def fill(self, target: Strided, value: Any) -> Sequence[Launch]:
        """Return launches that fill a contiguous box with a number."""

    def foreign(
        self,
        call: Callable[[int], object],
        name: str,
        reads: Sequence[Strided],
        writes: Sequence[Strided],
    ) -> Launch:
        """Return a launch with which another library enqueues work on the device.

        Args:
            call: a function that receives the handle of the stream and enqueues the work; if the
                stream is captured, it is called once during the capture, not once per step.
            name: name of the work in reports.
            reads, writes: the boxes that the work reads and writes.
        """

    def stream(self) -> int:
        """Return the handle of the stream on which the device computes."""

    def within(self, call: Callable[[], Result]) -> Result:
        """Call a function with the device as the current device of the calling thread."""


SLAB_BYTES, ALIGN = 1 << 22, 256
"""Minimum size of a scratch allocation, and the alignment of its parts, both in bytes."""


class Scratch:
    """Staging memory of a device or the host, reused by exchanges that run one after another.

    Args:
        allocate: a function that returns an arena of at least the given number of bytes.
    """

    def __init__(self, allocate: Callable[[int], Arena]) -> None:
        self._allocate = allocate
        self._slabs: list[Arena] = []
        self._at = self._used = 0

    def reuse(self) -> None:
        """Release all arrays, so that the next exchange can use their memory."""
        self._at = self._used = 0

    def row(self, size: int, dtype: Any) -> Strided:
        """Allocate a row of ``size`` elements."""
        return strided(self.array((size,), dtype))

    def array(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """Allocate an array."""
        nbytes = prod(shape) * int(dtype.itemsize)
        while self._at < len(self._slabs) and self._used + nbytes > self._slabs[self._at].nbytes:
            self._at, self._used = self._at + 1, 0
        if self._at == len(self._slabs):
            self._slabs.append(self._allocate(max(SLAB_BYTES, nbytes)))
        found = self._slabs[self._at].view(self._used, shape, dtype)
        self._used += -(-nbytes // ALIGN) * ALIGN
        return found


@runtime_checkable
class Comm(Protocol):
    """A communicator, which connects devices that exchange data, in one or several processes.

    A comm is created once per plan, by the `CommSpec` that registers it.  All processes bind the
    same exchanges in the same order, and launch them in the same order.  Comms derive from this
    class, which has defaults for the methods that few comms define.

    Attributes:
        name: name of its `CommSpec`.
        devices: all devices that the comm connects, the same in all processes.
        local: the devices of this process.
    """

    name: str
    devices: tuple[Device, ...]
    local: tuple[Device, ...]

    def attach(self, driver: Callable[[Device], Driver]) -> None:
        """Receive a function that returns the driver of a local device; called before `bind`."""
        return None

    def arena(self, device: Device, nbytes: int) -> Arena | None:
        """Allocate the memory of a plan on a device; None leaves the allocation to the driver."""
        return None

    def before_step(self) -> None:
        """Prepare for a step that begins; raise the errors of enqueued work."""
        return None

    def after_step(self) -> None:
        """Finish a step whose results are on the host; raise the errors of enqueued work."""
        return None

    def bind(
        self, exchange: Exchange, inputs: Sequence[DriverArray], outputs: Sequence[DriverArray]
    ) -> Sequence[Launch]:
        """Return the launches of this process's part of an exchange, between fixed arrays.

        The launches are called in order, once per step.  When the last launch returns (or, if the
        exchange has asynchronous devices, when it has run on the compute stream of the first one;
        see `Driver`), the outputs are complete and the inputs may be overwritten.  Partial results
        are combined in an order that depends only on the exchange, so that runs are bitwise
        reproducible; the results of an all-reduce are bitwise identical on all devices.

        Args:
            exchange: the exchange.
            inputs, outputs: an array per input and output of the exchange; None if its device
                belongs to another process.  An output of an all-reduce may be the same array as
                the input on its device.  If (and only if) the comm's `CommSpec` sets
                ``shares_memory``, equal inputs may be one array, as may equal outputs; outputs of
                an all-reduce may then also share the array of the first input of their member (one
                of the all-reduces that a bucket combines).

        Raises:
            PlanError: The arrays do not match; see `flow_core.comm.exchange.check_arrays`.
        """

    def sent(self) -> Mapping[DevicePair, int]:
        """Return the numbers of bytes that local devices have sent, by (from, to), without zeros.

        The bytes are counted from the bound exchanges and their launches, not from the plan.
        """


class AgreedJob(Protocol):
    """A job whose calls are compared with the calls in the other processes.

    Attributes:
        step: the number of the job's next step.
    """

    step: int

    def __call__(self, feeds: Sequence[Array]) -> None:
        """Record a call and its feeds; called before the step, in the thread that calls the job."""


class World(Protocol):
    """The processes that run one program together, each with its own devices.

    All processes run the same script, so all take part in the same collective calls, in the same
    order.  One thread may make these calls while another thread runs a step.  Worlds derive from
    this class, which has defaults for the members that not all worlds define.

    Attributes:
        rank: rank of this process, from 0.
        size: number of processes, at least 2.
        machine: index of this process's machine in the program's placements.
        cores: the share of each process in the cores of its host, the same in all processes; None
            if the world does not divide them.
    """

    rank: int
    size: int

    @property
    def cores(self) -> Budget | None:
        """The share of each process in the cores of its host."""
        return None

    def agree(self, job: str, arrays: Sequence[str], policy: str) -> AgreedJob | None:
        """Return the check that all processes run the same steps of a job; None for no check.

        All processes call this method once per job.

        Args:
            job: the job's name.
            arrays: the names of the fed arrays.
            policy: one of `flow_core.base.config.CHECK_FEEDS`.
        """
        return None

    @property
    def machine(self) -> int:
        """Index of this process's machine in the program's placements."""

    def arrange(self, machines: int) -> None:
        """Set the number of machines in the program's placements."""

    def owner(self, device: Device) -> int:
        """Return the rank of the process that owns a device."""

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        """Return the byte strings of all processes, in rank order (an all-gather)."""

    def broadcast(self, array: Array, root: int, what: str) -> None:
        """Broadcast the contents of a contiguous host array from process ``root``."""

    def share(self, arrays: Sequence[Array], roots: Sequence[int], what: str) -> None:
        """Broadcast results of a step, each from its root; called by the thread that runs steps."""
