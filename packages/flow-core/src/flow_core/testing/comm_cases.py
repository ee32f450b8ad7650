"""Exchanges for `flow_core.testing.comms.CommKit`: all collectives on various parts.

The parts are of equal size, of different sizes, or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from flow_core.base.dtypes import DType
from flow_core.base.shapes import Shape
from flow_core.comm.exchange import Block, Exchange
from flow_core.ir.graph import tensor_type
from flow_core.sharding.topology import Device

Ends = Sequence[tuple[Device, Shape]]
"""The device and shape of each input or output."""


def exchange_between(
    name: str,
    collective: str,
    inputs: Ends,
    outputs: Ends,
    blocks: Sequence[Block] = (),
    *,
    dtype: DType,
    combine: str = "sum",
    fills: tuple[tuple[int, str], ...] = (),
    members: tuple[str, ...] = (),
) -> Exchange:
    """Return an exchange between arrays of one element type, without empty blocks."""
    return Exchange(
        name,
        collective,
        combine,
        tuple(tensor_type(shape, dtype) for _, shape in inputs),
        tuple(tensor_type(shape, dtype) for _, shape in outputs),
        tuple(device for device, _ in inputs),
        tuple(device for device, _ in outputs),
        tuple(b for b in blocks if prod(b.size)),
        fills,
        members,
    )


def _offsets(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:i]) for i in range(len(counts))]


Draft = Callable[[Sequence[Device], DType], Exchange]
Groups = tuple[Sequence[Device], ...]


def _all(devices: Sequence[Device]) -> Groups:
    return (devices[:4],)


def _some(devices: Sequence[Device]) -> Groups:
    """Return one group of two of the devices, in another order."""
    return ((devices[-1], devices[(len(devices) - 1) // 2]),)


def _pairs(devices: Sequence[Device]) -> Groups:
    """Return two groups of devices, whose exchanges run at the same time."""
    return devices[0:4:2], devices[1:4:2]


@dataclass(frozen=True, slots=True)
class Case:
    """Exchanges of the same kind in one or several groups of devices."""

    draft: Draft  # returns the exchange of a group of devices
    groups: Callable[[Sequence[Device]], Groups] = _all  # returns the groups, given all devices
    least: int = 1  # the smallest number of devices for the case

    def __call__(self, devices: Sequence[Device], dtype: DType) -> list[Exchange]:
        """Return the exchanges between the given devices."""
        found = [self.draft(group, dtype) for group in self.groups(devices)]
        if len(found) == 1:
            return found
        return [replace(exchange, name=f"group{i}") for i, exchange in enumerate(found)]


def all_gather(counts: Sequence[int]) -> Draft:
    """Return an exchange in which every device receives the concatenated parts of all devices."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        sizes = counts[: len(group)]
        given = [(d, (n,)) for d, n in zip(group, sizes, strict=True)]
        made = [(d, (sum(sizes),)) for d in group]
        blocks = [
            Block(s, (0,), t, (at,), (n,))
            for s, (at, n) in enumerate(zip(_offsets(sizes), sizes, strict=True))
            for t in range(len(group))
        ]
        return exchange_between("all_gather", "all_gather", given, made, blocks, dtype=dtype)

    return draft


def reduce_scatter(counts: Sequence[int], combine: str = "sum") -> Draft:
    """Return an exchange in which every device receives a part of the reduced result."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        sizes = counts[: len(group)]
        given = [(d, (sum(sizes),)) for d in group]
        made = [(d, (n,)) for d, n in zip(group, sizes, strict=True)]
        blocks = [
            Block(s, (at,), t, (0,), (n,), s == 0)
            for t, (at, n) in enumerate(zip(_offsets(sizes), sizes, strict=True))
            for s in range(len(group))
        ]
        name = "reduce_scatter"
        return exchange_between(name, name, given, made, blocks, dtype=dtype, combine=combine)

    return draft


def all_reduce(*shapes: Shape, combine: str = "sum") -> Draft:
    """Return an exchange in which every device receives a reduced result for each shape."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        ends = [(d, shape) for shape in shapes for d in group]
        members = tuple(f"member{i}" for i in range(len(shapes))) if len(shapes) > 1 else ()
        return exchange_between(
            "all_reduce", "all_reduce", ends, ends, dtype=dtype, combine=combine, members=members
        )

    return draft


