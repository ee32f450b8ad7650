"""What hardware looks like to the runtime: Protocols only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeVar, runtime_checkable

from numpy.typing import DTypeLike

from flow_core.base.arrays import Array, DeviceArray
from flow_core.exchange import DevicePair, Exchange
from flow_core.sharding.topology import Device

Launch = Callable[[], object]
"""Zero-argument callable that runs one bound kernel; its result is ignored."""


class Event(Protocol):
    """A point in a stream that others may wait for."""

    def wait(self) -> None:
        """Blocks the calling thread until the event has happened."""


class Stream(Protocol):
    """An in-order queue of launches on one device."""

    def record(self) -> Event:
        """An event that happens when all work queued so far is done."""

    def wait_event(self, event: Event) -> None:
        """Makes later work wait for an event of any stream."""

    def synchronize(self) -> None:
        """Blocks until all queued work is done."""


class Arena(Protocol):
    """One allocation that holds all planned buffers of a device."""

    @property
    def nbytes(self) -> int:
        """Its size."""

    def view(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """The C-contiguous array of ``shape`` that starts at byte ``offset``."""


@runtime_checkable
class Driver(Protocol):
    """A device type's way to allocate, copy and run.  One object per device.

    One whose launches only queue work may have an attribute ``queues`` that is True: it is then
    given the launches of all devices of a plan at once, in the plan's order, and no threads.
    """

    def allocate(self, nbytes: int) -> Arena:
        """One plain allocation of ``nbytes`` bytes, not initialised."""

    def stream(self, name: str) -> Stream:
        """A new stream, named for traces."""

    def copy_in(self, target: DeviceArray, source: Array) -> None:
        """Copies a host array into a device array of the same shape and dtype."""

    def copy_out(self, source: DeviceArray) -> Array:
        """A new host array with the contents of a device array."""

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """One callable that runs all launches of a stream's step in order."""

    def memory(self) -> int | None:
        """Bytes that a plan may use, None for no known limit."""


