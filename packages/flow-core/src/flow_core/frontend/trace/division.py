"""The devices of the mirrored view, and how a logical blob is divided among them.

This module must not import `flow_core.frontend.trace.blob`, whose shapes depend on it.
"""

from __future__ import annotations

from typing import Any

from flow_core.base.errors import InferenceError
from flow_core.frontend.config.scope import current_scope
from flow_core.frontend.trace.per_device import per_device
from flow_core.ir.graph import Value
from flow_core.ops.data_movement.mirrored import local_shapes
from flow_core.sharding.sbp import B, NdSbp, Partial, Sbp, Split
from flow_core.sharding.topology import Placement


def mirrored_devices(job: Any) -> Placement | None:
    """Return the devices of the mirrored view; None in the consistent view or on one device."""
    scope = current_scope()
    if not scope.mirrored:
        return None
    placement = scope.placement or job.default_placement
    return flat(placement) if placement.size > 1 else None


def flat(placement: Placement) -> Placement:
    """Return a placement of the same devices with a hierarchy of one dimension."""
    if len(placement.hierarchy) == 1:
        return placement
    return Placement(placement.device_type, placement.devices)


def shape_of_parts(blob: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the shape of each device's part of a logical blob of a shape.

    Sizes that differ between devices are `PerDevice`; a blob that cannot be divided has its own
    shape.
    """
    devices = mirrored_devices(blob.job)
    if devices is None:
        return shape
    try:
        parts = local_shapes(shape, (division(blob.job, blob),), devices.hierarchy)
    except InferenceError:
        return shape
    return tuple(map(per_device, zip(*parts, strict=True)))


def division(job: Any, blob: Any) -> Sbp:
    """Return the SBP in which a logical blob enters the mirrored view.

    This is the requested SBP if there is one; otherwise B for a variable, a split along the batch
    axis for a blob that has one, and B for any other blob.
    """
    requested: Sbp | None = blob.requested
    if requested is not None:
        return requested
    asked: NdSbp | None = job.requested_sbp(blob.value)
    if asked is not None and len(set(asked)) == 1 and not isinstance(asked[0], Partial):
        return asked[0]
    if blob.batch_axis is None or is_undistributed_variable(job, blob.value):
        return B
    return Split(blob.batch_axis)


def is_undistributed_variable(job: Any, value: Value) -> bool:
    """Return whether a value is a variable without a requested distribution."""
    is_variable = job.builder.ops[value.op].type == "variable"
    return is_variable and job.requested_sbp(value) is None
