"""Exchanges: the transfers between a group of devices in one boxing task, as plain data.

An exchange names its collective, so that a communication library can use a native implementation.
It also lists the blocks that move, so that any library, or copies between arrays, can perform the
exchange without knowing the collective.  In a plan, an exchange is a task of type ``boxing`` that
is identical in all processes, or describes the whole exchange by its layouts
(`flow_core.comm.described`); each process performs the part of its own devices, in plan order.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, starmap
from typing import Any

import numpy as np

from flow_core.base.alignment import ALIGNMENT
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.errors import PlanError
from flow_core.base.shapes import Shape, balanced_range, num_elements
from flow_core.comm.described import Tiled, contents, ends_of, is_regular, joined, places, present
from flow_core.ir.graph import AttrValue, TensorType
from flow_core.plan import COLLECTIVES, Buffer, Plan, Task
from flow_core.sharding.topology import Device, Devices

BOXING = "boxing"
"""The op type of exchanges, in graphs and in plans."""

LOCAL = ("slice", "zero_pad", "copy")
"""Collectives without transfers between devices."""

COMBINE: Mapping[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""The ufunc that combines partial results, by the operation of the partial SBP."""

DevicePair = tuple[Device, Device]
"""The sender and the receiver of a transfer."""


@dataclass(frozen=True, slots=True)
class Block:
    """A box that is transferred from an input to an output.

    Attributes:
        source: position of the input.
        start: the first element of the box in the input.
        target: position of the output.
        at: the first element of the box in the output.
        size: the shape of the box, never empty.
        first: whether the box is copied; otherwise it is combined with the contents of the output.
    """

    source: int
    start: Shape
    target: int
    at: Shape
    size: Shape
    first: bool = True


