"""Reshard steps: one collective, or several concurrent ones, between two layouts of a tensor.

A step either assembles each target device's part from pieces that source devices hold, or does an
all-reduce within each of several groups of devices.

Invariants: the pieces of a target rank lie in the region of that rank; the pieces that are copied
(``first``) do not overlap, and come before the pieces that are combined; no two groups have a
device in common.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from flow_core.base.shapes import Shape, num_elements
from flow_core.comm.described import is_covered
from flow_core.comm.pieces import Piece, listed_pieces
from flow_core.comm.roles import own_parts
from flow_core.compiler.reshard.groups import (
    Even,
    Group,
    Groups,
    Own,
    Reduced,
    nearest,
    passed_on,
    rooted,
)
from flow_core.compiler.reshard.traffic import Factors, Listed, Outer
from flow_core.costs.collectives import collective_seconds
from flow_core.costs.links import LinkModel
from flow_core.sharding.hashing import HashedOnce
from flow_core.sharding.layouts import TensorLayout, holds_partial
from flow_core.sharding.sbp import Broadcast, Partial, Split, region_shape
from flow_core.sharding.topology import Device, Devices, devices_of


@dataclass(frozen=True, slots=True)
class ReshardStep(HashedOnce):
    """One step of boxing."""

    shape: Shape  # of the logical tensor
    source: TensorLayout  # the layout before the step
    target: TensorLayout  # the layout after the step
    # The pieces of each target rank, computed on first use; empty for an all-reduce.
    pieces: Sequence[tuple[Piece, ...]] = field(compare=False, repr=False)
    combine: str = "sum"  # the operation that combines pieces: "sum", "max" or "min"
    fill: str = "sum"  # the operation whose neutral element fills the elements that no piece covers
    groups: Sequence[tuple[int, ...]] = ()  # of ranks of an all-reduce; empty for other steps
    __hash__ = HashedOnce.__hash__

    @property
    def name(self) -> str:
        """The name of the step's collective, or its collectives' names joined by "+"."""
        return _name_of(self)

    def transfers(self) -> Iterator[tuple[Device, Device, int]]:
        """Yield (from, to, elements) for each piece that crosses devices."""
        yield from _reduced(self) if self.groups else _moved(self)

    def elements(self) -> int:
        """Return the number of elements that cross devices."""
        return _elements(self)

    def seconds(self, itemsize: int, links: LinkModel) -> float:
        """Return the predicted time with the fastest algorithm; see `flow_core.costs.collectives`.

        The direct algorithm takes as long as the busiest device sends or receives its traffic.
        """
        return _seconds(self, itemsize, links)


@lru_cache(maxsize=8192)
def _name_of(step: ReshardStep) -> str:
    return "+".join(_found_groups(step).names()) or "copy"


@lru_cache(maxsize=8192)
def _elements(step: ReshardStep) -> int:
    products = _products(step)
    if products is not None:
        return sum(product.elements() for product in products)
    return sum(n for _, __, n in step.transfers())


@lru_cache(maxsize=8192)
def _seconds(step: ReshardStep, itemsize: int, links: LinkModel) -> float:
    direct = max(busiest(step, itemsize, links))
    return min(direct, _by_algorithm(step, itemsize, links)) if direct else 0.0


def _by_algorithm(step: ReshardStep, itemsize: int, links: LinkModel) -> float:
    """Return the time of a collective by the fastest algorithm other than the direct one."""
    devices, size = devices_of(step.source.placement), num_elements(step.shape)
    if step.groups:
        held = num_elements(region_shape(step.source.region(step.shape, 0)))
        found = {
            collective_seconds(
                "all_reduce", _members(devices, group), held * itemsize, links, flows
            )
            for group, flows in zip(step.groups, _flows(step), strict=True)
        }
        return max(found)
    form = even_form(step)
    if form:
        joined = max(_filled(step.shape, step.source), _filled(step.shape, step.target))
        return collective_seconds(
            form, devices if joined == len(devices) else devices[:joined], size * itemsize, links
        )
    name = _rooted(step)
    members = _distinct((*devices, *devices_of(step.target.placement))) if name else ()
    return collective_seconds(name, members, size * itemsize, links)


def _rooted(step: ReshardStep) -> str:
    """Return the collective of a step from or to a single device; empty for other steps."""
    for one, other, names in (
        (step.source, step.target, {Broadcast: "broadcast", Split: "scatter"}),
        (step.target, step.source, {Partial: "reduce", Split: "gather"}),
    ):
        kinds = set(map(type, other.sbp))
        if one.placement.size == 1 and not holds_partial(one) and len(kinds) == 1:
            return names.get(kinds.pop(), "")
    return ""


def _distinct(devices: Iterable[Device]) -> list[Device]:
    return list(dict.fromkeys(devices))


def _flows(step: ReshardStep) -> list[int]:
    """Return, for each group, the number of groups with a member on the machine of its first."""
    devices = devices_of(step.source.placement)
    machines = [{devices[rank].machine for rank in group} for group in step.groups]
    count = Counter(machine for found in machines for machine in found)
    return [count[devices[group[0]].machine] for group in step.groups]


@lru_cache(maxsize=8192)
def busiest(step: ReshardStep, itemsize: int, links: LinkModel) -> tuple[float, float]:
    """Return the predicted times of the busiest sender and of the busiest receiver."""
    products = _products(step)
    if products is not None:
        return _busiest_of(products, itemsize, links)
    out: dict[Device, float] = {}
    into: dict[Device, float] = {}
    moves = list(step.transfers())
    sides = [m[0] for m in moves], [m[1] for m in moves]
    flows = [dict(zip(side, links.flows(side), strict=True)) for side in map(_distinct, sides)]
    for sender, receiver, n in moves:
        level = links.level(sender, receiver)
        link, nbytes = links.classes[level], n * itemsize
        out[sender] = out.get(sender, 0.0) + link.seconds(nbytes, flows[0][sender][level])
        into[receiver] = into.get(receiver, 0.0) + link.seconds(nbytes, flows[1][receiver][level])
    return max(out.values(), default=0.0), max(into.values(), default=0.0)


def _busiest_of(
    products: Sequence[Outer | Listed], itemsize: int, links: LinkModel
) -> tuple[float, float]:
    """Return the times of the busiest devices of products whose ends are equal or disjoint."""
    totals: tuple[dict[int, Any], dict[int, Any]] = {}, {}
    for product in products:
        sides = zip(totals, (product.senders, product.receivers), strict=True)
        for (total, devices), times in zip(sides, product.times(itemsize, links), strict=True):
            total[id(devices)] = total.get(id(devices), 0.0) + times
    out, into = (max((float(t.max()) for t in total.values()), default=0.0) for total in totals)
    return out, into


def _products(step: ReshardStep) -> list[Outer] | list[Listed] | None:
    """Return the transfers of a step as products or arrays; None if there are too many for arrays.

    Between layouts of one dimension, every part that is split or partial has one holder.  The size
    of a transfer is then the part that the sender holds, cut to the part that the receiver makes.
    """
    if step.groups:
        return list(_reduced_products(step))
    same, whole = step.source.placement == step.target.placement, _is_whole(step.source)
    if same and whole:
        return []  # each device takes its part from its own copy
    if len(step.source.sbp) > 1 or len(step.target.sbp) > 1:
        return _listed(step)
    (a,), (b,) = step.source.sbp, step.target.sbp
    if isinstance(b, Partial):
        return [] if same and isinstance(a, Split) else _listed(step)
    devices = devices_of(step.source.placement), devices_of(step.target.placement)
    if len(devices[0]) == 1:
        a = Broadcast()  # a single device holds the whole tensor in any layout
    elif whole and len(devices[1]) == 1:
        devices = Devices([devices[0][nearest(step.source, step.target)]]), devices[1]
    elif whole or (isinstance(a, Split) and a == b):
        return _listed(step)
    # What sender i and receiver j exchange is a factor of i times a factor of j, since each layout
    # cuts at most one axis, another one; the elements of all other axes count on one side.
    axes = [s.axis for s in (a, b) if isinstance(s, Split)]
    rest = num_elements([n for axis, n in enumerate(step.shape) if axis not in axes])
    given, taken = (
        Factors.of(step.shape[s.axis] if isinstance(s, Split) else len(side), len(side), each)
        for s, side, each in zip((a, b), devices, (1, rest), strict=True)
    )
    return [Outer(*devices, given, taken)]


def _listed(step: ReshardStep) -> list[Listed] | None:
    """Return the transfers of a step as arrays; None if there are too many."""
    pieces = listed_pieces(step.shape, step.source, step.target)
    if pieces is None:
        return None
    ends = devices_of(step.source.placement), devices_of(step.target.placement)
    return [Listed.between(*ends, *pieces)]


def even_form(step: ReshardStep) -> str:
    """Return the name of a collective in which all non-empty parts exchange data with each other.

    The result is "" for other steps.  The devices of both layouts must be the same, in a hierarchy
    of one dimension, with at least two non-empty parts in each layout.
    """
    source, target = step.source, step.target
    if step.groups or source.placement != target.placement or len(source.sbp) > 1:
        return ""
    (a,), (b,) = source.sbp, target.sbp
    if a == b or min(_filled(step.shape, source), _filled(step.shape, target)) < 2:
        return ""
    if isinstance(b, Split):
        return {Split: "all_to_all", Partial: "reduce_scatter", Broadcast: ""}[type(a)]
    return "all_gather" if isinstance(a, Split) and isinstance(b, Broadcast) else ""


def _filled(shape: Shape, layout: TensorLayout) -> int:
    """Return the number of devices with a non-empty part in a layout of one dimension."""
    (sbp,), p = layout.sbp, layout.placement.size
    if num_elements(shape) == 0:
        return 0
    return min(p, shape[sbp.axis]) if isinstance(sbp, Split) else p


def _moved(step: ReshardStep) -> Iterator[tuple[Device, Device, int]]:
    sources, targets = devices_of(step.source.placement), devices_of(step.target.placement)
    same = step.source.placement == step.target.placement
    for rank, (receiver, pieces) in enumerate(zip(targets, step.pieces, strict=True)):
        for piece in pieces:
            sender = sources[piece.source]
            if piece.source != rank if same else sender != receiver:
                yield sender, receiver, num_elements(region_shape(piece.region))


def _reduced(step: ReshardStep) -> Iterator[tuple[Device, Device, int]]:
    for product in _reduced_products(step):
        ends = (product.senders, product.given), (product.receivers, product.taken)
        sides = [list(zip(end, of.array().tolist(), strict=True)) for end, of in ends]
        for (sender, given), (receiver, taken) in itertools.product(*sides):
            if sender != receiver and given * taken:
                yield sender, receiver, given * taken


def _reduced_products(step: ReshardStep) -> Iterator[Outer]:
    """Yield the two phases of an all-reduce of each group: to the owners of chunks, and back."""
    devices = devices_of(step.source.placement)
    for group in step.groups:
        held = num_elements(region_shape(step.source.region(step.shape, group[0])))
        members = _members(devices, group)
        chunks, ones = Factors.of(held, len(group)), Factors.of(len(group), len(group))
        yield Outer(members, members, ones, chunks)
        yield Outer(members, members, chunks, ones)


def _members(devices: Devices, ranks: Sequence[int]) -> Devices:
    """Return the devices of some ranks, in ascending order."""
    return devices if len(ranks) == len(devices) else Devices([devices[rank] for rank in ranks])


# ------------------------------------------------------------------------ groups of devices


AllPieces = Sequence[tuple[Piece, ...]]
"""The pieces of each target rank."""


class _Listed(Groups):
    """The groups of any other step, from its pieces."""

    def __init__(self, step: ReshardStep) -> None:
        pieces = list(step.pieces)
        made = [rank for rank, own in enumerate(pieces) if not _is_held(step, rank, own)]
        found: dict[Device, list[int]] = {}
        owner = _components(step, pieces, made)
        devices = devices_of(step.target.placement)
        for rank in made:
            found.setdefault(owner[devices[rank]], []).append(rank)
        regions = {rank: step.target.region(step.shape, rank) for rank in made}
        short = {rank for rank in made if not is_covered(pieces[rank], regions[rank])}
        self._groups = [_group(step, pieces, targets, short) for targets in found.values()]
        self.sources, self.targets = (
            np.full(end.placement.size, -1, np.int64) for end in (step.source, step.target)
        )
        for number, group in enumerate(self._groups):
            self.sources[list(group.sources)] = number
            self.targets[list(group.targets)] = number
        self.filled = np.zeros(len(self.targets), np.bool_)
        self.filled[list(short)] = True

    def __len__(self) -> int:
        return len(self._groups)

    def _group(self, index: int) -> Group:
        return self._groups[index]


@lru_cache(maxsize=64)
def groups_of(step: ReshardStep) -> Groups:
    """Return the groups of a step, without the targets that already hold their part."""
    return _found_groups(step)


def _found_groups(step: ReshardStep) -> Groups:
    if step.groups:
        return Reduced(step.groups, step.source.placement.size)
    form = even_form(step)
    if form:
        given, taken = (_filled(step.shape, end) for end in (step.source, step.target))
        return Even(form, given, taken, step.target.placement.size)
    parts = own_parts(step.shape, step.source, step.target)
    if parts is not None:
        return Own(parts)
    for described in (rooted, passed_on):
        found = described(step.shape, step.source, step.target)
        if found is not None:
            return found
    return _Listed(step)


def is_in_place(step: ReshardStep, rank: int) -> bool:
    """Return whether a target device already holds its part, which the step does not change."""
    return bool(groups_of(step).targets[rank] < 0)


def _is_held(step: ReshardStep, rank: int, pieces: Sequence[Piece]) -> bool:
    """Return whether the pieces of a target rank are all that its own device holds."""
    if len(pieces) != 1:
        return False
    (piece,) = pieces
    sender = step.source.placement.device(piece.source)
    region = step.target.region(step.shape, rank)
    held = step.source.region(step.shape, piece.source)
    return sender == step.target.placement.device(rank) and piece.region == region == held


def _components(step: ReshardStep, pieces: AllPieces, made: Sequence[int]) -> dict[Device, Device]:
    """Map each device to one representative of the devices connected to it by exchanges."""
    parent: dict[Device, Device] = {}

    def find(device: Device) -> Device:
        while (above := parent.setdefault(device, device)) != device:
            parent[device] = device = parent[above]
        return device

    sources, targets = devices_of(step.source.placement), devices_of(step.target.placement)
    for rank in made:
        root = find(targets[rank])
        for piece in pieces[rank]:
            parent[find(sources[piece.source])] = root
            root = find(root)
    return {device: find(device) for device in parent}


def _group(
    step: ReshardStep, pieces: AllPieces, targets: Sequence[int], short: Collection[int]
) -> Group:
    sources = dict.fromkeys(p.source for t in targets for p in pieces[t])
    senders, receivers = devices_of(step.source.placement), devices_of(step.target.placement)
    crosses = any(senders[p.source] != receivers[t] for t in targets for p in pieces[t])
    local = "zero_pad" if any(t in short for t in targets) else ""
    name = _name(step, pieces, targets) if crosses else local or _cut(step, pieces, targets)
    return Group(name, tuple(sources), tuple(targets), crosses)


def _name(step: ReshardStep, given: AllPieces, targets: Sequence[int]) -> str:
    types = step.source.placement.device_type, step.target.placement.device_type
    if types[0] != types[1]:
        return "copy_h2d" if types[0] == "cpu" else "copy_d2h" if types[1] == "cpu" else "copy_d2d"
    pieces = [p for t in targets for p in given[t]]
    if any(not p.first for p in pieces):
        return "reduce" if len(targets) == 1 else "reduce_scatter"
    sources = {p.source for p in pieces}
    if len(sources) == 1:
        same = len({p.region for p in pieces}) == 1
        return "send_recv" if len(targets) == 1 else "broadcast" if same else "scatter"
    if len(targets) == 1:
        return "gather"
    return "all_gather" if _is_all_gather(step, given, targets) else "all_to_all"


def _cut(step: ReshardStep, pieces: AllPieces, targets: Sequence[int]) -> str:
    """Return the name of a group in which every device cuts or copies what it holds."""
    found = [p for t in targets for p in pieces[t]]
    cut = any(p.region != step.source.region(step.shape, p.source) for p in found)
    return "slice" if cut else "copy"


def _is_all_gather(step: ReshardStep, pieces: AllPieces, targets: Sequence[int]) -> bool:
    """Return whether every source sends one box to all other members of the group."""
    senders, receivers = devices_of(step.source.placement), devices_of(step.target.placement)
    given = Counter((p.source, p.region) for t in targets for p in pieces[t])
    remote = Counter(
        p.source for t in targets for p in pieces[t] if senders[p.source] != receivers[t]
    )
    members = {*(receivers[t] for t in targets), *(senders[s] for s, _ in given)}
    one_each = len(given) == len({s for s, _ in given})
    return one_each and all(n == len(members) - 1 for n in remote.values())


def _is_whole(layout: TensorLayout) -> bool:
    """Return whether every device holds the whole tensor."""
    return all(isinstance(s, Broadcast) for s in layout.sbp)
