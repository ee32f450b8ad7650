"""The ``boxing`` ops of a reshard step, which transfer blocks between the devices' local arrays.

A step has one ``boxing`` op for each group of devices that exchange data.
"""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.base.shapes import Shape
from flow_core.comm.exchange import BOXING
from flow_core.compiler.reshard.steps import Group, Piece, ReshardStep, covers
from flow_core.ir.graph import Attrs, Op, TensorType, Value, tensor_type
from flow_core.ops.data_movement.boxing import boxing_attrs
from flow_core.sharding.sbp import Region, region_shape
from flow_core.sharding.topology import Placement


def exchange_op(
    step: ReshardStep, group: Group, type_: TensorType, values: Sequence[Value]
) -> tuple[Op, tuple[TensorType, ...]]:
    """Return the ``boxing`` op of a group, which has no name yet, and the types of its outputs.

    Args:
        step: the reshard step.
        group: the group of devices.
        type_: the type of the logical tensor.
        values: the local values, by source rank.
    """
    held = tuple(step.source.region(type_.shape, r) for r in group.sources)
    made = tuple(step.target.region(type_.shape, r) for r in group.targets)
    shapes = tuple(map(region_shape, made))
    attrs = boxing_attrs(
        group.name,
        type_.dtype.name,
        shapes,
        combine=step.combine,
        blocks=() if step.groups else _blocks(step, group, held, made),
        fills=() if step.groups else _fills(step, group),
    )
    placement = step.target.placement
    devices = tuple(placement.devices[rank] for rank in group.targets)
    inputs = tuple(values[rank] for rank in group.sources)
    op = Op("", BOXING, inputs, Attrs(attrs), Placement(placement.device_type, devices))
    return op, tuple(tensor_type(shape, type_.dtype) for shape in shapes)


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
