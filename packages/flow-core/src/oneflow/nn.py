"""``oneflow.nn``; see `flow_core.api.nn`."""

from typing import TYPE_CHECKING

from flow_core.api.compat.later_names import (
    distributed_sparse_softmax_cross_entropy_with_logits,
    fused_bias_add_dropout,
    fused_bias_add_gelu,
    fused_scale_tril_softmax_dropout,
    fused_self_attention_query_mul_key_and_value,
)
from flow_core.api.nn import *

if not TYPE_CHECKING:

    def __getattr__(name):
        """Raise an error that names the release of a name of the eager mode."""
        from flow_core.api.compat.eager_names import unknown

        if name == "CTCLoss":
            from flow_core.api.nn.ctc import ctc_loss

            return ctc_loss
        raise unknown(__name__, name, globals())
else:
    from flow_core.api.nn.ctc import ctc_loss as CTCLoss