@dataclass(frozen=True, slots=True)
class Strided:
    """A box of a device array: a view for arrays that have none of their own.

    Attributes:
        array: the C-contiguous array.
        offset: elements before the first one of the box.
        shape: of the box.
        strides: from element to element along each axis, in elements.

    >>> import numpy as np
    >>> box = strided(np.zeros((4, 6)))[1:3, 2:6]
    >>> box.offset, box.shape, box.strides, box.is_contiguous
    (8, (2, 4), (6, 1), False)
    """

    array: DeviceArray
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        """Numpy's element type."""
        return self.array.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * int(self.dtype.itemsize)

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements follow one another."""
        rows = zip(self.shape, self.strides, _steps(self.shape), strict=True)
        return not self.size or all(n == 1 or have == want for n, have, want in rows)

    def __getitem__(self, index: Any) -> Strided:
        """A box of the box: a slice without a step per axis; what is not said stays whole."""
        said = [part for part in (index if isinstance(index, tuple) else (index,)) if part != ...]
        ranges = [part.indices(n) for part, n in zip(said, self.shape, strict=False)]
        starts = [start for start, _, _ in ranges]
        offset = self.offset + sum(a * b for a, b in zip(starts, self.strides, strict=False))
        sizes = [max(0, stop - start) for start, stop, _ in ranges]
        return Strided(self.array, offset, (*sizes, *self.shape[len(said) :]), self.strides)

    def reshape(self, shape: int | tuple[int, ...]) -> Strided:
        """The elements of a contiguous box in another shape; -1 is for all in a row."""
        sizes = (self.size,) if isinstance(shape, int) else shape
        return Strided(self.array, self.offset, sizes, _steps(sizes))


def strided(array: DeviceArray) -> Strided:
    """All of a C-contiguous array."""
    shape = tuple(array.shape)
    return Strided(array, 0, shape, _steps(shape))


def _steps(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple([prod(shape[axis + 1 :]) for axis in range(len(shape))])


Result = TypeVar("Result")


class Workbench(Protocol):
    """What a comm of another package may do on a device whose memory only the device reads.

    Arrays of such a device have their device's as ``workbench``, and an ``address``.  All launches
    are work that the device's driver can put where it puts its kernels, captured graphs included.

    Attributes:
        place: names the physical device, unlike any other one of any host, such as its UUID.
    """

    @property
    def place(self) -> str:
        """The name of the physical device."""

    def scratch(self, nbytes: int) -> Arena:
        """New memory of the device, which lives as long as it or an array in it is held."""

    def copy(self, target: Strided, source: Strided) -> Sequence[Launch]:
        """Copies a box to another one of the same shape and type; nothing for empty ones."""

    def combine(
        self, operation: str, target: Strided, parts: Sequence[Strided]
    ) -> Sequence[Launch]:
        """Combines two or more boxes in their order by "sum", "max" or "min", as numpy does."""

    def fill(self, target: Strided, value: Any) -> Sequence[Launch]:
        """Fills a contiguous box with a number."""

    def foreign(
        self,
        call: Callable[[int], object],
        name: str,
        reads: Sequence[Strided],
        writes: Sequence[Strided],
    ) -> Launch:
        """A launch by which another library queues work on the device.

        Args:
            call: gets the handle of the stream, and queues; called while the stream is captured,
                too, and then not again for each step.
            name: for reports.
            reads, writes: what the work touches.
        """

    def stream(self) -> int:
        """The handle of the stream on which the device computes."""

    def within(self, call: Callable[[], Result]) -> Result:
        """Calls a function with the device as the current one of the calling thread."""


SLAB, ALIGN = 1 << 22, 256
"""Bytes of a piece of scratch memory, and of what its parts are multiples of."""


class Scratch:
    """Memory of a device for what is on its way, the same for all exchanges: they take turns.

    Args:
        bench: the device's.
    """

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._slabs: list[Arena] = []
        self._at = self._used = 0

    def reuse(self) -> None:
        """What follows is for another exchange."""
        self._at = self._used = 0

    def row(self, size: int, dtype: Any) -> Strided:
        """Room for some elements."""
        nbytes = size * int(dtype.itemsize)
        while self._at < len(self._slabs) and self._used + nbytes > self._slabs[self._at].nbytes:
            self._at, self._used = self._at + 1, 0
        if self._at == len(self._slabs):
            self._slabs.append(self._bench.scratch(max(SLAB, nbytes)))
        found = strided(self._slabs[self._at].view(self._used, (size,), dtype))
        self._used += -(-nbytes // ALIGN) * ALIGN
        return found


@runtime_checkable
class Comm(Protocol):
    """Devices that exchange data, some of them in other processes.

    A comm is made once per plan, by the `CommSpec` that registers it.  All processes bind the
    same exchanges in the same order, and launch them in one order.  A comm that wants devices'
    memory to be of its own kind may have a method ``arena(device, nbytes) -> Arena | None``, which
    is asked before a plan's arenas are allocated; None leaves that to the driver.  One whose
    launches only queue work may have methods ``before_step()`` and ``after_step()``, called when a
    step begins and when its results have been copied to the host; they raise what went wrong.

    Attributes:
        name: name of its `CommSpec`.
        devices: all devices that it joins, the same in all processes.
        local: those of this process.
    """

    name: str
    devices: tuple[Device, ...]
    local: tuple[Device, ...]

    def bind(
        self,
        exchange: Exchange,
        inputs: Sequence[DeviceArray | None],
        outputs: Sequence[DeviceArray | None],
    ) -> Sequence[Launch]:
        """The launches of this process's part of an exchange, between fixed arrays.

        They are called in order, once per step; when the last one returns (or is passed on the
        stream), outputs are complete and inputs may be overwritten.  Partial results are
        combined in an order that only the exchange decides, so that runs repeat to the bit; an
        all-reduce gives the same bits on all devices.

        Args:
            exchange: what moves.
            inputs, outputs: an array per input and output of the exchange; None where its
                device is another process's.  An output of an all-reduce may be the array of the
                input on its device.  Only for a comm whose `CommSpec` says ``shares_memory``,
                inputs that are the same may be one array, and so may outputs, of an all-reduce
                also with the first input of their member.

        Raises:
            PlanError: see `flow_core.exchange.check_arrays`.
        """

    def sent(self) -> Mapping[DevicePair, int]:
        """Bytes that local devices have sent so far, by (from, to); none that are zero.

        Counted from what is bound and how often it was launched, not from the plan.
        """


class AgreedJob(Protocol):
    """A job whose calls are held against those in the other processes.

    Attributes:
        step: the number of its next step.
    """

    step: int

    def __call__(self, feeds: Sequence[DeviceArray]) -> None:
        """Takes note of a call and of what it feeds; called before the step, by the caller."""


class World(Protocol):
    """The processes that run one program together, each the devices that are its own.

    All of them run the same script, so all come to each meeting, in the same order.  Meetings
    may be held in one thread while another one runs a step.  A world that shares the cores of its
    hosts among its processes has an attribute ``cores``, a `flow_core.base.thread_budget.Budget`,
    the same in all processes.  One that checks that all processes run the same steps has a method
    ``agree(job, arrays, often)``, called once per job in all processes with the job's name, the
    names of the arrays that it is fed, and one of `flow_core.base.config.CHECK_FEEDS`; it returns
    an `AgreedJob`.

    Attributes:
        rank: of this process, from 0.
        size: number of processes, at least 2.
        machine: the machine of the program's placements that this process is on.
    """

    rank: int
    size: int

    @property
    def machine(self) -> int:
        """The machine that this process is on."""

    def arrange(self, machines: int) -> None:
        """Takes note of the number of machines that the program's placements speak of."""

    def owner(self, device: Device) -> int:
        """The rank of the process that has a device."""

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        """What each process says, in the order of the ranks, in all processes."""

    def broadcast(self, array: DeviceArray, root: int, what: str) -> None:
        """Fills a contiguous host array everywhere with what process ``root`` has in it."""

    def share(self, arrays: Sequence[DeviceArray], roots: Sequence[int], what: str) -> None:
        """Broadcasts the results of a step, each from its root, in the thread that runs steps."""