@dataclass(frozen=True, slots=True)
class Exchange:
    """One exchange between devices.

    Attributes:
        name: unique in the plan, the same in all processes.
        collective: one of `COLLECTIVES`.
        combine: "sum", "max" or "min".
        inputs, outputs: types of the arrays.
        senders, receivers: the device of each input and output.
        blocks: the boxes that move; blocks of one output either coincide or do not overlap.
        fills: (output, operation) of outputs that start with the operation's neutral element.
        summed: the members of an all-reduce whose inputs are one array that already holds the
            sum, on devices that share a memory.
        member_names: the names of the exchanges between the same devices that were fused into
            this one; inputs and outputs are then listed member by member.  For an exchange that
            is not fused, only its own name.
        local: the devices whose blocks are known, and gathers are made; None for all devices.
        most: the maximum number of elements that one device sends to another, if the exchange was
            made of layouts or of some blocks; a bound in the former case.
        is_regular: see `flow_core.comm.described.is_regular`.
    """

    name: str
    collective: str
    combine: str
    inputs: Sequence[TensorType]
    outputs: Sequence[TensorType]
    senders: Sequence[Device]
    receivers: Sequence[Device]
    blocks: tuple[Block, ...] = ()
    fills: tuple[tuple[int, str], ...] = ()
    member_names: tuple[str, ...] = ()
    summed: tuple[int, ...] = ()
    line: str = field(default="", compare=False)
    stream: int = field(default=0, compare=False)
    local: frozenset[Device] | None = field(default=None, compare=False)
    most: int | None = field(default=None, compare=False)
    is_regular: bool = field(default=True, compare=False)

    def __post_init__(self) -> None:
        if not self.member_names:
            object.__setattr__(self, "member_names", (self.name,))

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices of the exchange, in the same order in all processes."""
        if isinstance(self.senders, Tiled) and isinstance(self.receivers, Tiled):
            return joined(self.senders.devices, self.receivers.devices)
        return Devices(dict.fromkeys((*self.senders, *self.receivers)))

    @property
    def group(self) -> tuple[Device, ...]:
        """The devices of an all-reduce, in rank order, which is the order of summation."""
        if isinstance(self.senders, Tiled):
            return self.senders.devices
        return Devices(self.senders[: len(self.senders) // len(self.member_names)])

    @property
    def largest(self) -> TensorType:
        """The type of the largest array of the first device of each end, for messages."""
        count = len(self.member_names)
        ends = [side[:: max(1, len(side) // count)] for side in (self.inputs, self.outputs)]
        return max((*ends[0], *ends[1]), key=lambda type_: type_.nbytes)

    def most_bytes(self) -> int:
        """Return the maximum number of bytes that one device sends to another, or a bound.

        All processes compute the same number.
        """
        itemsize = self.outputs[0].dtype.itemsize
        if self.collective == "all_reduce":
            p = len(self.group)
            return -(-sum(tensor.size for tensor in self.inputs[::p]) // p) * itemsize
        if self.most is not None:
            return self.most * itemsize
        return max(self.links().values(), default=0)

    def part_of(self, local: Collection[Device]) -> Exchange:
        """Return the exchange with only those blocks that some devices send or receive."""
        if self.local is not None:
            return self
        blocks = [
            block
            for block in self.blocks
            if self.senders[block.source] in local or self.receivers[block.target] in local
        ]
        most = self.most_bytes() // max(1, self.outputs[0].dtype.itemsize)
        return replace(self, blocks=tuple(blocks), local=frozenset(local), most=most)

    def moves(self) -> Iterator[tuple[Device, Device, int, int]]:
        """Yield (from, to, bytes, member) of all transfers between devices."""
        yield from self._reduced() if self.collective == "all_reduce" else self._moved()

    def _moved(self) -> Iterator[tuple[Device, Device, int, int]]:
        each = max(1, len(self.outputs) // len(self.member_names))
        for block in self.blocks:
            sender, receiver = self.senders[block.source], self.receivers[block.target]
            if sender != receiver:
                itemsize = self.outputs[block.target].dtype.itemsize
                yield sender, receiver, num_elements(block.size) * itemsize, block.target // each

    def _reduced(self) -> Iterator[tuple[Device, Device, int, int]]:
        group = self.group
        for owner, segments in zip(group, self.chunks(), strict=True):
            for member, low, high in segments:
                nbytes = (high - low) * self.inputs[member * len(group)].dtype.itemsize
                for other in group:
                    if other != owner:
                        yield other, owner, nbytes, member
                        yield owner, other, nbytes, member

    def chunks(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """Return, for each device, the (member, start, stop) ranges of elements that it sums.

        The concatenation of all flattened members is split into balanced parts.
        """
        p = len(self.group)
        ends = [0, *accumulate(self.inputs[m * p].size for m in range(len(self.member_names)))]
        return tuple(tuple(_segments(ends, p, rank)) for rank in range(p))

    def links(self, member: int | None = None) -> dict[DevicePair, int]:
        """Return the bytes sent per link, by (from, to), for one member of a bucket or for all."""
        found: dict[DevicePair, int] = {}
        for sender, receiver, nbytes, of in self.moves():
            if member in (None, of):
                found[sender, receiver] = found.get((sender, receiver), 0) + nbytes
        return found


def _segments(ends: Sequence[int], parts: int, rank: int) -> Iterator[tuple[int, int, int]]:
    low, high = balanced_range(ends[-1], parts, rank)
    for member in range(bisect_right(ends, low) - 1, len(ends) - 1):
        offset = ends[member]
        if offset >= high:
            return
        start, stop = max(low, offset) - offset, min(high, ends[member + 1]) - offset
        if start < stop:
            yield member, start, stop


def exchange_of(
    task: Task, buffers: Sequence[Buffer], local: Collection[Device] | None = None
) -> Exchange:
    """Return the exchange of a ``boxing`` task of a plan.

    Args:
        local: the devices of which the blocks are wanted, if the task describes its exchange by
            layouts; None for all devices.
    """
    if task.attrs.get("whole"):
        return _described(task, local)
    found = make_exchange(
        task.op,
        task.attrs,
        tuple([buffers[i].type for i in task.inputs]),
        tuple([buffers[i].type for i in task.outputs]),
        tuple([buffers[i].device for i in task.inputs]),
        tuple([buffers[i].device for i in task.outputs]),
    )
    return replace(found, line=task.line, stream=task.stream)


def _described(task: Task, local: Collection[Device] | None) -> Exchange:
    attrs, found = task.attrs, contents(task.attrs, local)
    count = len(attrs["whole"][3])
    senders, receivers = (
        end * count if local is None else Tiled(end, count) for end in ends_of(attrs["whole"])
    )
    return Exchange(
        task.op, attrs["collective"], attrs["combine"], found.inputs, found.outputs,
        senders, receivers, tuple(starmap(Block, found.blocks)), found.fills,
        attrs["members"], (), task.line, task.stream, None if local is None else frozenset(local),
        found.most, is_regular(attrs),
    )  # fmt: skip


def devices_of_task(task: Task, buffers: Sequence[Buffer]) -> frozenset[Device]:
    """Return the devices of a ``boxing`` task, also those of which the plan has no buffers."""
    whole = task.attrs.get("whole")
    if whole:
        return _together(*ends_of(whole))
    return frozenset([buffers[i].device for i in (*task.inputs, *task.outputs)])


@lru_cache(maxsize=256)
def _together(senders: Devices, receivers: Devices) -> frozenset[Device]:
    return frozenset(joined(senders, receivers))


def make_exchange(
    name: str,
    attrs: Mapping[str, AttrValue],
    inputs: tuple[TensorType, ...],
    outputs: tuple[TensorType, ...],
    senders: tuple[Device, ...],
    receivers: tuple[Device, ...],
) -> Exchange:
    """Make an exchange from the attributes of a ``boxing`` op."""
    return Exchange(
        name,
        attrs["collective"],
        attrs["combine"],
        inputs,
        outputs,
        senders,
        receivers,
        tuple([Block(*row) for row in attrs["blocks"]]),
        attrs["fills"],
        attrs["members"],
        attrs.get("summed", ()),  # an attribute of tasks only, not of ops
    )


def exchanges(plan: Plan, once: bool = False) -> Iterator[Exchange]:
    """Yield the exchanges of each step of a plan, or those that run once, when it is loaded."""
    for task in plan.prologue if once else plan.tasks:
        if task.type == BOXING:
            yield exchange_of(task, plan.buffers)


def links_of(found: Iterator[Exchange]) -> dict[DevicePair, int]:
    """Return the total bytes that exchanges send per link, by (from, to)."""
    total: dict[DevicePair, int] = {}
    for exchange in found:
        for link, nbytes in exchange.links().items():
            total[link] = total.get(link, 0) + nbytes
    return total


@dataclass(slots=True)
class Steps:
    """The step counter of a comm whose launches only enqueue work.

    Attributes:
        done: the number of finished steps.
        running: whether a step is running.
    """

    done: int = 0
    running: bool = False


@dataclass(slots=True)
class Meter:
    """The bytes that an exchange sends per launch, and its number of launches.

    Attributes:
        links: bytes per launch, by (from, to).
        steps: the step counter of the plan.
        launches: the number of calls that enqueued the exchange.
        every_step: whether the exchange is part of a step; a captured graph may then replay it
            without a call.
    """

    links: Counter[DevicePair] = field(default_factory=Counter)
    steps: Steps = field(default_factory=Steps)
    launches: int = 0
    every_step: bool = False

    def count(self) -> None:
        """Count a call that enqueues the exchange."""
        self.launches += 1
        self.every_step |= self.steps.running

    @property
    def times(self) -> int:
        """The number of times the exchange has run."""
        return self.steps.done if self.every_step else self.launches


def sent_by(meters: Iterable[Meter]) -> dict[DevicePair, int]:
    """Return the bytes sent between devices so far, by (from, to), without zeros.

    >>> link = Device("gpu", 0, 0), Device("gpu", 0, 1)
    >>> meter = Meter(Counter({link: 8}))
    >>> meter.count()
    >>> meter.count()
    >>> sent_by([meter]) == {link: 16}
    True
    """
    total: Counter[DevicePair] = Counter()
    for meter in meters:
        for link, nbytes in meter.links.items():
            total[link] += nbytes * meter.times
    return {link: nbytes for link, nbytes in total.items() if nbytes}


def neutral(operation: str, dtype: DType) -> Any:
    """Return the neutral element of an operation.

    >>> from flow_core.base.dtypes import float32, int8
    >>> neutral("sum", int8), neutral("max", int8), neutral("min", float32)
    (0, -128, inf)
    """
    if operation == "sum":
        return 0
    if dtype.kind == "f":
        return float("-inf") if operation == "max" else float("inf")
    bits = 8 * dtype.itemsize
    lowest, highest = {
        "i": (-(1 << bits - 1), (1 << bits - 1) - 1), "u": (0, (1 << bits) - 1), "b": (False, True)
    }[dtype.kind]  # fmt: skip
    return lowest if operation == "max" else highest


def check_arrays(
    exchange: Exchange, local: Collection[Device], inputs: Sequence[Any], outputs: Sequence[Any]
) -> None:
    """Check the arguments of `Comm.bind`; every comm calls this first.

    Args:
        exchange: the exchange to bind.
        local: the devices of this process.
        inputs, outputs: an array per input and output; None on devices of other processes.

    Raises:
        PlanError: the collective is unknown, or an array is missing or has a wrong type or shape.
    """
    _check(
        exchange, exchange.collective in COLLECTIVES, exchange.collective, ", ".join(COLLECTIVES)
    )
    _check(exchange, exchange.combine in COMBINE, exchange.combine, ", ".join(COMBINE))
    rows = (
        ("input", exchange.inputs, exchange.senders, inputs),
        ("output", exchange.outputs, exchange.receivers, outputs),
    )
    here = frozenset(local)
    for noun, types, devices, arrays in rows:
        _check(exchange, len(arrays) == len(types), f"{len(arrays)} {noun}s", str(len(types)))
        for index, _ in present(arrays):
            found = f"an array as {noun} {index} on {devices[index]}"
            _check(exchange, devices[index] in here, found, "None: not of this process")
        for index in places(devices, here):
            where = f"{noun} {index} on {devices[index]}"
            _check_array(exchange, where, types[index], arrays[index])


def _check_array(exchange: Exchange, where: str, type_: TensorType, array: Any) -> None:
    _check(exchange, array is not None, f"no array as {where}", str(type_))
    same = tuple(array.shape) == type_.shape and array.dtype == type_.dtype.numpy
    _check(exchange, same, f"{array.dtype}{list(array.shape)} as {where}", str(type_))


def _check(exchange: Exchange, ok: bool, found: str, allowed: str) -> None:
    if not ok:
        raise PlanError(f"binding exchange {exchange.name!r}", found=found, allowed=allowed)


# ----------------------------------------------------------------------------------- objects


def pack(objects: Any) -> Any:
    """Pack tensors of variable shape into one message of bytes for another process.

    Args:
        objects: an array of arrays; an element is None if its tensor does not exist yet.

    >>> message = pack(np.array([np.arange(3, dtype=np.int8), None], object))
    >>> message.dtype, [x if x is None else x.tolist() for x in unpack(message)]
    (dtype('uint8'), [[0, 1, 2], None])
    """
    tensors = [None if x is None else np.asarray(x) for x in objects.reshape(-1)]
    rows = [None if x is None else [as_dtype(x.dtype).name, x.shape] for x in tensors]
    head = json.dumps(rows).encode()
    head += b" " * (-len(head) % ALIGNMENT)
    parts = [np.array([len(head)] + [0] * (ALIGNMENT // 8 - 1), np.int64).view(np.uint8)]
    parts.append(np.frombuffer(head, np.uint8))
    for x in tensors:
        if x is not None:
            parts.append(np.ascontiguousarray(x).reshape(-1).view(np.uint8))
            parts.append(np.zeros(-x.nbytes % ALIGNMENT, np.uint8))
    return np.concatenate(parts)


def unpack(message: Any) -> Any:
    """Unpack the tensors of a message from `pack`, as views of it, in a one-dimensional array."""
    start = ALIGNMENT + int(message[:8].view(np.int64)[0])
    rows = json.loads(message[ALIGNMENT:start].tobytes())
    found = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        if row is not None:
            dtype, shape = as_dtype(row[0]).numpy, tuple(row[1])
            stop = start + num_elements(shape) * dtype.itemsize
            found[i] = message[start:stop].view(dtype).reshape(shape)
            start = stop + -stop % ALIGNMENT
    return found
