"""Sampling of the classes of a very wide classifier."""

from __future__ import annotations

from flow_core.base.errors import InferenceError
from flow_core.frontend.config.scope import current_scope
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit
from flow_core.frontend.trace.job_build import current_job

__all__ = ["distributed_partial_fc_sample"]


def distributed_partial_fc_sample(
    weight: Blob, label: Blob, num_sample: int, name: str | None = None
) -> tuple[BlobDef, BlobDef, BlobDef]:
    """Sample classes: all labels of the batch, and other classes at random.

    Each device of the placement in scope has an equal share of the classes and of the sample.  If
    the weights are split along axis 0, each device samples rows of its own part, and no weights are
    communicated.

    Args:
        weight: a blob with a row per class; the number of devices must divide the number of
            classes.
        label: int32 or int64, shape (n,).
        num_sample: number of classes to sample; a multiple of the number of devices.

    Returns: The labels as indices into the sample (n,), the sampled classes (num_sample,), and
        their weights (num_sample, ...). In each device's share, the labels come first, in ascending
        order.

    Raises:
        InferenceError: the number of classes or ``num_sample`` is not a multiple of the number of
            devices.
        DataError: at run time, the share of a device has more distinct labels than samples.
    """
    scope = current_scope()
    placement = scope.placement or current_job("distributed_partial_fc_sample").default_placement
    parts = placement.size
    if num_sample % parts or weight.shape[0] % parts:
        raise InferenceError.at_caller(
            "flow.distributed_partial_fc_sample",
            found=f"{num_sample} samples of {weight.shape[0]} classes on {parts} devices",
            allowed="multiples of the number of devices",
        )
    places, classes, rows = emit(
        "distributed_partial_fc_sample",
        weight,
        label,
        num_sample=int(num_sample),
        parts=parts,
        name=name,
    )
    return places, classes, rows
