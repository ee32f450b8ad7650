"""Boxing: how a tensor gets from one layout to another.

A hop makes each target device's part of parts that source devices hold, each byte taken once
from the nearest holder.  The planner looks for the cheapest sequence of hops under the link
model, by Dijkstra's algorithm over the layouts that can help: P -> B, for example, goes by way
of a split (reduce-scatter, then all-gather).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, product

from flow_core.errors import GraphError
from flow_core.sbp import (
    B,
    Broadcast,
    NdSbp,
    Partial,
    Region,
    Sbp,
    Split,
    coordinates,
    format_nd_sbp,
    intersect,
    local_region,
    region_shape,
)
from flow_core.shapes import Shape, num_elements
from flow_core.topology import Device, LinkModel, Placement


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor lies: a placement and an SBP per hierarchy dimension.

    >>> str(Layout(Placement.parse("gpu", "0:0-1"), (B,)))
    'gpu[0:0-1] B'
    """

    placement: Placement
    sbp: NdSbp

    def region(self, shape: Shape, rank: int) -> Region:
        """The part of the logical tensor that a device holds."""
        return local_region(shape, self.sbp, self.placement.hierarchy, rank)

    def partial_at(self, rank: int) -> tuple[int, ...]:
        """The device's coordinates in the dimensions that hold partial results."""
        where = coordinates(rank, self.placement.hierarchy)
        return tuple(c for c, sbp in zip(where, self.sbp, strict=True) if isinstance(sbp, Partial))

    def __str__(self) -> str:
        return f"{self.placement} {format_nd_sbp(self.sbp)}"


@dataclass(frozen=True, slots=True)
class Piece:
    """A box that one device gives to another.

    Attributes:
        source: rank in the source placement.
        region: the box in logical coordinates.
        first: whether it is copied; else it is combined with what is there.
    """

    source: int
    region: Region
    first: bool


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of boxing.

    Attributes:
        name: the collective's usual name.
        source, target: layouts.
        pieces: per target rank, the boxes that it is made of.
        combine: "sum", "max" or "min".
    """

    name: str
    source: Layout
    target: Layout
    pieces: tuple[tuple[Piece, ...], ...]
    combine: str = "sum"

    def transfers(self) -> Iterator[tuple[Device, Device, int]]:
        """(from, to, elements) for each box that crosses devices."""
        for rank, pieces in enumerate(self.pieces):
            there = self.target.placement.device(rank)
            for piece in pieces:
                here = self.source.placement.device(piece.source)
                if here != there:
                    yield here, there, num_elements(region_shape(piece.region))

    def elements(self) -> int:
        """Elements that cross devices."""
        return sum(n for _, __, n in self.transfers())

    def seconds(self, itemsize: int, links: LinkModel) -> float:
        """Predicted time: the busiest device's traffic, in or out, link by link."""
        busy: dict[tuple[Device, str], float] = {}
        for here, there, n in self.transfers():
            time = links.between(here, there).seconds(n * itemsize)
            for key in ((here, "out"), (there, "in")):
                busy[key] = busy.get(key, 0.0) + time
        return max(busy.values(), default=0.0)


def direct(shape: Shape, source: Layout, target: Layout) -> Hop | None:
    """The one hop between two layouts, None when it cannot be done in one.

    Partial results are never combined on several devices at once: that costs p - 1 times what
    combining them in parts and gathering these does.
    """
    combine = _combine(source.sbp, target.sbp)
    if combine is None or _combines_twice(source, target):
        return None
    pieces = tuple(
        tuple(_pieces(shape, source, target, rank)) for rank in range(target.placement.size)
    )
    return Hop(_name(source, target), source, target, pieces, combine)


def _combines_twice(source: Layout, target: Layout) -> bool:
    sizes = zip(target.sbp, target.placement.hierarchy, strict=True)
    replicated = [d for d, (sbp, n) in enumerate(sizes) if isinstance(sbp, Broadcast) and n > 1]
    if source.placement != target.placement:
        return bool(replicated) and holds_partial(source)
    return any(isinstance(source.sbp[d], Partial) for d in replicated)


def _combine(source: NdSbp, target: NdSbp) -> str | None:
    kinds = {s.op for s in (*source, *target) if isinstance(s, Partial)}
    if len(kinds) > 1 or ("sum" not in kinds and _makes_partial(source, target) and kinds):
        return None
    return kinds.pop() if kinds else "sum"


def _makes_partial(source: NdSbp, target: NdSbp) -> bool:
    return any(isinstance(s, Partial) for s in target) and source != target


def _pieces(shape: Shape, source: Layout, target: Layout, rank: int) -> Iterator[Piece]:
    wanted = target.region(shape, rank)
    for number, group in enumerate(_groups(source, target, rank)):
        for region, ranks in _holders(shape, source, group):
            box = intersect(region, wanted)
            if box is not None:
                nearest = _nearest(source, ranks, target.placement.device(rank), rank)
                yield Piece(nearest, box, number == 0)


