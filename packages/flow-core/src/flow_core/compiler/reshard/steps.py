"""One step of boxing: a hop takes a tensor from one layout to another.

A hop makes each target device's part of parts that source devices hold, each byte taken once
from the nearest holder; or, as an all-reduce, has groups of devices combine what they hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul

from flow_core.base.shapes import Shape, balanced_split, num_elements
from flow_core.sharding.sbp import (
    Broadcast,
    NdSbp,
    Partial,
    Region,
    Split,
    coordinates,
    format_nd_sbp,
    intersect,
    local_region,
    region_shape,
)
from flow_core.sharding.topology import Device, LinkModel, Placement


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Where a tensor lies: a placement and an SBP per hierarchy dimension.

    >>> from flow_core.sharding.sbp import B
    >>> str(TensorLayout(Placement.parse("gpu", "0:0-1"), (B,)))
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
        return tuple([c for c, s in zip(where, self.sbp, strict=True) if isinstance(s, Partial)])

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
class ReshardStep:
    """One step of boxing.

    Attributes:
        shape: of the logical tensor.
        source, target: layouts.
        pieces: per target rank, the boxes that it is made of.
        combine: "sum", "max" or "min".
        fill: operation whose neutral element is where no box goes; None where all is covered.
        groups: ranks that all-reduce among themselves; there are no pieces then.
    """

    shape: Shape
    source: TensorLayout
    target: TensorLayout
    pieces: tuple[tuple[Piece, ...], ...]
    combine: str = "sum"
    fill: str = "sum"
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def name(self) -> str:
        """The collective's name; several with a plus sign, where groups of devices differ."""
        steps = groups_of(self)
        moving = [s for s in steps if s.crosses] or steps
        return "+".join(dict.fromkeys(s.name for s in moving)) or "copy"

    def transfers(self) -> Iterator[tuple[Device, Device, int]]:
        """(from, to, elements) for each box that crosses devices."""
        yield from _reduced(self) if self.groups else _moved(self)

    def elements(self) -> int:
        """Elements that cross devices."""
        return sum(n for _, __, n in self.transfers())

    def seconds(self, itemsize: int, links: LinkModel) -> float:
        """Predicted time: the busiest device's traffic, in or out, link by link."""
        return max(busiest(self, itemsize, links))


def busiest(hop: ReshardStep, itemsize: int, links: LinkModel) -> tuple[float, float]:
    """Predicted time of the device that sends longest, and of the one that receives longest."""
    out: dict[Device, float] = {}
    into: dict[Device, float] = {}
    times: dict[tuple[bool, int], float] = {}
    for here, there, n in hop.transfers():
        key = (here.machine == there.machine, n)
        if key not in times:
            times[key] = links.between(here, there).seconds(n * itemsize)
        time = times[key]
        out[here] = out.get(here, 0.0) + time
        into[there] = into.get(there, 0.0) + time
    return max(out.values(), default=0.0), max(into.values(), default=0.0)


def _moved(hop: ReshardStep) -> Iterator[tuple[Device, Device, int]]:
    sources, targets = _devices(hop.source.placement), _devices(hop.target.placement)
    same = hop.source.placement == hop.target.placement
    for rank, (there, pieces) in enumerate(zip(targets, hop.pieces, strict=True)):
        for piece in pieces:
            here = sources[piece.source]
            if piece.source != rank if same else here != there:
                yield here, there, num_elements(region_shape(piece.region))


def _reduced(hop: ReshardStep) -> Iterator[tuple[Device, Device, int]]:
    devices = _devices(hop.source.placement)
    for group in hop.groups:
        held = num_elements(region_shape(hop.source.region(hop.shape, group[0])))
        for owner, n in zip(group, balanced_split(held, len(group)), strict=True):
            for other in group if n else ():
                if other != owner:
                    yield devices[other], devices[owner], n
                    yield devices[owner], devices[other], n


@lru_cache(maxsize=1024)
def _devices(placement: Placement) -> tuple[Device, ...]:
    return tuple(placement.device(rank) for rank in range(placement.size))


# ---------------------------------------------------------------------------------- making hops


