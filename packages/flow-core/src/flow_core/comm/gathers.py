"""Gather plans: the boxes of an exchange that are copied, or combined in a fixed order.

A communicator (comm) adds the transport.  All processes derive the same plans, in the same order,
from the exchange alone, and parts are always summed in the same order, so that results are bitwise
reproducible.

Invariants: the boxes of one output either coincide or do not overlap, and boxes that coincide are
the parts of one gather; an all-reduce's reductions cover each output once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.base.shapes import Shape
from flow_core.comm.exchange import Block, Exchange
from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class BoxRef:
    """A box of an input or output of an exchange.

    Attributes:
        is_output: whether the box belongs to an output; otherwise, it belongs to an input.
        index: position of the input or output.
        start: the first element along each axis.
        is_flat: whether the box is a range of the flattened array.
    """

    is_output: bool
    index: int
    start: Shape
    shape: Shape
    is_flat: bool = False

    def device(self, exchange: Exchange) -> Device:
        return (exchange.receivers if self.is_output else exchange.senders)[self.index]

    def array(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        return (outputs if self.is_output else inputs)[self.index]

    def view(self, array: Any) -> Any:
        """Return the box as a view of a numpy array or of a `flow_core.device.Strided`."""
        window = [slice(a, a + n) for a, n in zip(self.start, self.shape, strict=True)]
        if self.is_flat:
            return array.reshape(-1)[window[0]]
        return array[(*window, ...)]  # with `...`, a 0-d array also yields a view


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """A target box and the parts that are combined in it, in order; a single part is copied."""

    target: BoxRef
    parts: tuple[BoxRef, ...]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A chunk of an all-reduce: its owner combines it, then the other devices copy the result."""

    member: int  # the member of the bucket that the chunk belongs to
    combine: GatherPlan  # the gather on the owner
    copies: tuple[GatherPlan, ...]  # one gather for each other device


def gather_plans(exchange: Exchange) -> Iterator[GatherPlan]:
    """Yield all gathers of an exchange, each after those whose results it reads."""
    if exchange.collective != "all_reduce":
        yield from block_gathers(exchange)
        return
    for reduction in reductions(exchange):
        yield reduction.combine
        yield from reduction.copies


def block_gathers(exchange: Exchange) -> Iterator[GatherPlan]:
    """Yield a gather for each box of the outputs; blocks with the same target box are combined."""
    found: dict[tuple[int, Shape, Shape], list[Block]] = {}
    for block in exchange.blocks:
        found.setdefault((block.target, block.at, block.size), []).append(block)
    for blocks in found.values():
        first = blocks[0]
        target = BoxRef(True, first.target, first.at, first.size)
        parts = [BoxRef(False, b.source, b.start, b.size) for b in blocks]
        yield GatherPlan(target, (*(() if first.first else (target,)), *parts))


def reductions(exchange: Exchange) -> Iterator[Reduction]:
    """Yield the chunks of an all-reduce, owner by owner; each chunk is summed in rank order.

    If only some devices are wanted, the chunks of other owners have the parts and copies of these.
    """
    p, here = len(exchange.group), local_ranks(exchange)
    for owner, segments in enumerate(exchange.chunks()):
        ranks = range(p) if owner in here else here
        for member, low, high in segments:
            combine = combined_range(member * p, owner, ranks, low, high)
            others = (member * p + rank for rank in ranks if rank != owner)
            copies = (GatherPlan(_range(True, i, low, high), (combine.target,)) for i in others)
            yield Reduction(member, combine, tuple(copies))


def combined_range(first: int, rank: int, ranks: Iterable[int], low: int, high: int) -> GatherPlan:
    """Return the gather that combines a range of a member of an all-reduce on one device.

    Args:
        first: the position of the member's first input and output.
        rank: the rank of the device.
        ranks: the ranks of the parts.
        low, high: the range of elements.
    """
    parts = tuple([_range(False, first + i, low, high) for i in ranks])
    return GatherPlan(_range(True, first + rank, low, high), parts)


def local_ranks(exchange: Exchange) -> Sequence[int]:
    """Return the ranks of an all-reduce whose gathers are wanted."""
    if exchange.local is None:
        return range(len(exchange.group))
    return [rank for rank, device in enumerate(exchange.group) if device in exchange.local]


def _range(is_output: bool, index: int, low: int, high: int) -> BoxRef:
    return BoxRef(is_output, index, (low,), (high - low,), is_flat=True)
