"""``oneflow.experimental``."""

from flow_core.api import scope
from flow_core.api.array_select import logical_slice, logical_slice_assign
from flow_core.api.encoding import indexed_slices_reduce_sum, unique_with_counts
from flow_core.api.job import (
    enable_typing_check,
    hierarchical_parallel_cast,
    name_scope,
    square_sum,
)

__all__ = [
    "enable_typing_check",
    "hierarchical_parallel_cast",
    "indexed_slices_reduce_sum",
    "logical_slice",
    "logical_slice_assign",
    "name_scope",
    "scope",
    "square_sum",
    "unique_with_counts",
]
