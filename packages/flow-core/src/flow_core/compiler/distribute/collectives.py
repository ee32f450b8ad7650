"""The ``boxing`` ops of a reshard step, which transfer blocks between the devices' local arrays.

A step has one ``boxing`` op for each group of devices that exchange data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from flow_core.comm.described import block_row, is_covered
from flow_core.comm.exchange import BOXING
from flow_core.compiler.reshard.groups import Group
from flow_core.compiler.reshard.steps import ReshardStep
from flow_core.ir.graph import Attrs, AttrValue, Op, TensorType, Value, tensor_type
from flow_core.ops.data_movement.boxing import boxing_attrs
from flow_core.sharding.sbp import Region, region_shape
from flow_core.sharding.topology import Device, Placement, devices_of


def exchange_op(
    step: ReshardStep,
    group: Group,
    type_: TensorType,
    values: Mapping[int, Value],  # the local values, by source rank
    # The devices that have ops; None for all.  If there are some, the attribute ``whole`` of an op
    # that transfers data describes the whole group.
    kept: Collection[Device] | None = None,
) -> tuple[Op, tuple[TensorType, ...], Sequence[int]]:
    """Return the ``boxing`` op of a group, the types of its outputs and their target ranks.

    The op has no name yet.
    """
    whole = () if kept is None or not group.crosses else _whole(step, group, type_)
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
        fills=() if step.groups or whole else _fills(step, group, made),
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


def _whole(step: ReshardStep, group: Group, type_: TensorType) -> tuple[AttrValue, ...]:
    """Return the description of a whole group; see `flow_core.comm.described`."""
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
        ((type_.shape, str(step.source), str(step.target), step.fill),),
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
        block_row(position[piece.source], held[position[piece.source]], piece, i, region)
        for i, (rank, region) in enumerate(zip(group.targets, made, strict=True))
        for piece in step.pieces[rank]
    )


def _fills(step: ReshardStep, group: Group, made: Sequence[Region]) -> tuple[tuple[int, str], ...]:
    rows = enumerate(zip(group.targets, made, strict=True))
    return tuple([(i, step.fill) for i, (r, m) in rows if not is_covered(step.pieces[r], m)])