def _groups(source: Layout, target: Layout, rank: int) -> list[list[int]]:
    """Source ranks by partial coordinates, as far as this target rank takes them up.

    Where the target is partial in a dimension, the source's parts or partial results of that
    dimension stay where they are when both have the same devices; else the first target device
    takes all.
    """
    where = coordinates(rank, target.placement.hierarchy)
    same = source.placement == target.placement
    groups: dict[tuple[int, ...], list[int]] = {}
    for other in range(source.placement.size):
        there = coordinates(other, source.placement.hierarchy)
        if same and any(
            isinstance(t, Partial) and not isinstance(s, Broadcast) and a != b
            for s, t, a, b in zip(source.sbp, target.sbp, there, where, strict=True)
        ):
            continue
        groups.setdefault(source.partial_at(other), []).append(other)
    for d, sbp in enumerate(target.sbp):
        kept = same and not isinstance(source.sbp[d], Broadcast)
        if isinstance(sbp, Partial) and not kept and where[d] != 0:
            return []
    return [groups[key] for key in sorted(groups)]


def _holders(
    shape: Shape, source: Layout, ranks: Iterable[int]
) -> Iterator[tuple[Region, list[int]]]:
    found: dict[Region, list[int]] = {}
    for rank in ranks:
        found.setdefault(source.region(shape, rank), []).append(rank)
    yield from found.items()


def _nearest(source: Layout, ranks: Sequence[int], device: Device, rank: int) -> int:
    """The holder to take a box from: the device itself, its machine, else in turn."""
    devices = {r: source.placement.device(r) for r in ranks}
    own = [r for r in ranks if devices[r] == device]
    close = own or [r for r in ranks if devices[r].machine == device.machine] or ranks
    return close[rank % len(close)]


_NAMES = {
    ("S", "B"): "all_gather", ("P", "S"): "reduce_scatter", ("P", "B"): "all_reduce",
    ("S", "S"): "all_to_all", ("B", "S"): "slice", ("B", "P"): "zero_pad", ("S", "P"): "zero_pad",
}  # fmt: skip


def _name(source: Layout, target: Layout) -> str:
    if source.placement != target.placement:
        return "send_recv" if target.placement.size == 1 else "scatter"
    pairs = [(a, b) for a, b in zip(source.sbp, target.sbp, strict=True) if a != b]
    return _NAMES.get((_letter(pairs[0][0]), _letter(pairs[0][1])), "copy") if pairs else "copy"


def _letter(sbp: Sbp) -> str:
    return str(sbp)[0]


class BoxingError(GraphError):
    """Two layouts between which nothing leads."""


@lru_cache(maxsize=4096)
def plan_boxing(
    shape: Shape, itemsize: int, source: Layout, target: Layout, links: LinkModel
) -> tuple[Hop, ...]:
    """The cheapest hops between two layouts; none when they are the same.

    >>> gpus = Placement.parse("gpu", "0:0-3")
    >>> from flow_core.sbp import P
    >>> hops = plan_boxing((8, 4), 4, Layout(gpus, (P,)), Layout(gpus, (B,)), LinkModel())
    >>> [hop.name for hop in hops], sum(hop.elements() for hop in hops)
    (['reduce_scatter', 'all_gather'], 192)
    """
    if source == target:
        return ()
    layouts = _candidates(shape, source, target)
    order = count()
    queue: list[tuple[float, int, int, Layout, tuple[Hop, ...]]] = [
        (0.0, 0, next(order), source, ())
    ]
    done: set[Layout] = set()
    while queue:
        cost, steps, _, layout, hops = heapq.heappop(queue)
        if layout == target:
            return hops
        if layout in done or steps == MOST_HOPS:
            continue
        done.add(layout)
        for other in layouts:
            if other in done or (holds_partial(other) and other != target):
                continue
            hop = direct(shape, layout, other)
            if hop is not None:
                # a hop costs its bytes, and a little of its own, so that fewer are preferred
                total = cost + hop.seconds(itemsize, links) + 1e-7
                heapq.heappush(queue, (total, steps + 1, next(order), other, (*hops, hop)))
    raise BoxingError(
        f"boxing a tensor of shape {shape}",
        found=f"no way from {source} to {target}",
        allowed="partial sums from anything, partial maxima and minima from their own kind",
    )


MOST_HOPS = 3


def holds_partial(layout: Layout) -> bool:
    """Whether a layout holds partial results: of no use on the way."""
    return any(isinstance(s, Partial) for s in layout.sbp)


def _candidates(shape: Shape, source: Layout, target: Layout) -> list[Layout]:
    """Source and target, and on either placement the layouts between them."""
    found = dict.fromkeys((target,))
    for layout in (source, target):
        options = [list(dict.fromkeys((a, *_others(shape, a)))) for a in layout.sbp]
        for sbp in product(*options):
            found[Layout(layout.placement, sbp)] = None
    if holds_partial(source):
        found[Layout(_first_device(target.placement), (B,))] = None
    found.pop(source, None)
    return list(found)


def _first_device(placement: Placement) -> Placement:
    return Placement(placement.device_type, placement.devices[:1])


def _others(shape: Shape, sbp: Sbp) -> Iterator[Sbp]:
    yield B
    if not isinstance(sbp, Broadcast):
        axes = sorted(range(len(shape)), key=lambda i: -shape[i])[:2]
        yield from (Split(axis) for axis in axes)


def boxing_seconds(
    shape: Shape, itemsize: int, source: Layout, target: Layout, links: LinkModel
) -> float:
    """Predicted time of the cheapest boxing; infinite when there is none."""
    try:
        hops = plan_boxing(shape, itemsize, source, target, links)
    except BoxingError:
        return float("inf")
    return sum(hop.seconds(itemsize, links) for hop in hops)
