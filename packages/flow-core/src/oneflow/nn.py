"""``oneflow.nn``; see `flow_core.api.nn`."""

from flow_core.api.compat.later_names import (
    distributed_sparse_softmax_cross_entropy_with_logits,
    fused_bias_add_dropout,
    fused_bias_add_gelu,
)
from flow_core.api.nn import *