def all_to_all(counts: Callable[[int, int], int]) -> Draft:
    """Return an exchange in which device s sends ``counts(s, t)`` elements to device t."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        ranks = range(len(group))
        sent = [[counts(s, t) for t in ranks] for s in ranks]
        received = [[counts(s, t) for s in ranks] for t in ranks]
        blocks = [
            Block(s, (sum(sent[s][:t]),), t, (sum(received[t][:s]),), (sent[s][t],))
            for s in ranks
            for t in ranks
        ]
        given = [(d, (sum(row),)) for d, row in zip(group, sent, strict=True)]
        made = [(d, (sum(row),)) for d, row in zip(group, received, strict=True)]
        return exchange_between("all_to_all", "all_to_all", given, made, blocks, dtype=dtype)

    return draft


def gather(root: int, counts: Sequence[int]) -> Draft:
    """Return an exchange in which the root receives all parts."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        whole, to = all_gather(counts)(group, dtype), root % len(group)
        blocks = [replace(b, target=0) for b in whole.blocks if b.target == to]
        given = list(zip(group, [t.shape for t in whole.inputs], strict=True))
        made = [(group[to], whole.outputs[to].shape)]
        return exchange_between("gather", "gather", given, made, blocks, dtype=dtype)

    return draft


def scatter(root: int, counts: Sequence[int]) -> Draft:
    """Return an exchange in which the root sends a part to each device."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        sizes = counts[: len(group)]
        given = [(group[root % len(group)], (sum(sizes),))]
        made = [(d, (n,)) for d, n in zip(group, sizes, strict=True)]
        blocks = [
            Block(0, (at,), t, (0,), (n,))
            for t, (at, n) in enumerate(zip(_offsets(sizes), sizes, strict=True))
        ]
        return exchange_between("scatter", "scatter", given, made, blocks, dtype=dtype)

    return draft


def broadcast(root: int, shape: Shape) -> Draft:
    """Return an exchange in which the root sends the same array to all devices."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        zero, of = (0,) * len(shape), root % len(group)
        made = [(d, shape) for i, d in enumerate(group) if i != of]
        blocks = [Block(0, zero, t, zero, shape) for t in range(len(made))]
        return exchange_between(
            "broadcast", "broadcast", [(group[of], shape)], made, blocks, dtype=dtype
        )

    return draft


def reduce_to(root: int, shape: Shape, combine: str = "sum") -> Draft:
    """Return an exchange in which the root receives the reduction over all devices."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        zero = (0,) * len(shape)
        given = [(d, shape) for d in group]
        blocks = [Block(s, zero, 0, zero, shape, s == 0) for s in range(len(group))]
        made = [(group[root % len(group)], shape)]
        return exchange_between(
            "reduce", "reduce", given, made, blocks, dtype=dtype, combine=combine
        )

    return draft


def send_recv(group: Sequence[Device], dtype: DType) -> Exchange:
    """Return an exchange in which the first device sends its array to the second device."""
    ends, block = ([(group[0], (4,))], [(group[1], (4,))]), Block(0, (0,), 0, (0,), (4,))
    return exchange_between("send_recv", "send_recv", *ends, [block], dtype=dtype)


def columns(group: Sequence[Device], dtype: DType) -> Exchange:
    """Return an all-gather on axis 1, whose blocks are not contiguous in the outputs."""
    widths = [2 + i % 2 for i in range(len(group))]
    given = [(d, (3, n)) for d, n in zip(group, widths, strict=True)]
    made = [(d, (3, sum(widths))) for d in group]
    blocks = [
        Block(s, (0, 0), t, (0, at), (3, n))
        for s, (at, n) in enumerate(zip(_offsets(widths), widths, strict=True))
        for t in range(len(group))
    ]
    return exchange_between("columns", "all_gather", given, made, blocks, dtype=dtype)


def transpose(group: Sequence[Device], dtype: DType) -> Exchange:
    """Return an exchange from rows to columns, whose blocks are not contiguous in the inputs."""
    p = len(group)
    given, made = [(d, (2, 3 * p)) for d in group], [(d, (2 * p, 3)) for d in group]
    blocks = [Block(s, (0, 3 * t), t, (2 * s, 0), (2, 3)) for s in range(p) for t in range(p)]
    return exchange_between("transpose", "all_to_all", given, made, blocks, dtype=dtype)


def reduced_columns(group: Sequence[Device], dtype: DType) -> Exchange:
    """Return a reduce-scatter on axis 1."""
    p = len(group)
    given, made = [(d, (3, 2 * p)) for d in group], [(d, (3, 2)) for d in group]
    blocks = [Block(s, (0, 2 * t), t, (0, 0), (3, 2), s == 0) for t in range(p) for s in range(p)]
    return exchange_between("reduced_columns", "reduce_scatter", given, made, blocks, dtype=dtype)


def pads(operation: str) -> Draft:
    """Return a copy to a larger output whose rest is filled with a neutral element."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        ends = [(group[0], (2, 3))], [(group[0], (4, 3))]
        block, fill = Block(0, (0, 0), 0, (1, 0), (2, 3)), ((0, operation),)
        return exchange_between(
            "pad", "zero_pad", *ends, [block], dtype=dtype, combine=operation, fills=fill
        )

    return draft


