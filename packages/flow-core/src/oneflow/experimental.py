"""``oneflow.experimental``: functions that OneFlow calls experimental."""

from flow_core.api.array.dynamic import (
    dynamic_binary_concat as dynamic_binary_concat,
    dynamic_binary_split as dynamic_binary_split,
)
from flow_core.api.array.encoding import (
    indexed_slices_reduce_sum as indexed_slices_reduce_sum,
    unique_with_counts as unique_with_counts,
)
from flow_core.api.array.select import (
    logical_slice as logical_slice,
    logical_slice_assign as logical_slice_assign,
)
from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.custom_op import custom_op_module as custom_op_module
from flow_core.api.compat.older_names import (
    eager_assign_121 as eager_assign_121,
    get_interface_blob_value as get_interface_blob_value,
    set_interface_blob_value as set_interface_blob_value,
    ssp_variable_proxy as ssp_variable_proxy,
)
from flow_core.api.session import scope as scope
from flow_core.api.session.job import (
    enable_typing_check as enable_typing_check,
    hierarchical_parallel_cast as hierarchical_parallel_cast,
    name_scope as name_scope,
    square_sum as square_sum,
)

_publish(globals())
