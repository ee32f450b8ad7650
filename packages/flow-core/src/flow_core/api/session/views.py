"""Conversion between the consistent and the mirrored view of a job."""

from __future__ import annotations

from flow_core.base.errors import user_line
from flow_core.frontend.trace.blob import BlobDef, MirroredBlob
from flow_core.frontend.trace.job_build import current_job
from flow_core.frontend.trace.mirrored_view import mirrored_devices, to_consistent, to_mirrored

__all__ = ["cast_to_current_logical_view"]


def cast_to_current_logical_view(x: BlobDef) -> BlobDef:
    """Convert ``x`` to the current view; on a single device both views are equal.

    In the mirrored view a logical blob becomes a value per device: balanced parts of its batch, or
    the whole of a blob without batch axis (a variable).  In the consistent view values per device
    become one logical blob: their batches concatenated, or the common value of all devices.

    Raises:
        JobError: the devices' values differ and have no batch axis, a batch has fewer samples
            than there are devices, or the numbers of devices differ.
    """
    job, line = current_job("cast_to_current_logical_view"), user_line(2)
    devices = mirrored_devices(job)
    if devices is not None:
        return to_mirrored(job, x, devices, "cast_to_current_logical_view", line)
    return to_consistent(job, x, line) if isinstance(x, MirroredBlob) else x
