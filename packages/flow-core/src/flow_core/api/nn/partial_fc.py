"""A sample of the classes of a very wide classifier."""

from __future__ import annotations

from flow_core.base.errors import InferenceError, user_line
from flow_core.frontend.config.scope import current_scope
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.emit import emit
from flow_core.frontend.trace.job_build import current_job

__all__ = ["distributed_partial_fc_sample"]


def distributed_partial_fc_sample(
    weight: BlobDef, label: BlobDef, num_sample: int, name: str | None = None
) -> tuple[BlobDef, BlobDef, BlobDef]:
    """Samples classes: all that are labels of the batch, and others by chance.

    Each device of the placement in scope has an equal share of the classes and of the sample. With
    weights split along axis 0, each samples its own rows, and no weights travel.

    Args:
        weight: a row per class; the devices divide their number.
        label: int32 or int64, shape (n,).
        num_sample: how many classes to sample; the devices divide it, too.
        name: name of the op.

    Returns:
        The labels as places in the sample (n,), the sampled classes (num_sample,), and their
        weights (num_sample, ...).  In each device's share, classes that are labels come first, in
        their order.

    Raises:
        InferenceError: numbers that the devices do not divide.
        DataError: when it runs with more distinct labels in a share than it has samples.
    """
    scope = current_scope()
    placement = scope.placement or current_job("distributed_partial_fc_sample").default_placement
    parts = placement.size
    if num_sample % parts or weight.shape[0] % parts:
        raise InferenceError(
            "flow.distributed_partial_fc_sample",
            at=user_line(2),
            found=f"{num_sample} samples of {weight.shape[0]} classes on {parts} devices",
            allowed="numbers that the devices divide",
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