def _nothing(group: Sequence[Device], dtype: DType) -> Exchange:
    """Return an exchange that only writes neutral elements."""
    return exchange_between(
        "nothing", "zero_pad", [], [(group[-1], (3,))], dtype=dtype, fills=((0, "sum"),)
    )


def _slice(group: Sequence[Device], dtype: DType) -> Exchange:
    ends = [(group[-1], (5, 4))], [(group[-1], (2, 4))]
    block = Block(0, (3, 0), 0, (0, 0), (2, 4))
    return exchange_between("slice", "slice", *ends, [block], dtype=dtype)


UNEVEN, EVEN, HOLES, EMPTY = (5, 3, 4, 2), (3, 3, 3, 3), (4, 0, 0, 1), (0, 0, 0, 0)


def irregular(s: int, t: int) -> int:
    """Return a number of elements for device s to send to t, which differs between the pairs."""
    return (3 * s + 5 * t) % 4


CASES: dict[str, Case] = {
    "all_gather": Case(all_gather(EVEN)),
    "all_gather_uneven": Case(all_gather(UNEVEN)),
    "all_gather_holes": Case(all_gather(HOLES)),
    "all_gather_empty": Case(all_gather(EMPTY)),
    "all_gather_columns": Case(columns),
    "all_gather_some": Case(all_gather((2, 3)), _some, 2),
    "all_gather_pairs": Case(all_gather((2, 3)), _pairs, 4),
    "reduce_scatter": Case(reduce_scatter(EVEN)),
    "reduce_scatter_uneven": Case(reduce_scatter(UNEVEN)),
    "reduce_scatter_holes": Case(reduce_scatter(HOLES, "max")),
    "reduce_scatter_columns": Case(reduced_columns),
    "reduce_scatter_pairs": Case(reduce_scatter((3, 2), "min"), _pairs, 4),
    "all_reduce": Case(all_reduce((4, 3))),
    "all_reduce_uneven": Case(all_reduce((3, 3))),
    "all_reduce_few": Case(all_reduce((2,), combine="max")),
    "all_reduce_scalar": Case(all_reduce((), combine="min")),
    "all_reduce_empty": Case(all_reduce((0, 3))),
    "all_reduce_bucket": Case(all_reduce((3,), (2, 2), (), (0,), (5,))),
    "all_reduce_some": Case(all_reduce((5,)), _some, 2),
    "all_reduce_pairs": Case(all_reduce((5,), (3,)), _pairs, 4),
    "all_to_all": Case(all_to_all(lambda s, t: 2)),
    "all_to_all_uneven": Case(all_to_all(irregular)),
    "all_to_all_transpose": Case(transpose),
    "all_to_all_pairs": Case(all_to_all(irregular), _pairs, 4),
    "gather": Case(gather(2, UNEVEN)),
    "gather_holes": Case(gather(0, HOLES)),
    "scatter": Case(scatter(1, UNEVEN)),
    "scatter_holes": Case(scatter(0, HOLES)),
    "broadcast": Case(broadcast(3, (2, 3))),
    "broadcast_scalar": Case(broadcast(0, ())),
    "broadcast_pairs": Case(broadcast(1, (4,)), _pairs, 4),
    "reduce": Case(reduce_to(2, (3, 2))),
    "reduce_max": Case(reduce_to(0, (5,), "max")),
    "send_recv": Case(send_recv, _some, 2),
    "slice": Case(_slice),
    "pad_sum": Case(pads("sum")),
    "pad_max": Case(pads("max")),
    "pad_min": Case(pads("min")),
    "pad_nothing": Case(_nothing),
}
"""Cases of every collective: even, uneven and empty parts, parts that are not contiguous, and
groups of some of the devices."""
