"""Between the consistent and the mirrored view of a job."""

from __future__ import annotations

from flow_core.errors import UnsupportedError, user_line
from flow_core.frontend.blob import BlobDef
from flow_core.frontend.jobs import current_job
from flow_core.frontend.scope import current_scope

__all__ = ["cast_to_current_logical_view"]


def cast_to_current_logical_view(x: BlobDef) -> BlobDef:
    """``x`` as ops of the view in force see it: on one device both views are the same.

    Raises:
        UnsupportedError: the mirrored view of several devices is in force.
    """
    job, scope = current_job("cast_to_current_logical_view"), current_scope()
    placement = scope.placement or job.default_placement
    if scope.mirrored and placement.size > 1:
        raise UnsupportedError(
            "cast_to_current_logical_view",
            at=user_line(2),
            found=f"the mirrored view of {placement.size} devices",
            allowed="the consistent view, or the mirrored view of one device",
        )
    return x