def direct(shape: Shape, source: TensorLayout, target: TensorLayout) -> ReshardStep | None:
    """The one hop between two layouts, None when it cannot be done in one.

    Partial results are never combined on several devices at once, unless by an all-reduce: that
    costs p - 1 times what combining them in parts and gathering these does.  Between device
    types boxes are only copied.
    """
    kept = _kept(source, target)
    combined = [d for d, s in enumerate(source.sbp) if isinstance(s, Partial) and d not in kept]
    made = [d for d, s in enumerate(target.sbp) if isinstance(s, Partial) and d not in kept]
    combine = _one_operation(source.sbp, combined)
    fill = _one_operation(target.sbp, made)
    if combine is None or fill is None or not _in_order(source.sbp, combined, kept):
        return None
    groups = _all_reduced(source, target, combined) if combined else ()
    if groups:
        return ReshardStep(shape, source, target, (), combine, fill, groups)
    if combined and _cannot_combine(source, target):
        return None
    pieces = _all_pieces(shape, source, target, kept)
    return ReshardStep(shape, source, target, pieces, combine, fill)


def _kept(source: TensorLayout, target: TensorLayout) -> frozenset[int]:
    """Dimensions whose partial results stay where they are."""
    if source.placement != target.placement:
        return frozenset()
    pairs = enumerate(zip(source.sbp, target.sbp, strict=True))
    return frozenset([d for d, (s, t) in pairs if s == t and isinstance(s, Partial)])


def _one_operation(sbp: NdSbp, dimensions: Sequence[int]) -> str | None:
    """The operation of all these partial dimensions; None when they differ."""
    found = {s.op for d in dimensions if isinstance(s := sbp[d], Partial)}
    return (found or {"sum"}).pop() if len(found) <= 1 else None


def _in_order(sbp: NdSbp, combined: Sequence[int], kept: frozenset[int]) -> bool:
    """Whether inner dimensions are combined before outer ones of another operation."""
    return all(sbp[d] == sbp[k] for d in combined for k in kept if k > d)


def _cannot_combine(source: TensorLayout, target: TensorLayout) -> bool:
    if source.placement.device_type != target.placement.device_type:
        return True
    sizes = zip(target.sbp, target.placement.hierarchy, strict=True)
    repeated = [d for d, (s, n) in enumerate(sizes) if isinstance(s, Broadcast) and n > 1]
    if source.placement != target.placement:
        return bool(repeated)
    return any(isinstance(source.sbp[d], Partial) for d in repeated)


