"""The ``boxing`` ops of a reshard step, which transfer blocks between the devices' local arrays.

A step has one ``boxing`` op for each group of devices that exchange data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from flow_core.base.shapes import Shape
from flow_core.comm.exchange import BOXING
from flow_core.compiler.reshard.groups import Group
from flow_core.compiler.reshard.steps import Piece, ReshardStep, covers
from flow_core.compiler.reshard.traffic import devices_of
from flow_core.ir.graph import Attrs, AttrValue, Op, TensorType, Value, tensor_type
from flow_core.ops.data_movement.boxing import boxing_attrs
from flow_core.sharding.sbp import Region, region_shape
from flow_core.sharding.topology import Device, Placement


def exchange_op(
    step: ReshardStep,
    group: Group,
    type_: TensorType,
    values: Mapping[int, Value],
    kept: Collection[Device] | None = None,
) -> tuple[Op, tuple[TensorType, ...], Sequence[int]]:
    """Return the ``boxing`` op of a group, the types of its outputs and their target ranks.

    The op has no name yet.

    Args:
        step: the reshard step.
        group: the group of devices.
        type_: the type of the logical tensor.
        values: the local values, by source rank.
        kept: the devices that have ops; None for all.  If the group has other devices, the op's
            attribute ``whole`` describes the whole group.
    """
    whole = _whole(step, group, type_, kept)
    if whole and kept is not None:
        group = _kept_part(step, group, kept)
    held = tuple(step.source.region(type_.shape, r) for r in group.sources)
    made = tuple(step.target.region(type_.shape, r) for r in group.targets)
    shapes = tuple(map(region_shape, made))
    attrs = boxing_attrs(
        group.name,
        type_.dtype.name,
        shapes,
        combine=step.combine,
        blocks=() if step.groups or whole else _blocks(step, group, held, made),
        fills=() if step.groups or whole else _fills(step, group),
    )
    if whole:
        attrs["whole"] = whole
    placement = step.target.placement
    devices = tuple(placement.devices[rank] for rank in group.targets)
    inputs = tuple(values[rank] for rank in group.sources)
    op = Op("", BOXING, inputs, Attrs(attrs), Placement(placement.device_type, devices))
    return op, tuple(tensor_type(shape, type_.dtype) for shape in shapes), group.targets


def _kept_part(step: ReshardStep, group: Group, kept: Collection[Device]) -> Group:
    """Return a group without the ranks whose devices have no ops."""
    sources, targets = devices_of(step.source.placement), devices_of(step.target.placement)
    return replace(
        group,
        sources=tuple([r for r in group.sources if sources[r] in kept]),
        targets=tuple([r for r in group.targets if targets[r] in kept]),
    )


def _whole(
    step: ReshardStep, group: Group, type_: TensorType, kept: Collection[Device] | None
) -> tuple[AttrValue, ...]:
    """Return the description of a whole group; empty if all of its devices have ops.

    The description consists of the text forms of the receivers and of the senders, and of one
    entry (bytes held and made, bytes of the largest part) for each member of a bucket.
    """
    sources, targets = devices_of(step.source.placement), devices_of(step.target.placement)
    if kept is None or (
        all(sources[rank] in kept for rank in group.sources)
        and all(targets[rank] in kept for rank in group.targets)
    ):
        return ()
    sizes = np.concatenate(
        [
            step.source.sizes(type_.shape)[list(group.sources)],
            step.target.sizes(type_.shape)[list(group.targets)],
        ]
    )
    nbytes = type_.dtype.itemsize
    return (
        _text(step.target.placement, group.targets),
        _text(step.source.placement, group.sources),
        ((int(sizes.sum()) * nbytes, int(sizes.max()) * nbytes),),
    )


@lru_cache(maxsize=64)
def _text(placement: Placement, ranks: tuple[int, ...]) -> str:
    """Return the text form of some devices of a placement."""
    devices = placement.devices
    return str(Placement(placement.device_type, tuple([devices[rank] for rank in ranks])))


def _blocks(
    step: ReshardStep, group: Group, held: Sequence[Region], made: Sequence[Region]
) -> tuple[tuple[object, ...], ...]:
    position = {rank: i for i, rank in enumerate(group.sources)}
    return tuple(
        _block(position[piece.source], held[position[piece.source]], piece, i, region)
        for i, (rank, region) in enumerate(zip(group.targets, made, strict=True))
        for piece in step.pieces[rank]
    )


def _block(
    source: int, held: Region, piece: Piece, target: int, made: Region
) -> tuple[object, ...]:
    size = region_shape(piece.region)
    return (source, _start(piece, held), target, _start(piece, made), size, piece.first)


def _start(piece: Piece, base: Region) -> Shape:
    return tuple([a - low for (a, _), (low, _) in zip(piece.region, base, strict=True)])


def _fills(step: ReshardStep, group: Group) -> tuple[tuple[int, str], ...]:
    return tuple([(i, step.fill) for i, rank in enumerate(group.targets) if not covers(step, rank)])
