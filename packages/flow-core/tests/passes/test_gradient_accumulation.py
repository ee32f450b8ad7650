"""Gradient accumulation."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.gradient_accumulation import GradientAccumulation


def test_a_step_has_two_micro_batches_and_one_update(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
x = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
w = variable() : float32[3,1] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (3, 1), 'trainable': True}
y = matmul(x:0, w:0) : float32[2,1] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
loss = reduce_sum(y:0) : float32[1] @cpu[0:0] {'axis': (0, 1), 'keepdims': False}
grad = reduce_sum(x:0) : float32[3] @cpu[0:0] {'axis': (0,), 'keepdims': False}
g = reshape(grad:0) : float32[3,1] @cpu[0:0] {'shape': (3, 1)}
sum = identity(g:0) : float32[3,1] @cpu[0:0] {}
rate = constant() : float32[1] @cpu[0:0] {'dtype': 'float32', 'shape': (1,), 'value': 0.1}
update = sgd_update(w:0, sum:0, rate:0) :  @cpu[0:0] {'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
return loss:0, y:0, w:0
effects update
"""
    after = """
graph
w = variable() : float32[3,1] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (3, 1), 'trainable': True}
rate = constant() : float32[1] @cpu[0:0] {'dtype': 'float32', 'shape': (1,), 'value': 0.1}
x/micro_0 = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
y/micro_0 = matmul(x/micro_0:0, w:0) : float32[2,1] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
loss/micro_0 = reduce_sum(y/micro_0:0) : float32[1] @cpu[0:0] {'axis': (0, 1), 'keepdims': False}
grad/micro_0 = reduce_sum(x/micro_0:0) : float32[3] @cpu[0:0] {'axis': (0,), 'keepdims': False}
g/micro_0 = reshape(grad/micro_0:0) : float32[3,1] @cpu[0:0] {'shape': (3, 1)}
x/micro_1 = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
y/micro_1 = matmul(x/micro_1:0, w:0) : float32[2,1] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
loss/micro_1 = reduce_sum(y/micro_1:0) : float32[1] @cpu[0:0] {'axis': (0, 1), 'keepdims': False}
grad/micro_1 = reduce_sum(x/micro_1:0) : float32[3] @cpu[0:0] {'axis': (0,), 'keepdims': False}
g/micro_1 = reshape(grad/micro_1:0) : float32[3,1] @cpu[0:0] {'shape': (3, 1)}
sum = add_n(g/micro_0:0, g/micro_1:0) : float32[3,1] @cpu[0:0] {}
update = sgd_update(w:0, sum:0, rate:0) :  @cpu[0:0] {'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
loss/packed_0 = concat(loss/micro_0:0, loss/micro_1:0) : float32[2] @cpu[0:0] {'axis': 0, 'max_dim_size': None}
y/packed_0 = concat(y/micro_0:0, y/micro_1:0) : float32[4,1] @cpu[0:0] {'axis': 0, 'max_dim_size': None}
return loss/packed_0:0, y/packed_0:0, w:0
effects update
"""
    assert apply(GradientAccumulation(steps=2, sums=("sum",)), before) == after
