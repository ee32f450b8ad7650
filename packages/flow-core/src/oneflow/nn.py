"""``oneflow.nn``; see `flow_core.api.nn`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.later_names import (
    distributed_sparse_softmax_cross_entropy_with_logits as distributed_sparse_softmax_cross_entropy_with_logits,  # noqa: E501
)
from flow_core.api.compat.later_names import fused_bias_add_dropout as fused_bias_add_dropout
from flow_core.api.compat.later_names import fused_bias_add_gelu as fused_bias_add_gelu
from flow_core.api.compat.later_names import (
    fused_scale_tril_softmax_dropout as fused_scale_tril_softmax_dropout,
)
from flow_core.api.compat.later_names import (
    fused_self_attention_query_mul_key_and_value as fused_self_attention_query_mul_key_and_value,
)
from flow_core.api.nn.activation import *
from flow_core.api.nn.attention import *
from flow_core.api.nn.basic import *
from flow_core.api.nn.conv import *
from flow_core.api.nn.ctc import ctc_loss as _ctc_loss
from flow_core.api.nn.experts import *
from flow_core.api.nn.group_norms import *
from flow_core.api.nn.losses import *
from flow_core.api.nn.pool import *

CTCLoss = _ctc_loss
__path__: list[str] = []  # else ``import oneflow.nn.functional`` does not reach oneflow's finder

_publish(globals())
