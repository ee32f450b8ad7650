"""The runtime's interface to hardware: protocols of drivers, comms and worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeVar, runtime_checkable

from numpy.typing import DTypeLike

from flow_core.base.arrays import Array, DeviceArray, DriverArray
from flow_core.comm.exchange import DevicePair, Exchange
from flow_core.sharding.topology import Device

Launch = Callable[[], object]
"""Zero-argument callable that runs a bound kernel, or enqueues it on its stream.

The launches of a device are called one at a time, in the order of the plan, in a thread that runs
the step.  A launch of an asynchronous driver may return before its work is done; it then reads host
memory, such as `BindContext.step`, while it is called, not when the work runs.  Its result is
ignored.

An exception that a launch raises ends the step: later launches are not called, and the caller of
the job gets the exception.  Work that fails later raises when the host waits for it; see `Driver`.
"""


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

    A plan's launches are compiled by their device's driver: each run of consecutive ones is a call
    of `compile`.  Between runs of different drivers, the runtime waits for the earlier launches: by
    events for an asynchronous driver, and by nothing else for one whose launches run synchronously.
    An exchange is compiled by the driver of its first asynchronous device, else of its first one.

    Optional attributes:

    - ``asynchronous``, a bool: launches may return before their work is done.  They are then called
      by one thread.  The error of work that fails is raised once, at the latest by the next
      `Event.wait`, `Stream.synchronize` or `copy_out` of the device: when results of the job are
      copied to the host, or in a later step.
    - ``compile_group``, a hashable object: drivers of a plan that name the same one compile their
      launches together, in one call of the first one's `compile`.  The work of all of them is then
      ordered on the first one's stream: it starts after, and ends before, what is enqueued there
      before and after the compiled callable.
    - ``allocations()``: the number of allocations so far, in memory that the driver manages.  The
      kits use it to check that launches and copies allocate nothing.
    """

    def allocate(self, nbytes: int) -> Arena:
        """Allocate ``nbytes`` bytes, not initialised, aligned to `DeviceSpec.alignment`."""

    def stream(self, name: str) -> Stream:
        """Return a stream of the device; equal names mean the same stream.

        All launches of plans are bound to the stream "compute".
        """

    def copy_in(self, target: DriverArray, source: Array) -> None:
        """Copy a host array into a device array of the same shape and dtype.

        It is ordered between the work enqueued before and after it, on all streams of the device.
        The source may change when it returns.
        """

    def copy_out(self, source: DriverArray, target: Array | None = None) -> Array:
        """Copy a device array to the host, after all work enqueued before.

        Args:
            source: the device array.
            target: a C-contiguous host array of the same shape and dtype; None for a new one.

        Returns:
            The filled host array.
        """

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """Return one callable that runs launches in order, called once per step.

        It calls each launch, except those whose work it has recorded in an earlier call and
        replays.  A driver may only record launches that it recognizes as its own kernels'.
        """

    def memory(self) -> int | None:
        """Return the number of bytes available to a plan, None for no known limit."""


