"""Arrays: shapes, selections, indices and constants.

``__all__`` holds what OneFlow has at its top level; `PATHS` gives the public path of every
function, ``PATHS["math.argmax"]`` that of `argmax`, for the modules of the facade.
"""

from flow_core.api.array import index, select, shape, source
from flow_core.api.array.index import *  # noqa: F403 - a star join, by __all__
from flow_core.api.array.index import argmax, top_k
from flow_core.api.array.select import *  # noqa: F403
from flow_core.api.array.select import logical_slice, logical_slice_assign
from flow_core.api.array.shape import *  # noqa: F403
from flow_core.api.array.source import *  # noqa: F403
from flow_core.api.array.source import fused_scale_tril, tril

__all__ = [
    *shape.__all__,
    *select.__all__,
    *index.__all__,
    *source.__all__,
]

BELOW: tuple[object, ...] = (
    argmax,
    fused_scale_tril,
    logical_slice,
    logical_slice_assign,
    top_k,
    tril,
)
"""Functions that are in modules of the facade only, not at its top level."""

PATHS: dict[str, str] = {
    **{name: name for name in __all__},
    "experimental.logical_slice": "logical_slice",
    "experimental.logical_slice_assign": "logical_slice_assign",
    "math.argmax": "argmax",
    "math.broadcast_to_compatible_with": "broadcast_to_compatible_with",
    "math.fused_scale_tril": "fused_scale_tril",
    "math.in_top_k": "in_top_k",
    "math.top_k": "top_k",
    "math.tril": "tril",
    "math.unsorted_batch_segment_sum": "unsorted_batch_segment_sum",
    "math.unsorted_segment_sum": "unsorted_segment_sum",
    "math.unsorted_segment_sum_like": "unsorted_segment_sum_like",
    "nn.fused_scale_tril": "fused_scale_tril",
    "nn.tril": "tril",
}
