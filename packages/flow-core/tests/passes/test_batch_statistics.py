"""Batch normalization over several devices."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.batch_statistics import BatchStatistics


def test_normalization_and_its_gradient_become_sums(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
x = input() : float32[4,2] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float32', 'shape': (4, 2)}
mean = variable() : float32[2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
variance = variable() : float32[2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
gamma = variable() : float32[2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': True}
beta = variable() : float32[2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': True}
norm = normalization(x:0, mean:0, variance:0, gamma:0, beta:0) : float32[4,2]; float32[2]; float32[2] @cpu[0:0-1] {'axis': 1, 'epsilon': 1e-05, 'momentum': 0.9, 'training': True}
dy = constant() : float32[4,2] @cpu[0:0-1] {'dtype': 'float32', 'shape': (4, 2), 'value': 1.0}
grad = normalization_grad(x:0, dy:0, norm:1, norm:2, gamma:0) : float32[4,2]; float32[2]; float32[2] @cpu[0:0-1] {'axis': 1, 'epsilon': 1e-05, 'training': True}
return norm:0, grad:0, grad:1
effects
"""
    after = """
graph
x = input() : float32[4,2] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float32', 'shape': (4, 2)}
mean = variable() : float32[2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
variance = variable() : float32[2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
gamma = variable() : float32[2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': True}
beta = variable() : float32[2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': True}
norm/reduce_sum = reduce_sum(x:0) : float32[2] @cpu[0:0-1] {'axis': (0,), 'keepdims': False}
norm/cast = identity(norm/reduce_sum:0) : float32[2] @cpu[0:0-1] sbp(B) {}
norm/scalar_mul = scalar_mul(norm/cast:0) : float32[2] @cpu[0:0-1] {'operand': 0.25}
norm/reshape = reshape(norm/scalar_mul:0) : float32[1,2] @cpu[0:0-1] {'shape': (1, 2)}
norm/broadcast_sub = broadcast_sub(x:0, norm/reshape:0) : float32[4,2] @cpu[0:0-1] {}
norm/square = square(norm/broadcast_sub:0) : float32[4,2] @cpu[0:0-1] {}
norm/reduce_sum_1 = reduce_sum(norm/square:0) : float32[2] @cpu[0:0-1] {'axis': (0,), 'keepdims': False}
norm/cast_1 = identity(norm/reduce_sum_1:0) : float32[2] @cpu[0:0-1] sbp(B) {}
norm/scalar_mul_1 = scalar_mul(norm/cast_1:0) : float32[2] @cpu[0:0-1] {'operand': 0.25}
norm/scalar_add = scalar_add(norm/scalar_mul_1:0) : float32[2] @cpu[0:0-1] {'operand': 1e-05}
norm/rsqrt = rsqrt(norm/scalar_add:0) : float32[2] @cpu[0:0-1] {}
norm/broadcast_mul = broadcast_mul(norm/rsqrt:0, gamma:0) : float32[2] @cpu[0:0-1] {}
norm/reshape_1 = reshape(norm/broadcast_mul:0) : float32[1,2] @cpu[0:0-1] {'shape': (1, 2)}
norm/broadcast_mul_1 = broadcast_mul(norm/broadcast_sub:0, norm/reshape_1:0) : float32[4,2] @cpu[0:0-1] {}
norm/reshape_2 = reshape(beta:0) : float32[1,2] @cpu[0:0-1] {'shape': (1, 2)}
norm/broadcast_add = broadcast_add(norm/broadcast_mul_1:0, norm/reshape_2:0) : float32[4,2] @cpu[0:0-1] {}
norm/scalar_mul_2 = scalar_mul(mean:0) : float32[2] @cpu[0:0-1] {'operand': 0.9}
norm/scalar_mul_3 = scalar_mul(norm/scalar_mul:0) : float32[2] @cpu[0:0-1] {'operand': 0.09999999999999998}
norm/broadcast_add_1 = broadcast_add(norm/scalar_mul_2:0, norm/scalar_mul_3:0) : float32[2] @cpu[0:0-1] {}
norm/assign = assign(mean:0, norm/broadcast_add_1:0) :  @cpu[0:0-1] {}
norm/scalar_mul_4 = scalar_mul(norm/scalar_mul_1:0) : float32[2] @cpu[0:0-1] {'operand': 1.3333333333333333}
norm/scalar_mul_5 = scalar_mul(variance:0) : float32[2] @cpu[0:0-1] {'operand': 0.9}
norm/scalar_mul_6 = scalar_mul(norm/scalar_mul_4:0) : float32[2] @cpu[0:0-1] {'operand': 0.09999999999999998}
norm/broadcast_add_2 = broadcast_add(norm/scalar_mul_5:0, norm/scalar_mul_6:0) : float32[2] @cpu[0:0-1] {}
norm/assign_1 = assign(variance:0, norm/broadcast_add_2:0) :  @cpu[0:0-1] {}
dy = constant() : float32[4,2] @cpu[0:0-1] {'dtype': 'float32', 'shape': (4, 2), 'value': 1.0}
grad/reshape = reshape(norm/scalar_mul:0) : float32[1,2] @cpu[0:0-1] {'shape': (1, 2)}
grad/broadcast_sub = broadcast_sub(x:0, grad/reshape:0) : float32[4,2] @cpu[0:0-1] {}
grad/reshape_1 = reshape(norm/rsqrt:0) : float32[1,2] @cpu[0:0-1] {'shape': (1, 2)}
grad/broadcast_mul = broadcast_mul(grad/broadcast_sub:0, grad/reshape_1:0) : float32[4,2] @cpu[0:0-1] {}
grad/reduce_sum = reduce_sum(dy:0) : float32[2] @cpu[0:0-1] {'axis': (0,), 'keepdims': False}
grad/cast = identity(grad/reduce_sum:0) : float32[2] @cpu[0:0-1] sbp(B) {}
grad/broadcast_mul_1 = broadcast_mul(grad/broadcast_mul:0, dy:0) : float32[4,2] @cpu[0:0-1] {}
grad/reduce_sum_1 = reduce_sum(grad/broadcast_mul_1:0) : float32[2] @cpu[0:0-1] {'axis': (0,), 'keepdims': False}
grad/cast_1 = identity(grad/reduce_sum_1:0) : float32[2] @cpu[0:0-1] sbp(B) {}
grad/scalar_mul = scalar_mul(grad/cast:0) : float32[2] @cpu[0:0-1] {'operand': 0.25}
grad/reshape_2 = reshape(grad/scalar_mul:0) : float32[1,2] @cpu[0:0-1] {'shape': (1, 2)}
grad/scalar_mul_1 = scalar_mul(grad/cast_1:0) : float32[2] @cpu[0:0-1] {'operand': 0.25}
grad/reshape_3 = reshape(grad/scalar_mul_1:0) : float32[1,2] @cpu[0:0-1] {'shape': (1, 2)}
grad/broadcast_mul_2 = broadcast_mul(grad/broadcast_mul:0, grad/reshape_3:0) : float32[4,2] @cpu[0:0-1] {}
grad/broadcast_add = broadcast_add(grad/reshape_2:0, grad/broadcast_mul_2:0) : float32[4,2] @cpu[0:0-1] {}
grad/broadcast_sub_1 = broadcast_sub(dy:0, grad/broadcast_add:0) : float32[4,2] @cpu[0:0-1] {}
grad/broadcast_mul_3 = broadcast_mul(gamma:0, norm/rsqrt:0) : float32[2] @cpu[0:0-1] {}
grad/reshape_4 = reshape(grad/broadcast_mul_3:0) : float32[1,2] @cpu[0:0-1] {'shape': (1, 2)}
grad/broadcast_mul_4 = broadcast_mul(grad/broadcast_sub_1:0, grad/reshape_4:0) : float32[4,2] @cpu[0:0-1] {}
return norm/broadcast_add:0, grad/broadcast_mul_4:0, grad/cast_1:0
effects norm/assign, norm/assign_1
"""
    assert apply(BatchStatistics(), before) == after
