"""Lower an exchange to phases of gathers; a gather is a target box with the parts to combine.

Both ends of a transfer derive from the exchange alone which boxes travel between which ranks, and
in which order.  The communicator (comm) only transports the boxes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import (
    COMBINE,
    DevicePair,
    Exchange,
    Launch,
    neutral,
    places,
    present,
)
from flow_core.authoring.collectives import (
    BoxRef,
    GatherPlan,
    block_gathers,
    combined_range,
    local_ranks,
    reductions,
)
from flow_core.authoring.specs import Device
from flow_core.base.arrays import Array, NumpyType
from flow_core.base.shapes import Shape

ONE_PHASE_BYTES = 16384
"""An all-reduce of at most this many bytes runs in one phase: every member sends its whole input to
all others, and each member combines all inputs."""


LOCKED_COPY_BYTES = 4096
"""Copies of at most this many bytes hold the interpreter lock while they run."""

Operand = Any
"""A host array, or a `flow_core.device.Strided` of device memory; None if another process owns the
device."""

Combine = Callable[..., object]
"""Combines two arrays into a third: a ufunc of numpy."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular region of an input or output."""

    device: Device  # that holds the box
    key: tuple[object, ...]  # identifies the box; equal in all processes
    shape: Shape
    dtype: NumpyType  # element type of the box, as a numpy dtype
    view: Any = None  # the array; None in processes that do not own the device

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * int(self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Gather:
    """A target box and the parts that are combined into it, in order; a single part is copied."""

    target: Box
    parts: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Phases:
    """An exchange lowered to gathers."""

    name: str  # of the exchange
    what: str  # the collective, its element type and its largest shape, for messages
    combine: Combine  # the ufunc that combines two parts
    fills: tuple[Launch, ...]  # launches that initialize outputs; they run first
    # Gathers; the gathers of one phase are independent of each other.
    phases: tuple[tuple[Gather, ...], ...]

    @property
    def devices(self) -> set[Device]:
        """The devices that take part in the exchange."""
        return {
            box.device for gathers in self.phases for g in gathers for box in (g.target, *g.parts)
        }


Route = tuple[int, int]
"""A pair of ranks: the sender and the receiver."""


def routes(gathers: Iterable[Gather], owner: Callable[[Device], int]) -> dict[Route, list[Box]]:
    """Return the boxes that each route sends, each once, in an order that is equal on all ranks."""
    boxes_by_route: dict[Route, dict[object, Box]] = {}
    for gather in gathers:
        receiver = owner(gather.target.device)
        for part in gather.parts:
            sender = owner(part.device)
            if sender != receiver:
                boxes_by_route.setdefault((sender, receiver), {}).setdefault(part.key, part)
    return {route: list(boxes.values()) for route, boxes in boxes_by_route.items()}


def phases_of(exchange: Exchange, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> Phases:
    """Lower an exchange of arrays; the arrays of other processes are None."""
    combine = COMBINE[exchange.combine]
    if exchange.collective == "all_reduce":
        plans = _reduced(exchange)
    else:
        plans = (tuple(block_gathers(exchange)),)
    gathers = tuple(
        tuple(_bound(exchange, plan, inputs, outputs) for plan in phase) for phase in plans
    )
    fills = tuple(_fills(exchange, outputs))
    return Phases(exchange.name, what_of(exchange), combine, fills, gathers)


def what_of(exchange: Exchange) -> str:
    """Return the collective, its element type and its largest shape, for messages."""
    return f"{exchange.collective} {exchange.largest}"


def _fills(exchange: Exchange, outputs: Sequence[Operand]) -> Iterator[Launch]:
    for index, operation in exchange.fills:
        if outputs[index] is not None:
            value = neutral(operation, exchange.outputs[index].dtype)
            yield partial(outputs[index].fill, np.array(value, outputs[index].dtype))


def _bound(
    exchange: Exchange, plan: GatherPlan, inputs: Sequence[Operand], outputs: Sequence[Operand]
) -> Gather:
    """Bind a gather plan to arrays."""
    target, *parts = (_box(exchange, ref, inputs, outputs) for ref in (plan.target, *plan.parts))
    return Gather(target, tuple(parts))


def _box(
    exchange: Exchange, ref: BoxRef, inputs: Sequence[Operand], outputs: Sequence[Operand]
) -> Box:
    array = ref.array(inputs, outputs)
    types = exchange.outputs if ref.is_output else exchange.inputs
    view = None if array is None else ref.view(array)
    return Box(ref.device(exchange), (ref,), ref.shape, types[ref.index].dtype.numpy, view)


def _reduced(exchange: Exchange) -> tuple[tuple[GatherPlan, ...], ...]:
    """Lower an all-reduce: each device combines its chunk, in rank order, and sends it to all.

    A small all-reduce becomes a single phase, which takes twice the work and half the latency.
    """
    p = len(exchange.group)
    if is_small(exchange):
        members = [(m * p, exchange.inputs[m * p].size) for m in range(len(exchange.member_names))]
        here = local_ranks(exchange)
        return (tuple([
            combined_range(m, rank, range(p) if rank in here else here, 0, size)
            for rank in range(p) for m, size in members if size
        ]),)  # fmt: skip
    chunks = list(reductions(exchange))
    copies = tuple(copy for chunk in chunks for copy in chunk.copies)
    return tuple(chunk.combine for chunk in chunks), copies


def is_small(exchange: Exchange) -> bool:
    """Return whether an all-reduce runs in one phase."""
    p = len(exchange.group)
    return p * sum(t.nbytes for t in exchange.inputs[::p]) <= ONE_PHASE_BYTES


def link_bytes(exchange: Exchange, local: Collection[Device]) -> Counter[DevicePair]:
    """Return the bytes that local devices send per launch, keyed by (sender, receiver).

    A chunk of an all-reduce counts twice: on the way to its owner and on the way back.
    """
    nbytes: Counter[DevicePair] = Counter()
    if exchange.collective != "all_reduce":
        for block in exchange.blocks:
            sender, receiver = exchange.senders[block.source], exchange.receivers[block.target]
            if sender in local and sender != receiver:
                itemsize = exchange.outputs[block.target].dtype.itemsize
                nbytes[sender, receiver] += prod(block.size) * itemsize
        return nbytes
    group, itemsize = exchange.group, exchange.inputs[0].dtype.itemsize
    p = len(group)
    base, longer = divmod(sum(t.size for t in exchange.inputs[::p]), p)
    for rank in places(group, local):
        for other, receiver in enumerate(group):
            size = 2 * base + (rank < longer) + (other < longer)
            if rank != other and size:
                nbytes[group[rank], receiver] = size * itemsize
    return nbytes


def copy_launch(target: Array, source: Array) -> Launch:
    """Return a launch that copies an array; small contiguous arrays bypass numpy's set-up cost."""
    arrays = (target, source)
    is_plain = all(a.flags.c_contiguous and not a.dtype.hasobject for a in arrays)
    if target.nbytes > LOCKED_COPY_BYTES or not is_plain:
        return partial(np.copyto, target, source)
    one, other = (array.reshape(-1).view(np.uint8).data for array in arrays)
    return partial(one.__setitem__, slice(None), other)


def in_sequence(launches: Iterable[Launch]) -> Launch:
    """Return one launch that runs several in order; a single launch is returned unchanged."""
    steps = tuple(launches)
    if len(steps) == 1:
        return steps[0]

    def launch() -> None:
        for step in steps:
            step()

    return launch


def combine_into(combine: Combine, a: Array, b: Array, out: Array) -> Launch:
    """Return a launch that combines two arrays into a third.

    A keyword takes longer, but numpy deprecates a third argument of maxima and minima.
    """
    if combine in (np.maximum, np.minimum):
        return partial(combine, a, b, out=out)
    return partial(combine, a, b, out)


def combine_launches(combine: Combine, target: Array, parts: Sequence[Array]) -> Iterator[Launch]:
    """Yield launches that combine arrays from left to right; a single array is copied.

    The target may be one of the parts.
    """
    if len(parts) == 1:
        yield copy_launch(target, parts[0])
        return
    late = any(same_address(target, part) for part in parts[2:])  # read after the target is written
    sums = np.empty(target.shape, target.dtype) if late else target
    yield combine_into(combine, parts[0], parts[1], sums)
    for part in parts[2:-1]:
        yield combine_into(combine, sums, part, sums)
    if len(parts) > 2:
        yield combine_into(combine, sums, parts[-1], target)


def same_address(one: Array, other: Array) -> bool:
    """Return whether two arrays of the same shape start at the same address."""
    ends = (array.__array_interface__["data"][0] for array in (one, other))
    return len(set(ends)) == 1


def copy_overwritten_inputs(
    exchange: Exchange, inputs: Sequence[Operand], outputs: Sequence[Operand]
) -> tuple[Sequence[Operand], list[Launch]]:
    """Copy inputs that an output of this process would overwrite too early.

    This happens in small in-place all-reduces, in which every device combines all inputs, if this
    process owns several of the devices.

    Returns:
        The inputs, some of them replaced by copies, and the launches that fill the copies.
    """
    local = {exchange.senders[i] for i, _ in present(inputs)}
    if exchange.collective != "all_reduce" or len(local) < 2 or not is_small(exchange):
        return inputs, []
    safe = list(inputs)
    copies: list[Launch] = []
    for i, (source, target) in enumerate(zip(inputs, outputs, strict=True)):
        if source is not None and same_address(source, target):
            safe[i] = np.empty_like(source)
            copies.append(partial(np.copyto, safe[i], source))
    return safe, copies
