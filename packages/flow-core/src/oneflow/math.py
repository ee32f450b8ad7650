"""``oneflow.math``; see `flow_core.api.math` and `flow_core.api.array`."""

from flow_core.api.array import (
    argmax,
    broadcast_to_compatible_with,
    fused_scale_tril,
    in_top_k,
    top_k,
    tril,
    unsorted_batch_segment_sum,
    unsorted_segment_sum,
    unsorted_segment_sum_like,
)
from flow_core.api.math import *
