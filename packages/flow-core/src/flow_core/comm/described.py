"""Exchanges of a plan that has only some of the devices, described by the layouts at both ends.

The attribute ``whole`` of such a ``boxing`` op consists of the text forms of the receivers and of
the senders, of an entry (bytes held and made, bytes of the largest part) for each member of a
bucket, and of an entry (shape, source layout, target layout, fill) for each member.  From these, a
process computes the blocks of all devices, or of its own devices alone, which takes time in
proportion to the number of their peers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from flow_core.base.dtypes import as_dtype
from flow_core.base.shapes import Shape, num_elements
from flow_core.comm.pieces import Piece, Pieces
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.sharding.layouts import TensorLayout, regions_of
from flow_core.sharding.sbp import Region, region_shape
from flow_core.sharding.topology import Device, Devices, Placement, devices_of

Row = tuple[int, Shape, int, Shape, Shape, bool]
"""The fields of a `flow_core.comm.exchange.Block`."""


def ends_of(whole: Sequence[AttrValue]) -> tuple[Devices, Devices]:
    """Return the senders and the receivers of one member of an exchange."""
    receivers, senders = whole[:2]
    return devices_of(Placement.of_text(senders)), devices_of(Placement.of_text(receivers))


@dataclass(frozen=True, slots=True)
class Contents:
    """What an exchange moves.

    Attributes:
        inputs, outputs: the types of the arrays, member by member.
        blocks: the fields of the blocks.
        fills: (output, operation) of the outputs that blocks do not cover.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    blocks: tuple[Row, ...]
    fills: tuple[tuple[int, str], ...]


def contents(attrs: Mapping[str, AttrValue], local: Collection[Device] | None) -> Contents:
    """Return what an exchange moves.

    Args:
        attrs: the attributes of the ``boxing`` op, with ``whole``.
        local: the devices of which the blocks are wanted; None for all.
    """
    whole, dtype = attrs["whole"], as_dtype(attrs["dtype"])
    senders, receivers = ends_of(whole)
    types: tuple[list[TensorType], list[TensorType]] = [], []
    blocks: list[Row] = []
    fills: list[tuple[int, str]] = []
    for number, (shape, *layouts, fill) in enumerate(whole[3]):
        source, target = map(TensorLayout.of_text, layouts)
        ends = _End.of(shape, source, senders), _End.of(shape, target, receivers)
        if attrs["collective"] == "all_reduce":  # of equal parts
            part = tensor_type(region_shape(source.region(shape, ends[0].ranks[0])), dtype)
            for found in types:
                found += [part] * len(senders)
            continue
        for found, end in zip(types, ends, strict=True):
            found += [tensor_type(region_shape(end.region(r)), dtype) for r in end.ranks]
        pieces = Pieces(shape, source, target)
        for row in _blocks(pieces, *ends, local):
            blocks.append((row[0] + number * len(senders), row[1],
                           row[2] + number * len(receivers), *row[3:]))  # fmt: skip
        fills += [
            (number * len(receivers) + i, fill)
            for i, rank in enumerate(ends[1].ranks)
            if (local is None or receivers[i] in local)
            and not is_covered(pieces[rank], ends[1].region(rank))
        ]
    return Contents(tuple(types[0]), tuple(types[1]), tuple(blocks), tuple(fills))


@dataclass(frozen=True, slots=True)
class _End:
    """The devices at one end of an exchange.

    Attributes:
        shape: the shape of the logical tensor.
        layout: the layout of the tensor.
        devices: the devices that take part.
        ranks: their ranks in the placement of the layout.
    """

    shape: Shape
    layout: TensorLayout
    devices: Devices
    ranks: Sequence[int]

    @classmethod
    def of(cls, shape: Shape, layout: TensorLayout, devices: Devices) -> _End:
        """Return the end of some devices of a layout."""
        return cls(shape, layout, devices, _ranks(layout.placement, devices))

    def region(self, rank: int) -> Region:
        """Return the part that a rank holds."""
        return regions_of(self.shape, self.layout)[rank]


@lru_cache(maxsize=256)
def _ranks(placement: Placement, devices: Devices) -> Sequence[int]:
    number = {device: i for i, device in enumerate(devices_of(placement))}
    return [number[device] for device in devices]


def _blocks(
    pieces: Pieces, source: _End, target: _End, local: Collection[Device] | None
) -> Iterator[Row]:
    """Yield the blocks of a member: all, or those that local devices send or receive."""
    position = {rank: i for i, rank in enumerate(source.ranks)}
    if local is None:
        here: Collection[int] = ()
    else:
        here = [r for r, d in zip(source.ranks, source.devices, strict=True) if d in local]
    for i, (rank, device) in enumerate(zip(target.ranks, target.devices, strict=True)):
        is_whole = local is None or device in local
        for piece in pieces[rank] if is_whole else pieces.taken_from(rank, here):
            held, made = source.region(piece.source), target.region(rank)
            yield block_row(position[piece.source], held, piece, i, made)


def block_row(source: int, held: Region, piece: Piece, target: int, made: Region) -> Row:
    """Return the block of a piece.

    Args:
        source, target: the positions of the input and of the output.
        held, made: the parts that the input and the output are.
        piece: the piece.
    """
    starts = (
        tuple([a - low for (a, _), (low, _) in zip(piece.region, base, strict=True)])
        for base in (held, made)
    )
    return (source, next(starts), target, next(starts), region_shape(piece.region), piece.first)


def is_covered(pieces: Sequence[Piece], made: Region) -> bool:
    """Return whether the copied pieces of a part, which do not overlap, cover it."""
    filled = sum(num_elements(region_shape(p.region)) for p in pieces if p.first)
    return filled == num_elements(region_shape(made))
