"""Cross entropy of logits split over classes."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.split_classes import SplitClasses


def test_the_loss_of_split_logits_and_its_gradient_become_parts(
    apply: Callable[[Pass, str], str],
) -> None:
    before = """
graph
x = input() : float32[4,6] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float32', 'shape': (4, 6)}
logits = exp(x:0) : float32[4,6] @cpu[0:0-1] sbp(S(1)) {}
label = input() : int32[4] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'int32', 'shape': (4,)}
loss = sparse_softmax_cross_entropy(logits:0, label:0) : float32[4,6]; float32[4] @cpu[0:0-1] {'depth': 6}
dy = constant() : float32[4] @cpu[0:0-1] {'dtype': 'float32', 'shape': (4,), 'value': 1.0}
grad = sparse_softmax_cross_entropy_grad(loss:0, label:0, dy:0) : float32[4,6] @cpu[0:0-1] {'depth': 6}
return loss:1, grad:0
effects
"""
    after = """
graph
x = input() : float32[4,6] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float32', 'shape': (4, 6)}
logits = exp(x:0) : float32[4,6] @cpu[0:0-1] sbp(S(1)) {}
label = input() : int32[4] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'int32', 'shape': (4,)}
loss/cast = identity(label:0) : int32[4] @cpu[0:0-1] sbp(B) {}
loss/reduce_max = reduce_max(logits:0) : float32[4,1] @cpu[0:0-1] {'axis': (1,), 'keepdims': True}
loss/cast_1 = identity(loss/reduce_max:0) : float32[4,1] @cpu[0:0-1] sbp(B) {}
loss/broadcast_sub = broadcast_sub(logits:0, loss/cast_1:0) : float32[4,6] @cpu[0:0-1] {}
loss/exp = exp(loss/broadcast_sub:0) : float32[4,6] @cpu[0:0-1] {}
loss/reduce_sum = reduce_sum(loss/exp:0) : float32[4,1] @cpu[0:0-1] {'axis': (1,), 'keepdims': True}
loss/cast_2 = identity(loss/reduce_sum:0) : float32[4,1] @cpu[0:0-1] sbp(B) {}
loss/reshape = reshape(loss/cast:0) : int32[4,1] @cpu[0:0-1] {'shape': (4, 1)}
loss/dim_gather = dim_gather(loss/broadcast_sub:0, loss/reshape:0) : float32[4,1] @cpu[0:0-1] {'dim': 1, 'first': 0}
loss/cast_3 = identity(loss/dim_gather:0) : float32[4,1] @cpu[0:0-1] sbp(B) {}
loss/log = log(loss/cast_2:0) : float32[4,1] @cpu[0:0-1] {}
loss/broadcast_sub_1 = broadcast_sub(loss/log:0, loss/cast_3:0) : float32[4,1] @cpu[0:0-1] {}
loss/reshape_1 = reshape(loss/broadcast_sub_1:0) : float32[4] @cpu[0:0-1] {'shape': (4,)}
loss/cast_4 = cast(loss/cast:0) : int64[4] @cpu[0:0-1] {'dtype': 'int64'}
loss/scalar_logical_less = scalar_logical_less(loss/cast_4:0) : int8[4] @cpu[0:0-1] {'operand': 6}
loss/scalar_logical_greater_equal = scalar_logical_greater_equal(loss/cast_4:0) : int8[4] @cpu[0:0-1] {'operand': 0}
loss/broadcast_mul = broadcast_mul(loss/scalar_logical_less:0, loss/scalar_logical_greater_equal:0) : int8[4] @cpu[0:0-1] {}
loss/cast_5 = cast(loss/broadcast_mul:0) : float32[4] @cpu[0:0-1] {'dtype': 'float32'}
loss/broadcast_div = broadcast_div(loss/exp:0, loss/cast_2:0) : float32[4,6] @cpu[0:0-1] {}
loss/cast_6 = identity(loss/broadcast_div:0) : float32[4,6] @cpu[0:0-1] sbp(S(1)) {}
loss/broadcast_div_1 = broadcast_div(loss/reshape_1:0, loss/cast_5:0) : float32[4] @cpu[0:0-1] {}
dy = constant() : float32[4] @cpu[0:0-1] {'dtype': 'float32', 'shape': (4,), 'value': 1.0}
grad/reshape = reshape(dy:0) : float32[4,1] @cpu[0:0-1] {'shape': (4, 1)}
grad/cast = identity(label:0) : int32[4] @cpu[0:0-1] sbp(B) {}
grad/one_hot = one_hot(grad/cast:0) : float32[4,6] @cpu[0:0-1] sbp(S(1)) {'classes': None, 'depth': 6, 'dtype': 'float32', 'first': 0, 'floating_off_value': 0.0, 'floating_on_value': 1.0, 'integer_off_value': 0, 'integer_on_value': 1}
grad/broadcast_sub = broadcast_sub(loss/cast_6:0, grad/one_hot:0) : float32[4,6] @cpu[0:0-1] {}
grad/cast_1 = identity(grad/broadcast_sub:0) : float32[4,6] @cpu[0:0-1] sbp(S(1)) {}
grad/broadcast_mul = broadcast_mul(grad/cast_1:0, grad/reshape:0) : float32[4,6] @cpu[0:0-1] {}
return loss/broadcast_div_1:0, grad/broadcast_mul:0
effects
"""
    assert apply(SplitClasses(), before) == after
