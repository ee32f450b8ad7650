"""The time of the exchanges of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flow_core.comm.described import ends_of, joined
from flow_core.comm.exchange import LOCAL
from flow_core.costs.collectives import exchange_seconds
from flow_core.costs.model import CostModel, DeviceModel
from flow_core.ir.graph import AttrValue, TensorType
from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of an exchange.

    Attributes:
        devices: the devices of a plan that take part.
        inputs, outputs: the types of the arrays; those of a bucket are listed member by member.
    """

    devices: tuple[Device, ...]
    inputs: Sequence[TensorType]
    outputs: Sequence[TensorType]


def exchange_cost(
    model: CostModel, device: DeviceModel, attrs: Mapping[str, AttrValue], ends: Ends
) -> float:
    """Return the predicted time of a ``boxing`` op or task.

    Args:
        device: the roofline of a device that takes part.
        attrs: the attributes of the op; those of a plan of classes describe the whole exchange.
    """
    collective = attrs["collective"]
    if collective in LOCAL:
        moved = sum(t.nbytes for t in (*ends.inputs, *ends.outputs))
        return device.launch + device.seconds(0.0, moved)
    whole = attrs.get("whole")
    devices, nbytes = ends.devices, 0
    if whole:
        devices, nbytes = joined(*ends_of(whole)), sum(largest for _, largest in whole[2])
    else:
        nbytes = _largest(ends, max(1, len(attrs["members"])))
    return exchange_seconds(collective, devices, nbytes, model.links)


def _largest(ends: Ends, members: int) -> int:
    """Return the bytes of the largest array of each member of a bucket, added up."""
    sizes = [0] * members
    for side in (ends.inputs, ends.outputs):
        count = len(side) // members
        for m in range(members):
            sizes[m] = max([sizes[m], *(t.nbytes for t in side[m * count : (m + 1) * count])])
    return sum(sizes)
