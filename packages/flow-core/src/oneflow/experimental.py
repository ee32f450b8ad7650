"""``oneflow.experimental``: functions that OneFlow calls experimental."""

from flow_core.api.array.dynamic import dynamic_binary_concat, dynamic_binary_split
from flow_core.api.array.encoding import indexed_slices_reduce_sum, unique_with_counts
from flow_core.api.array.select import logical_slice, logical_slice_assign
from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.custom_op import custom_op_module
from flow_core.api.compat.older_names import (
    eager_assign_121,
    get_interface_blob_value,
    set_interface_blob_value,
    ssp_variable_proxy,
)
from flow_core.api.session import scope
from flow_core.api.session.job import (
    enable_typing_check,
    hierarchical_parallel_cast,
    name_scope,
    square_sum,
)

__all__ = [
    "custom_op_module",
    "dynamic_binary_concat",
    "dynamic_binary_split",
    "eager_assign_121",
    "enable_typing_check",
    "get_interface_blob_value",
    "hierarchical_parallel_cast",
    "indexed_slices_reduce_sum",
    "logical_slice",
    "logical_slice_assign",
    "name_scope",
    "scope",
    "set_interface_blob_value",
    "square_sum",
    "ssp_variable_proxy",
    "unique_with_counts",
]


_publish(globals())
