"""Exchanges of a plan that has only some of the devices, described by the layouts at both ends.

The attribute ``whole`` of such a ``boxing`` op consists of the text forms of the receivers and of
the senders, of an entry (bytes held and made, bytes of the largest part) for each member of a
bucket, and of an entry (shape, source layout, target layout, fill) for each member.  From these, a
process computes the blocks of all devices, or of its own devices alone, which takes time in
proportion to the number of their peers.  Sequences with an entry per device are then described, not
listed (`Tiled`, `Parts`, `Sparse`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, overload

import numpy as np

from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.shapes import Shape, num_elements
from flow_core.comm.pieces import Piece, Pieces
from flow_core.comm.roles import partial_roles
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.sharding.layouts import TensorLayout
from flow_core.sharding.sbp import Region, Split, region_shape
from flow_core.sharding.topology import Device, Devices, Placement, devices_of, numbered

Row = tuple[int, Shape, int, Shape, Shape, bool]
"""The fields of a `flow_core.comm.exchange.Block`."""


def ends_of(whole: Sequence[AttrValue]) -> tuple[Devices, Devices]:
    """Return the senders and the receivers of one member of an exchange."""
    receivers, senders = whole[:2]
    return devices_of(Placement.of_text(senders)), devices_of(Placement.of_text(receivers))


def is_regular(attrs: Mapping[str, AttrValue]) -> bool:
    """Return whether the blocks of one device determine whether the exchange is a collective.

    They do in an all-reduce, between layouts of one dimension, and between layouts of several
    dimensions whose parts have equal sizes, unless partial results are made of others.
    """
    rows = attrs["whole"][3] if attrs.get("whole") else ()
    return attrs["collective"] == "all_reduce" or all(
        _is_regular(shape, *map(TensorLayout.of_text, layouts)) for shape, *layouts, _ in rows
    )


def _is_regular(shape: Shape, source: TensorLayout, target: TensorLayout) -> bool:
    if len(source.sbp) == len(target.sbp) == 1:
        return True
    is_even = all(_is_even(shape, layout) for layout in (source, target))
    return is_even and not partial_roles(source, target).made


def _is_even(shape: Shape, layout: TensorLayout) -> bool:
    """Return whether the parts of all devices have the same shape, with elements."""
    sizes = list(shape)
    for entry, parts in zip(layout.sbp, layout.placement.hierarchy, strict=True):
        if isinstance(entry, Split):
            if sizes[entry.axis] % parts:
                return False
            sizes[entry.axis] //= parts
    return 0 not in sizes


@lru_cache(maxsize=256)
def joined(senders: Devices, receivers: Devices) -> Devices:
    """Return all devices of an exchange, each once."""
    return senders if senders == receivers else Devices(dict.fromkeys((*senders, *receivers)))


T = TypeVar("T")


class _Described(Sequence[T]):
    """A sequence that computes its items."""

    @abstractmethod
    def _item(self, index: int) -> T:
        """Return an item; the index is not negative."""

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple([self._item(i) for i in range(*index.indices(len(self)))])
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._item(index % len(self))


class Tiled(_Described[Device]):
    """The devices at one end of an exchange, repeated for each member.

    >>> found = Tiled(Devices([Device("gpu", 0, 0), Device("gpu", 0, 1)]), 3)
    >>> len(found), str(found[3]), found.places([Device("gpu", 0, 1)])
    (6, 'gpu:0:1', [1, 3, 5])
    """

    def __init__(self, devices: Devices, times: int) -> None:
        self.devices, self._times = devices, times

    def __len__(self) -> int:
        return len(self.devices) * self._times

    def _item(self, index: int) -> Device:
        return self.devices[index % len(self.devices)]

    def places(self, wanted: Collection[Device]) -> list[int]:
        number, size = numbered(self.devices), len(self.devices)
        ranks = sorted(number[device] for device in wanted if device in number)
        return [k * size + rank for k in range(self._times) for rank in ranks]


class Parts(_Described[TensorType]):
    """The types of the arrays at one end of an exchange, member by member."""

    def __init__(self, ends: Sequence[_End], dtype: DType) -> None:
        self._ends, self._dtype = ends, dtype
        self._size = len(ends[0].ranks) if ends else 0

    def __len__(self) -> int:
        return len(self._ends) * self._size

    def _item(self, index: int) -> TensorType:
        member, position = divmod(index, self._size)
        end = self._ends[member]
        return tensor_type(region_shape(end.region(end.ranks[position])), self._dtype)


class Sparse(_Described[Any]):
    """Arrays at one end of an exchange; None for the devices of other processes.

    >>> found = Sparse(1000, {3: "x"})
    >>> found[2:4], list(present(found))
    ((None, 'x'), [(3, 'x')])
    """

    def __init__(self, count: int, items: Mapping[int, Any]) -> None:
        self._count, self.items = count, items

    def __len__(self) -> int:
        return self._count

    def _item(self, index: int) -> Any:
        return self.items.get(index)


def present(arrays: Sequence[Any]) -> Iterable[tuple[int, Any]]:
    """Return the arrays of this process, with their positions."""
    if isinstance(arrays, Sparse):
        return arrays.items.items()
    return [(i, array) for i, array in enumerate(arrays) if array is not None]


def places(devices: Sequence[Device], wanted: Collection[Device]) -> Sequence[int]:
    """Return the positions of some devices at an end of an exchange."""
    if isinstance(devices, Tiled):
        return devices.places(wanted)
    return [i for i, device in enumerate(devices) if device in wanted]


@dataclass(frozen=True, slots=True)
class Contents:
    """What an exchange moves."""

    inputs: Sequence[TensorType]  # the types of the arrays, member by member
    outputs: Sequence[TensorType]
    blocks: tuple[Row, ...]  # the fields of the blocks
    # (output, operation) of the outputs that blocks do not cover.
    fills: tuple[tuple[int, str], ...]
    most: int  # the maximum number of elements that one device sends to another


def contents(attrs: Mapping[str, AttrValue], local: Collection[Device] | None) -> Contents:
    """Return what an exchange moves.

    Args:
        attrs: the attributes of the ``boxing`` op, with ``whole``.
        local: the devices of which the blocks are wanted; None for all.
    """
    whole, dtype = attrs["whole"], as_dtype(attrs["dtype"])
    senders, receivers = ends_of(whole)
    ends: list[tuple[_End, _End]] = []
    blocks: list[Row] = []
    fills: list[tuple[int, str]] = []
    most = 0
    for number, (shape, *layouts, fill) in enumerate(whole[3]):
        source, target = map(TensorLayout.of_text, layouts)
        held_end, made_end = _End.of(shape, source, senders), _End.of(shape, target, receivers)
        ends.append((held_end, made_end))
        if attrs["collective"] == "all_reduce":
            continue  # its chunks follow from the types
        most += _most(shape, source, target)
        pieces = Pieces(shape, source, target)
        for row in _blocks(pieces, held_end, made_end, local):
            blocks.append((row[0] + number * len(senders), row[1],
                           row[2] + number * len(receivers), *row[3:]))  # fmt: skip
        kept = range(len(receivers)) if local is None else Tiled(receivers, 1).places(local)
        fills += [
            (number * len(receivers) + i, fill)
            for i in kept
            if not is_covered(pieces[made_end.ranks[i]], made_end.region(made_end.ranks[i]))
        ]
    types = [Parts([pair[side] for pair in ends], dtype) for side in (0, 1)]
    given, made = types if local is not None else map(tuple, types)
    return Contents(given, made, tuple(blocks), tuple(fills), most)


def _most(shape: Shape, source: TensorLayout, target: TensorLayout) -> int:
    """Return the size of a box that is as long as the shorter of the longest parts, by axis.

    The parts of the ranks 0 are the longest ones.
    """
    ends = zip(*(region_shape(layout.region(shape, 0)) for layout in (source, target)), strict=True)
    return num_elements(tuple([min(pair) for pair in ends]))


@dataclass(frozen=True, slots=True)
class _End:
    """The devices at one end of an exchange."""

    shape: Shape  # of the logical tensor
    layout: TensorLayout
    devices: Devices  # that take part
    ranks: Sequence[int]  # their ranks in the placement of the layout

    @classmethod
    def of(cls, shape: Shape, layout: TensorLayout, devices: Devices) -> _End:
        """Return the end of some devices of a layout."""
        return cls(shape, layout, devices, _ranks(layout.placement, devices))

    def region(self, rank: int) -> Region:
        return self.layout.region(self.shape, rank)

    def overlapping(self, other: Region) -> list[int]:
        """Return the positions of the devices whose parts overlap a part."""
        ranks = np.array(self.ranks, np.int64)
        touches = np.ones(len(ranks), np.bool_)
        for axis, (low, high) in self.layout.bounds(self.shape).items():
            start, stop = other[axis]
            touches &= (low[ranks] < stop) & (high[ranks] > start)
        return [int(i) for i in np.flatnonzero(touches)]


@lru_cache(maxsize=256)
def _ranks(placement: Placement, devices: Devices) -> Sequence[int]:
    whole = devices_of(placement)
    if whole == devices:
        return range(len(devices))
    number = numbered(whole)
    return [number[device] for device in devices]


def _blocks(
    pieces: Pieces, source: _End, target: _End, local: Collection[Device] | None
) -> Iterator[Row]:
    """Yield the blocks of a member: all, or those that local devices send or receive."""
    position = _positions(source.layout.placement, source.devices)
    mine, here = set[int](), list[int]()
    wanted: Iterable[int] = range(len(target.ranks))
    if local is not None:
        mine.update(Tiled(target.devices, 1).places(local))
        here = [source.ranks[i] for i in Tiled(source.devices, 1).places(local)]
        wanted = sorted(mine.union(*(target.overlapping(source.region(r)) for r in here)))
    for i in wanted:
        rank = target.ranks[i]
        is_whole = local is None or i in mine
        for piece in pieces[rank] if is_whole else pieces.taken_from(rank, here):
            held, made = source.region(piece.source), target.region(rank)
            yield block_row(position[piece.source], held, piece, i, made)


@lru_cache(maxsize=256)
def _positions(placement: Placement, devices: Devices) -> Mapping[int, int]:
    """Return the position of each rank of a placement among some devices."""
    return {rank: i for i, rank in enumerate(_ranks(placement, devices))}


def block_row(source: int, held: Region, piece: Piece, target: int, made: Region) -> Row:
    """Return the block of a piece."""
    starts = (
        tuple([a - low for (a, _), (low, _) in zip(piece.region, base, strict=True)])
        for base in (held, made)
    )
    return (source, next(starts), target, next(starts), region_shape(piece.region), piece.first)


def is_covered(pieces: Sequence[Piece], made: Region) -> bool:
    """Return whether the copied pieces of a part, which do not overlap, cover it."""
    filled = sum(num_elements(region_shape(p.region)) for p in pieces if p.first)
    return filled == num_elements(region_shape(made))