def _all_reduced(
    source: TensorLayout, target: TensorLayout, combined: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """The groups of an all-reduce: partial becomes broadcast, all else stays as it is."""
    if source.placement != target.placement:
        return ()
    for d, (s, t) in enumerate(zip(source.sbp, target.sbp, strict=True)):
        if not (isinstance(t, Broadcast) if d in combined else s == t):
            return ()
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(source.placement.size):
        where = coordinates(rank, source.placement.hierarchy)
        rest = tuple([c for d, c in enumerate(where) if d not in combined])
        found.setdefault(rest, []).append(rank)
    groups = tuple(map(tuple, found.values()))
    return groups if len(groups[0]) > 1 else ()


def _all_pieces(
    shape: Shape, source: TensorLayout, target: TensorLayout, kept: frozenset[int]
) -> tuple[tuple[Piece, ...], ...]:
    held = _regions(shape, source)
    wanted = _regions(shape, target)
    groups = _Groups(source, target, kept, held)
    return tuple(
        [
            tuple(_pieces(wanted[rank], groups.of(rank), source, target, rank))
            for rank in range(target.placement.size)
        ]
    )


@lru_cache(maxsize=4096)
def _regions(shape: Shape, layout: TensorLayout) -> tuple[Region, ...]:
    return tuple([layout.region(shape, rank) for rank in range(layout.placement.size)])


def _pieces(
    wanted: Region,
    groups: Sequence[Holders],
    source: TensorLayout,
    target: TensorLayout,
    rank: int,
) -> Iterator[Piece]:
    for number, holders in enumerate(groups):
        for region, ranks in holders.items():
            box = intersect(region, wanted)
            if box is not None:
                yield Piece(_nearest(source, target, ranks, rank), box, number == 0)


def _nearest(source: TensorLayout, target: TensorLayout, ranks: Sequence[int], rank: int) -> int:
    """The holder to take a box from: the device itself, its machine, else in turn."""
    if len(ranks) == 1:
        return ranks[0]
    devices, device = _devices(source.placement), _devices(target.placement)[rank]
    own = [r for r in ranks if devices[r] == device]
    close = own or [r for r in ranks if devices[r].machine == device.machine] or ranks
    return close[rank % len(close)]


Holders = Mapping[Region, Sequence[int]]
"""The source ranks of a group that hold each region."""


class _Groups:
    """Which source ranks a target rank takes up: in groups, by their partial coordinates.

    Where the target is partial, partial results and parts of the same dimension stay on their
    devices if these are the same; a copy stays on all if combining copies gives the same; else
    the first device of the dimension takes all.
    """

    def __init__(
        self,
        source: TensorLayout,
        target: TensorLayout,
        kept: frozenset[int],
        held: Sequence[Region],
    ) -> None:
        self._held = held
        self._known: dict[tuple[int, ...], list[Holders]] = {}
        same = source.placement == target.placement
        self._source, self._hierarchy = source, target.placement.hierarchy
        self._own: list[int] = []
        self._first: list[int] = []
        for d, t in enumerate(target.sbp):
            if not isinstance(t, Partial):
                continue
            if d in kept or (same and isinstance(source.sbp[d], Split)):
                self._own.append(d)
            elif not (same and isinstance(source.sbp[d], Broadcast) and t.op != "sum"):
                self._first.append(d)
        size = source.placement.size
        self._where = [coordinates(r, source.placement.hierarchy) for r in range(size)]
        self._partial = [source.partial_at(r) for r in range(size)]

    def of(self, rank: int) -> list[Holders]:
        where = coordinates(rank, self._hierarchy)
        if any(where[d] for d in self._first):
            return []
        own = tuple([where[d] for d in self._own])
        if own not in self._known:
            self._known[own] = self._made(own)
        return self._known[own]

    def _made(self, own: tuple[int, ...]) -> list[Holders]:
        """The groups of all target ranks with these coordinates."""
        found: dict[tuple[int, ...], dict[Region, list[int]]] = {}
        for other, (there, key) in enumerate(zip(self._where, self._partial, strict=True)):
            if own == tuple([there[d] for d in self._own]):
                found.setdefault(key, {}).setdefault(self._held[other], []).append(other)
        return [found[key] for key in sorted(found)]


# -------------------------------------------------------------- hierarchies of the same devices


def aligned(
    shape: Shape, source: TensorLayout, target: TensorLayout
) -> tuple[TensorLayout, TensorLayout]:
    """The same layouts over one hierarchy, where both have the same devices and it exists.

    >>> from flow_core.sharding.sbp import B, P
    >>> flat = TensorLayout(Placement.parse("gpu", "0:0-3"), (P,))
    >>> grid = TensorLayout(Placement.parse("gpu", "0:0-3", (2, 2)), (P, B))
    >>> [str(layout) for layout in aligned((8,), flat, grid)]
    ['gpu[0:0-3 as 2x2] (P, P)', 'gpu[0:0-3 as 2x2] (P, B)']
    """
    a, b = source.placement, target.placement
    if a == b or (a.device_type, a.devices) != (b.device_type, b.devices):
        return source, target
    if a.size == 1:  # one device holds all, whatever it is called
        return target, target
    hierarchy = _common(a.hierarchy, b.hierarchy)
    if not hierarchy:
        return source, target
    fine = _refined(shape, source, hierarchy), _refined(shape, target, hierarchy)
    return (fine[0], fine[1]) if fine[0] and fine[1] else (source, target)


def _common(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The coarsest hierarchy that divides both; empty when there is none."""
    steps = sorted({*accumulate(a, mul), *accumulate(b, mul)} - {1})
    ratios = [divmod(n, m) for m, n in zip([1, *steps], steps, strict=False)]
    return () if any(rest for _, rest in ratios) else tuple([q for q, _ in ratios])


def _refined(shape: Shape, layout: TensorLayout, hierarchy: tuple[int, ...]) -> TensorLayout | None:
    """The same layout over a finer hierarchy; None when its splits do not nest like that."""
    old = layout.placement
    sbp, parts, left = [], iter(zip(old.hierarchy, layout.sbp, strict=True)), 1
    current = layout.sbp[0]
    for size in hierarchy:
        while left == 1:
            left, current = next(parts, (size, current))
        sbp.append(current)
        left //= size
    fine = TensorLayout(Placement(old.device_type, old.devices, hierarchy), tuple(sbp))
    return fine if _regions(shape, fine) == _regions(shape, layout) else None


# -------------------------------------------------------------------- hops as exchanges of groups


@dataclass(frozen=True, slots=True)
class Group:
    """A group of devices of a hop that exchange boxes among themselves.

    Attributes:
        name: the collective's name.
        sources, targets: ranks in source and target placement.
        crosses: whether anything goes from device to device.
    """

    name: str
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    crosses: bool


def groups_of(hop: ReshardStep) -> list[Group]:
    """The groups of a hop.  Targets whose part is there already are in none."""
    if hop.groups:
        return [Group("all_reduce", g, g, True) for g in hop.groups]
    made = [r for r in range(len(hop.pieces)) if not is_there(hop, r)]
    found: dict[Device, list[int]] = {}
    owner = _components(hop, made)
    devices = _devices(hop.target.placement)
    for rank in made:
        found.setdefault(owner[devices[rank]], []).append(rank)
    return [_group(hop, targets) for targets in found.values()]


def is_there(hop: ReshardStep, rank: int) -> bool:
    """Whether a target device holds its part already, as it is."""
    if hop.groups or len(hop.pieces[rank]) != 1:
        return False
    (piece,) = hop.pieces[rank]
    here = hop.source.placement.device(piece.source)
    region = hop.target.region(hop.shape, rank)
    held = hop.source.region(hop.shape, piece.source)
    return here == hop.target.placement.device(rank) and piece.region == region == held


def _components(hop: ReshardStep, made: Sequence[int]) -> dict[Device, Device]:
    """For each device a representative of those that it exchanges boxes with, over others too."""
    parent: dict[Device, Device] = {}

    def find(device: Device) -> Device:
        while parent.setdefault(device, device) != device:
            device = parent[device]
        return device

    sources, targets = _devices(hop.source.placement), _devices(hop.target.placement)
    for rank in made:
        root = find(targets[rank])
        for piece in hop.pieces[rank]:
            parent[find(sources[piece.source])] = root
            root = find(root)
    return {device: find(device) for device in parent}


def _group(hop: ReshardStep, targets: Sequence[int]) -> Group:
    sources = dict.fromkeys(p.source for t in targets for p in hop.pieces[t])
    here, there = _devices(hop.source.placement), _devices(hop.target.placement)
    crosses = any(here[p.source] != there[t] for t in targets for p in hop.pieces[t])
    return Group(_name(hop, targets, crosses), tuple(sources), tuple(targets), crosses)


def _name(hop: ReshardStep, targets: Sequence[int], crosses: bool) -> str:
    if not crosses:
        return _local_name(hop, targets)
    types = hop.source.placement.device_type, hop.target.placement.device_type
    if types[0] != types[1]:
        return "copy_h2d" if types[0] == "cpu" else "copy_d2h" if types[1] == "cpu" else "copy_d2d"
    pieces = [p for t in targets for p in hop.pieces[t]]
    if any(not p.first for p in pieces):
        return "reduce" if len(targets) == 1 else "reduce_scatter"
    sources = {p.source for p in pieces}
    if len(sources) == 1:
        same = len({p.region for p in pieces}) == 1
        return "send_recv" if len(targets) == 1 else "broadcast" if same else "scatter"
    if len(targets) == 1:
        return "gather"
    return "all_gather" if _is_all_gather(hop, targets) else "all_to_all"


def _local_name(hop: ReshardStep, targets: Sequence[int]) -> str:
    if any(not covers(hop, t) for t in targets):
        return "zero_pad"
    held = _regions(hop.shape, hop.source)
    cut = any(p.region != held[p.source] for t in targets for p in hop.pieces[t])
    return "slice" if cut else "copy"


def _is_all_gather(hop: ReshardStep, targets: Sequence[int]) -> bool:
    """Whether every source gives one box to all other members."""
    here, there = _devices(hop.source.placement), _devices(hop.target.placement)
    given = Counter((p.source, p.region) for t in targets for p in hop.pieces[t])
    remote = Counter(p.source for t in targets for p in hop.pieces[t] if here[p.source] != there[t])
    members = {*(there[t] for t in targets), *(here[s] for s, _ in given)}
    one_each = len(given) == len({s for s, _ in given})
    return one_each and all(n == len(members) - 1 for n in remote.values())


def covers(hop: ReshardStep, rank: int) -> bool:
    """Whether the copied boxes, which do not overlap, fill a target's part."""
    filled = sum(num_elements(region_shape(p.region)) for p in hop.pieces[rank] if p.first)
    return filled == num_elements(region_shape(hop.target.region(hop.shape, rank)))


def holds_partial(layout: TensorLayout) -> bool:
    """Whether a layout holds partial results."""
    return any(isinstance(s, Partial) for s in layout.sbp)
