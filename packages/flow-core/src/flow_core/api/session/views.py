"""Conversion of blobs between the consistent and the mirrored view of a job."""

from __future__ import annotations

from flow_core.base.errors import user_line
from flow_core.frontend.trace.blob import Blob, BlobDef, MirroredBlob, checked_blob
from flow_core.frontend.trace.division import mirrored_devices
from flow_core.frontend.trace.job_build import current_job
from flow_core.frontend.trace.mirrored_view import to_consistent, to_mirrored

__all__ = ["cast_to_current_logical_view"]


def cast_to_current_logical_view(x: Blob) -> BlobDef:
    """Convert ``x`` to the current view; on a single device, the two views are the same.

    In the mirrored view, a logical blob becomes one value per device: a balanced part of the batch,
    or the whole blob if it has no batch axis (a variable).  In the consistent view, the devices'
    values become one logical blob: their concatenated batches, or their common value.

    Returns: A blob of the current view.

    Raises:
        JobError: the devices' values differ but have no batch axis, a batch has fewer samples than
            there are devices, or the value was made for another number of devices.

    >>> run(flow.cast_to_current_logical_view, [1, 2])
    array([1., 2.], dtype=float32)
    """
    x = checked_blob(x)
    job, line = current_job("cast_to_current_logical_view"), user_line(2)
    devices = mirrored_devices(job)
    if devices is not None:
        return to_mirrored(job, x, devices, "cast_to_current_logical_view", line)
    return to_consistent(job, x, line) if isinstance(x, MirroredBlob) else x