@dataclass(frozen=True, slots=True)
class Strided:
    """A box of a device array: a view for array types without views.

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
        """Return a box of the box: one slice per axis, with step 1; missing axes stay whole."""
        said = [part for part in (index if isinstance(index, tuple) else (index,)) if part != ...]
        ranges = [part.indices(n) for part, n in zip(said, self.shape, strict=False)]
        starts = [start for start, _, _ in ranges]
        offset = self.offset + sum(a * b for a, b in zip(starts, self.strides, strict=False))
        sizes = [max(0, stop - start) for start, stop, _ in ranges]
        return Strided(self.array, offset, (*sizes, *self.shape[len(said) :]), self.strides)

    def reshape(self, shape: int | tuple[int, ...]) -> Strided:
        """Return the elements of a contiguous box in another shape; an integer gives one axis."""
        sizes = (self.size,) if isinstance(shape, int) else shape
        return Strided(self.array, self.offset, sizes, _steps(sizes))


def strided(array: DeviceArray) -> Strided:
    """Return a box of a whole C-contiguous array."""
    shape = tuple(array.shape)
    return Strided(array, 0, shape, _steps(shape))


def _steps(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple([prod(shape[axis + 1 :]) for axis in range(len(shape))])


Result = TypeVar("Result")


class Workbench(Protocol):
    """Operations for comms of other packages on a device whose memory the host cannot access.

    Arrays of such a device have attributes ``workbench``, their device's, and ``address``.  The
    driver can run all launches like its kernels, also inside captured graphs.

    Attributes:
        place: globally unique name of the physical device, such as its UUID.
    """

    @property
    def place(self) -> str:
        """The name of the physical device."""

    def scratch(self, nbytes: int) -> Arena:
        """Allocate device memory, freed when neither the arena nor an array in it is referenced."""

    def copy(self, target: Strided, source: Strided) -> Sequence[Launch]:
        """Return launches that copy a box to another of the same shape and type; none if empty."""

    def combine(
        self, operation: str, target: Strided, parts: Sequence[Strided]
    ) -> Sequence[Launch]:
        """Return launches that combine boxes (at least 2) in order by "sum", "max" or "min"."""

    def fill(self, target: Strided, value: Any) -> Sequence[Launch]:
        """Return launches that fill a contiguous box with a number."""

    def foreign(
        self,
        call: Callable[[int], object],
        name: str,
        reads: Sequence[Strided],
        writes: Sequence[Strided],
    ) -> Launch:
        """Return a launch by which another library queues work on the device.

        Args:
            call: receives the handle of the stream and queues the work; if the stream is captured,
                called once during the capture, not once per step.
            name: name for reports.
            reads, writes: the boxes that the work reads and writes.
        """

    def stream(self) -> int:
        """Return the handle of the stream on which the device computes."""

    def within(self, call: Callable[[], Result]) -> Result:
        """Call a function with the device as the current device of the calling thread."""


SLAB, ALIGN = 1 << 22, 256
"""Minimum bytes of a scratch allocation, and the alignment of its parts in bytes."""


class Scratch:
    """Staging memory of a device or the host, reused by exchanges that run one after another.

    Args:
        allocate: returns an arena of at least a number of bytes.
    """

    def __init__(self, allocate: Callable[[int], Arena]) -> None:
        self._allocate = allocate
        self._slabs: list[Arena] = []
        self._at = self._used = 0

    def reuse(self) -> None:
        """Release all arrays for the next exchange."""
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
            self._slabs.append(self._allocate(max(SLAB, nbytes)))
        found = self._slabs[self._at].view(self._used, shape, dtype)
        self._used += -(-nbytes // ALIGN) * ALIGN
        return found


@runtime_checkable
class Comm(Protocol):
    """Devices that exchange data, some of them in other processes.

    A comm is created once per plan, by the `CommSpec` that registers it.  All processes bind the
    same exchanges in the same order, and launch them in one order.  A comm that allocates the
    devices' memory itself has a method ``arena(device, nbytes) -> Arena | None``, which is called
    before a plan's arenas are allocated; None leaves the allocation to the driver.  A comm that
    copies through the drivers has a method ``attach(driver)``, called once before anything is
    bound, with a function that returns the `Driver` of a local device.  A comm whose launches only
    queue work may have methods ``before_step()`` and ``after_step()``, called when a
    step begins and when its results have been copied to the host; they raise deferred errors.

    Attributes:
        name: name of its `CommSpec`.
        devices: all devices that it connects, the same in all processes.
        local: the devices of this process.
    """

    name: str
    devices: tuple[Device, ...]
    local: tuple[Device, ...]

    def bind(
        self,
        exchange: Exchange,
        inputs: Sequence[DriverArray],
        outputs: Sequence[DriverArray],
    ) -> Sequence[Launch]:
        """Return the launches of this process's part of an exchange, between fixed arrays.

        They are called in order, once per step; when the last one returns (or has run on the
        compute stream of the exchange's first asynchronous device, see `Driver`), outputs are
        complete and inputs may be overwritten.  Partial results are combined
        in an order that depends on the exchange only, so that runs are bitwise reproducible; the
        results of an all-reduce are bitwise identical on all devices.

        Args:
            exchange: the exchange.
            inputs, outputs: an array per input and output of the exchange; None if its device
                belongs to another process.  An output of an all-reduce may be the array of the
                input on its device.  Only for a comm whose `CommSpec` sets ``shares_memory``,
                equal inputs may be one array, and so may equal outputs; in an all-reduce, outputs
                may also share the array of the first input of their member.

        Raises:
            PlanError: The arrays do not match; see `flow_core.comm.exchange.check_arrays`.
        """

    def sent(self) -> Mapping[DevicePair, int]:
        """Return the bytes sent by local devices so far, by (from, to), without zeros.

        They are counted from bound exchanges and their launches, not from the plan.
        """


class AgreedJob(Protocol):
    """A job whose calls are compared with the calls in the other processes.

    Attributes:
        step: the number of its next step.
    """

    step: int

    def __call__(self, feeds: Sequence[Array]) -> None:
        """Record a call and its feeds; called before the step, in the caller's thread."""


class World(Protocol):
    """The processes that run one program together, each with its own devices.

    All processes run the same script, so all take part in the same collective calls, in the same
    order.  One thread may make these calls while another runs a step.  A world that divides the
    cores of its hosts among its processes has an attribute ``cores``, a
    `flow_core.base.thread_budget.Budget`, the same in all processes.  A world that checks that all
    processes run the same steps has a method ``agree(job, arrays, policy)``, called once per job in
    all processes with the job's name, the names of the fed arrays, and one of
    `flow_core.base.config.CHECK_FEEDS`; it returns an `AgreedJob`.

    Attributes:
        rank: rank of this process, from 0.
        size: number of processes, at least 2.
        machine: index of this process's machine in the program's placements.
    """

    rank: int
    size: int

    @property
    def machine(self) -> int:
        """Index of this process's machine in the program's placements."""

    def arrange(self, machines: int) -> None:
        """Set the number of machines in the program's placements."""

    def owner(self, device: Device) -> int:
        """Return the rank of the process that owns a device."""

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        """Return the texts of all processes, in the order of the ranks (all-gather)."""

    def broadcast(self, array: Array, root: int, what: str) -> None:
        """Broadcast the contents of a contiguous host array from process ``root``."""

    def share(self, arrays: Sequence[Array], roots: Sequence[int], what: str) -> None:
        """Broadcast the results of a step, each from its root, in the thread that runs steps."""
