"""A fake of NCCL in one Python process: threads are ranks, numpy arrays are devices.

The library really moves data, and checks what NCCL leaves to its callers: all ranks make the same
calls in the same order, with the same counts, types and operations; buffers are memory of the
communicator's device; nothing is used after an abort; groups of calls are complete.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from flow_core.device import Driver
from flow_core.sharding.topology import Device
from flow_dist.nccl.library import PRIMITIVES

NUMPY = {
    0: np.int8, 1: np.uint8, 2: np.int32, 4: np.int64, 6: np.float16, 7: np.float32,
    8: np.float64, 9: ml_dtypes.bfloat16,
}  # fmt: skip
COMBINE = {0: np.add, 2: np.maximum, 3: np.minimum}
CURRENT = threading.local()
PATIENCE = 60.0


class FakeError(Exception):
    """As the bindings' errors."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Violation(AssertionError):
    """The comm did what NCCL's callers must not do."""


# ----------------------------------------------------------------------------------- devices


@dataclass(eq=False)
class FakeGpu:
    """Memory at addresses of its own, which are no addresses of the host."""

    index: int
    place: str = ""
    blocks: list[tuple[int, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.place = self.place or f"GPU-{self.index:04d}"
        self.next = (self.index + 1) << 40

    def allocate(self, nbytes: int) -> Memory:
        address, raw = self.next, np.full(nbytes, 0xA5, np.uint8)
        self.next += (-(-nbytes // 256) + 1) * 256  # with an unused gap in between
        self.blocks.append((address, raw))
        return Memory(self, address, nbytes)

    @property
    def stream(self) -> int:
        return 0x5000 + self.index

    def bytes_at(self, address: int, nbytes: int) -> Any:
        for start, raw in self.blocks:
            if start <= address and address + nbytes <= start + raw.size:
                return raw[address - start : address - start + nbytes]
        raise Violation(f"{nbytes} bytes at {address:#x} are no memory of device {self.index}")


@dataclass(frozen=True)
class Memory:
    """An arena."""

    device: FakeGpu
    address: int
    nbytes: int

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        assert offset + prod(shape) * np.dtype(dtype).itemsize <= self.nbytes
        return Array(self.device, self.address + offset, tuple(shape), np.dtype(dtype))


@dataclass(frozen=True, eq=False)
class Array:
    """A device array."""

    device: FakeGpu
    address: int
    shape: tuple[int, ...]
    dtype: Any

    @property
    def copier(self) -> Copier:
        return Copier(self.device)

    def numpy(self) -> Any:
        nbytes = prod(self.shape) * self.dtype.itemsize
        return self.device.bytes_at(self.address, nbytes).view(self.dtype).reshape(self.shape)


def array_of(device: FakeGpu, value: Any) -> Array:
    value = np.asarray(value)
    found = device.allocate(value.nbytes).view(0, value.shape, value.dtype)
    found.numpy()[...] = value
    return found


@dataclass(frozen=True)
class FakeDriver(Driver):
    """The part of a driver that the comm kit needs."""

    device: FakeGpu

    def allocate(self, nbytes: int) -> Memory:
        return self.device.allocate(nbytes)

    def copy_in(self, target: Array, source: Any) -> None:
        target.numpy()[...] = source

    def copy_out(self, source: Array, target: Any = None) -> Any:
        if target is None:
            return source.numpy().copy()
        target[...] = source.numpy()
        return target


def box_of(box: Any) -> Any:
    """A box as numpy's view."""
    size, array = box.dtype.itemsize, box.array
    nbytes = prod(array.shape) * size
    raw = array.device.bytes_at(array.address, nbytes).view(array.dtype)
    strides = [step * size for step in box.strides]
    return np.lib.stride_tricks.as_strided(raw[box.offset :], box.shape, strides)


@dataclass(frozen=True)
class Foreign:
    """A launch by which another library queues work."""

    call: Callable[[int], object]
    device: FakeGpu
    name: str
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]

    def __call__(self) -> None:
        CURRENT.device = self.device
        self.call(self.device.stream)


@dataclass(frozen=True)
class Copier:
    """`flow_core.device.DeviceCopier` with numpy."""

    device: FakeGpu

    @property
    def place(self) -> str:
        return self.device.place

    def scratch(self, nbytes: int) -> Memory:
        return self.device.allocate(nbytes)

    def copy(self, target: Any, source: Any) -> Sequence[Any]:
        assert {target.array.device, source.array.device} == {self.device}
        return (partial(np.copyto, box_of(target), box_of(source)),) if target.size else ()

    def combine(self, operation: str, target: Any, parts: Sequence[Any]) -> Sequence[Any]:
        assert {box.array.device for box in (target, *parts)} == {self.device}
        ufunc = {"sum": np.add, "max": np.maximum, "min": np.minimum}[operation]

        def add(one: Any, other: Any) -> None:
            ufunc(box_of(one), box_of(other), out=box_of(target))

        later = [partial(add, target, part) for part in parts[2:]]  # as GPUs do: one by one
        return (partial(add, parts[0], parts[1]), *later)

    def fill(self, target: Any, value: Any) -> Sequence[Any]:
        return (partial(box_of(target).fill, np.array(value, target.dtype)),)

    def foreign(
        self,
        call: Callable[[int], object],
        name: str,
        reads: Sequence[Any],
        writes: Sequence[Any],
    ) -> Foreign:
        return Foreign(call, self.device, name, tuple(reads), tuple(writes))

    def stream(self) -> int:
        return self.device.stream

    def within(self, call: Callable[[], Any]) -> Any:
        CURRENT.device = self.device
        return call()


# ----------------------------------------------------------------------------------- library


@dataclass(eq=False)
class Operation:
    """A call."""

    name: str
    end: End
    arguments: dict[str, int]
    number: int = -1
    data: Any = None

    @property
    def agreed(self) -> tuple[Any, ...]:
        """What all ranks must say alike."""
        return (self.name, *(self.arguments.get(k) for k in ("count", "dtype", "op", "root")))


@dataclass(eq=False)
class Clique:
    """A communicator."""

    name: bytes
    size: int
    ends: dict[int, End] = field(default_factory=dict)
    collectives: dict[int, dict[int, Operation]] = field(default_factory=dict)
    mail: dict[tuple[int, int], deque[Operation]] = field(default_factory=dict)
    errors: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class End:
    """A rank's communicator."""

    clique: Clique
    rank: int
    device: FakeGpu
    count: int = 0
    state: str = "open"


class Fabric:
    """What joins the ranks.

    Attributes:
        violations: of the rules, by any rank.
        cliques: communicators, in the order of their ids.
        log: per rank, the names of the calls it made, by communicator.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self.changed = threading.Condition()
        self.cliques: dict[bytes, Clique] = {}
        self.violations: list[str] = []
        self.groups: list[list[tuple[bytes, ...]]] = []
        self._ids = itertools.count(1)

    def library(self, version: int = 23203) -> FakeNccl:
        self.groups.append([])
        return FakeNccl(self, self.groups[-1], version)

    def new_id(self) -> bytes:
        return next(self._ids).to_bytes(128, "little")

    def refuse(self, text: str) -> FakeError:
        self.violations.append(text)
        return FakeError(5, text)

    def wait(self, done: Callable[[], bool], what: Callable[[], str]) -> None:
        """Waits with ``changed`` held."""
        if not self.changed.wait_for(done, self.patience):
            raise self.refuse(what())

    def check(self) -> None:
        """All rules were kept, on all ranks; groups of calls came in orders that fit together."""
        assert not self.violations, self.violations
        for one, other in itertools.combinations(self.groups, 2):
            shared = {n for g in one for n in g} & {n for g in other for n in g}
            orders = [[n for g in groups for n in g if n in shared] for groups in (one, other)]
            assert orders[0] == orders[1], "communicators are used in different orders"


class FakeNccl:
    """`flow_dist.nccl.library.Library` of one rank."""

    name = "fake 1"
    error = (FakeError,)

    def __init__(self, fabric: Fabric, groups: list[tuple[bytes, ...]], version: int) -> None:
        self.fabric, self.groups, self.version = fabric, groups, version
        self._local = threading.local()
        self.depths: list[int] = []

    def unique_id(self) -> bytes:
        return self.fabric.new_id()

    def current(self) -> Any:
        """The current device of the thread."""
        return CURRENT.device

    def join(self, size: int, unique_id: bytes, rank: int) -> End:
        fabric, device = self.fabric, self.current()
        with fabric.changed:
            clique = fabric.cliques.setdefault(unique_id, Clique(unique_id, size))
            if len(unique_id) != 128 or clique.size != size or rank in clique.ends or rank >= size:
                raise fabric.refuse(f"joining rank {rank} of {size}")
            end = clique.ends[rank] = End(clique, rank, device)
            fabric.changed.notify_all()
            fabric.wait(lambda: len(clique.ends) == size, lambda: f"{size} ranks did not all come")
        return end

    # ------------------------------------------------------------------------------- groups

    def _pending(self) -> list[Operation]:
        if not hasattr(self._local, "pending"):
            self._local.pending, self._local.depth = [], 0
        found: list[Operation] = self._local.pending
        return found

    def group_start(self) -> None:
        self._pending()
        self._local.depth += 1
        self.depths.append(self._local.depth)

    def group_end(self) -> None:
        pending = self._pending()
        if not self._local.depth:
            raise self.fabric.refuse("a group ends that has not begun")
        self._local.depth -= 1
        if not self._local.depth:
            operations = pending[:]
            pending.clear()
            self.submit(operations)

    def submit(self, operations: Sequence[Operation]) -> None:
        """Runs a group."""
        self._run(operations)

    def primitive(self, name: str, comm: End) -> Callable[..., None]:
        return partial(self._call, name, comm)

    def _call(self, name: str, end: End, *arguments: int) -> None:
        pending = self._pending()
        *values, stream = arguments
        if stream != end.device.stream:
            raise self.fabric.refuse(f"{name} on a stream of another device")
        if end.state != "open":
            raise self.fabric.refuse(f"{name} on a communicator that is {end.state}")
        operation = Operation(name, end, dict(zip(PRIMITIVES[name], values, strict=True)))
        pending.append(operation)
        if not self._local.depth:
            pending.clear()
            self.submit([operation])

    # ------------------------------------------------------------------------------ running

    def _run(self, operations: Sequence[Operation]) -> None:
        operations = [replace(operation) for operation in operations]  # may run again
        self.groups.append(tuple(dict.fromkeys(op.end.clique.name for op in operations)))
        with self.fabric.changed:
            for operation in operations:
                self._post(operation)
            self.fabric.changed.notify_all()
            for operation in sorted(operations, key=lambda op: op.name == "send"):
                self._finish(operation)  # a sent message is removed when it is received

    def _post(self, operation: Operation) -> None:
        end, told, clique = operation.end, operation.arguments, operation.end.clique
        dtype = np.dtype(NUMPY[told["dtype"]])
        if told["count"] <= 0:
            raise self.fabric.refuse(f"{operation.name} of {told['count']} elements")
        times = clique.size if operation.name in ("reduce_scatter", "all_to_all") else 1
        gives = operation.name != "receive" and told.get("root", end.rank) == end.rank
        if gives or operation.name == "reduce":
            nbytes = told["count"] * times * dtype.itemsize
            operation.data = end.device.bytes_at(told["send"], nbytes).copy().view(dtype)
        if operation.name == "send":
            clique.mail.setdefault((end.rank, told["peer"]), deque()).append(operation)
        elif operation.name != "receive":
            operation.number, end.count = end.count, end.count + 1
            clique.collectives.setdefault(operation.number, {})[end.rank] = operation

    def _finish(self, operation: Operation) -> None:
        end, clique = operation.end, operation.end.clique
        if operation.name == "send":
            box = clique.mail[end.rank, operation.arguments["peer"]]
            self._await(operation, lambda: operation not in box)
        elif operation.name == "receive":
            self._receive(operation)
        else:
            here = clique.collectives[operation.number]
            self._await(operation, lambda: len(here) == clique.size)
            if end.state == "open":
                self._collect(operation, here)

    def _await(self, operation: Operation, done: Callable[[], bool]) -> None:
        end = operation.end

        def over() -> bool:
            return done() or end.state != "open" or bool(self.fabric.violations)

        self.fabric.wait(over, lambda: f"rank {end.rank} waits in {operation.agreed} for ever")
        if self.fabric.violations:
            raise FakeError(5, self.fabric.violations[0])

    def _receive(self, operation: Operation) -> None:
        end, told, clique = operation.end, operation.arguments, operation.end.clique
        box = clique.mail.setdefault((told["peer"], end.rank), deque())
        self._await(operation, lambda: bool(box))
        if end.state != "open":
            return
        sent = box.popleft()
        self.fabric.changed.notify_all()
        if [sent.arguments[k] for k in ("count", "dtype")] != [told["count"], told["dtype"]]:
            raise self.fabric.refuse(f"{sent.arguments} is received as {told}")
        self._write(operation, sent.data)

    def _collect(self, operation: Operation, here: dict[int, Operation]) -> None:
        said = {other.agreed for other in here.values()}
        if len(said) != 1:
            raise self.fabric.refuse(f"ranks diverge: {sorted(map(str, said))}")
        told, rank, size = operation.arguments, operation.end.rank, operation.end.clique.size
        data = [here[r].data for r in range(size)]
        name, count = operation.name, told["count"]
        if name == "all_gather":
            self._write(operation, np.concatenate(data))
        elif name == "all_to_all":
            parts = [row[rank * count : (rank + 1) * count] for row in data]
            self._write(operation, np.concatenate(parts))
        elif name == "broadcast":
            self._write(operation, data[told["root"]])
        elif name != "reduce" or told["root"] == rank:
            total = reduce(COMBINE[told["op"]], data[::-1])  # an order of its own
            mine = slice(rank * count, (rank + 1) * count)
            self._write(operation, total[mine] if name == "reduce_scatter" else total)

    def _write(self, operation: Operation, value: Any) -> None:
        raw = np.ascontiguousarray(value).view(np.uint8).reshape(-1)
        address = operation.arguments["receive"]
        operation.end.device.bytes_at(address, raw.size)[...] = raw

    # ------------------------------------------------------------------------------- errors

    def async_error(self, comm: End) -> int:
        if comm.state != "open":
            raise self.fabric.refuse(f"asking a communicator that is {comm.state}")
        return comm.clique.errors.get(comm.rank, 0)

    def last_error(self, comm: End) -> str:
        return "a cable was pulled" if self.async_error(comm) else ""

    def abort(self, comm: End) -> None:
        self._leave(comm, "aborted")

    def destroy(self, comm: End) -> None:
        self._leave(comm, "destroyed")

    def _leave(self, comm: End, state: str) -> None:
        with self.fabric.changed:
            if comm.state != "open":
                raise self.fabric.refuse(f"a communicator is {state} that is {comm.state}")
            comm.state = state
            self.fabric.changed.notify_all()


# --------------------------------------------------------------------------------- processes


class Meetings:
    """What the ranks tell each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=PATIENCE)
        self.told: list[tuple[str, bytes]] = [("", b"")] * size
        self.lock = threading.Lock()
        self.parts: dict[tuple[int, ...], Meetings] = {}

    def among(self, ranks: tuple[int, ...]) -> Meetings:
        """The meetings of some ranks."""
        with self.lock:
            return self.parts.setdefault(ranks, Meetings(len(ranks)))

    def abort(self) -> None:
        """End all waits, because a rank has failed."""
        with self.lock:
            for meetings in (self, *self.parts.values()):
                meetings.barrier.abort()


@dataclass
class FakeWorld:
    """`flow_core.device.World` of one rank, a thread."""

    rank: int
    meetings: Meetings
    machine: int = 0

    @property
    def size(self) -> int:
        return self.meetings.size

    def owner(self, device: Device) -> int:
        return device.index % self.size

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        return self._gather(self.meetings, self.rank, text, what)

    def gather_among(self, ranks: Sequence[int], text: bytes, what: str) -> tuple[bytes, ...]:
        order = tuple(sorted(ranks))
        return self._gather(self.meetings.among(order), order.index(self.rank), text, what)

    def _gather(self, meetings: Meetings, place: int, text: bytes, what: str) -> tuple[bytes, ...]:
        meetings.told[place] = what, text
        meetings.barrier.wait()
        told = tuple(meetings.told)
        meetings.barrier.wait()
        if len({what for what, _ in told}) != 1:
            raise Violation(f"ranks came to different meetings: {told}")
        return tuple(text for _, text in told)


def on_ranks(size: int, body: Callable[[FakeWorld], None]) -> None:
    """Runs a function on several ranks; raises the first error, which may have caused others."""
    meetings, errors = Meetings(size), []

    def run(rank: int) -> None:
        try:
            body(FakeWorld(rank, meetings))
        except BaseException as error:
            errors.append(error)
            meetings.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)
