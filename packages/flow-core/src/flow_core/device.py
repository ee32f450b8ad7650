"""What hardware looks like to the runtime: Protocols only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from flow_core.exchange import Exchange

Launch = Callable[[], object]
"""Zero-argument callable that runs one bound kernel; its result is ignored."""

Array = Any
"""A device array: ``numpy.ndarray`` on the CPU, anything with shape and dtype elsewhere."""


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

    nbytes: int

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """The C-contiguous array of ``shape`` that starts at byte ``offset``."""


@runtime_checkable
class Driver(Protocol):
    """A device type's way to allocate, copy and run.  One object per device."""

    def allocate(self, nbytes: int) -> Arena:
        """One plain allocation of ``nbytes`` bytes, not initialised."""

    def stream(self, name: str) -> Stream:
        """A new stream, named for traces."""

    def copy_in(self, target: Array, source: Any) -> None:
        """Copies a host array into a device array of the same shape and dtype."""

    def copy_out(self, source: Array) -> Any:
        """A new host array with the contents of a device array."""

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """One callable that runs all launches of a stream's step in order."""

    def memory(self) -> int | None:
        """Bytes that a plan may use, None for no known limit."""


@runtime_checkable
class Comm(Protocol):
    """Devices that exchange data, some of them in other processes.

    A comm is made once per plan, by the `CommSpec` that registers it.  All processes bind the
    same exchanges in the same order, and launch them in one order.  A comm that wants devices'
    memory to be of its own kind may have a method ``arena(device, nbytes) -> Arena | None``, which
    is asked before a plan's arenas are allocated; None leaves that to the driver.

    Attributes:
        name: name of its `CommSpec`.
        devices: text forms of all devices that it joins, the same in all processes.
        local: those of this process.
    """

    name: str
    devices: tuple[str, ...]
    local: tuple[str, ...]

    def bind(
        self, exchange: Exchange, inputs: Sequence[Array | None], outputs: Sequence[Array | None]
    ) -> Sequence[Launch]:
        """The launches of this process's part of an exchange, between fixed arrays.

        They are called in order, once per step; when the last one returns (or is passed on the
        stream), outputs are complete and inputs may be overwritten.  Partial results are
        combined in an order that only the exchange decides, so that runs repeat to the bit; an
        all-reduce gives the same bits on all devices.

        Args:
            exchange: what moves.
            inputs, outputs: an array per input and output of the exchange; None where its
                device is another process's.  Only for a comm whose `CommSpec` says
                ``shares_memory``, inputs that are the same may be one array, and so may
                outputs, of an all-reduce also with the first input of their member.

        Raises:
            PlanError: see `flow_core.exchange.check_arrays`.
        """

    def sent(self) -> Mapping[tuple[str, str], int]:
        """Bytes that local devices have sent so far, by (from, to); none that are zero.

        Counted from what is bound and how often it was launched, not from the plan.
        """


class World(Protocol):
    """The processes that run one program together, each the devices that are its own.

    All of them run the same script, so all come to each meeting, in the same order.  Meetings
    may be held in one thread while another one runs a step.

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

    def owner(self, device: str) -> int:
        """The rank of the process that has a device, by its text form."""

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        """What each process says, in the order of the ranks, in all processes."""

    def broadcast(self, array: Array, root: int, what: str) -> None:
        """Fills a contiguous host array everywhere with what process ``root`` has in it."""

    def share(self, arrays: Sequence[Array], roots: Sequence[int], what: str) -> None:
        """Broadcasts the results of a step, each from its root, in the thread that runs steps."""
