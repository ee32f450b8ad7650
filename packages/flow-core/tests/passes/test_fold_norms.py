"""Batch normalization folded into the weights of a convolution."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.fold_norms import FoldNorms


def test_a_norm_becomes_scaled_weights_and_a_bias(apply: Callable[..., str]) -> None:
    before = """
graph
x = input() : float32[1,2,3,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (1, 2, 3, 3)}
w = variable() : float32[2,2,1,1] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.5), 'regularizer': None, 'seed': None, 'shape': (2, 2, 1, 1), 'trainable': False}
mean = variable() : float32[2] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
variance = variable() : float32[2] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 1.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
gamma = variable() : float32[2] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 1.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
beta = variable() : float32[2] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
conv = conv2d(x:0, w:0) : float32[1,2,3,3] @cpu[0:0] {'data_format': 'channels_first', 'dilation_rate': (1, 1), 'filters': 2, 'groups': 1, 'kernel_size': (1, 1), 'padding_after': (0, 0), 'padding_before': (0, 0), 'strides': (1, 1)}
norm = normalization(conv:0, mean:0, variance:0, gamma:0, beta:0) : float32[1,2,3,3]; float32[2]; float32[2] @cpu[0:0] {'axis': 1, 'epsilon': 0.001, 'momentum': 0.99, 'training': False}
return norm:0
effects
"""
    after = """
graph
x = input() : float32[1,2,3,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (1, 2, 3, 3)}
w = variable() : float32[2,2,1,1] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.5), 'regularizer': None, 'seed': None, 'shape': (2, 2, 1, 1), 'trainable': False}
mean = variable() : float32[2] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
variance = variable() : float32[2] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 1.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
gamma = variable() : float32[2] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 1.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
beta = variable() : float32[2] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2,), 'trainable': False}
norm/scalar_add = scalar_add(variance:0) : float32[2] @cpu[0:0] {'operand': 0.001}
norm/rsqrt = rsqrt(norm/scalar_add:0) : float32[2] @cpu[0:0] {}
norm/broadcast_mul = broadcast_mul(norm/rsqrt:0, gamma:0) : float32[2] @cpu[0:0] {}
norm/broadcast_mul_1 = broadcast_mul(norm/broadcast_mul:0, mean:0) : float32[2] @cpu[0:0] {}
norm/broadcast_sub = broadcast_sub(beta:0, norm/broadcast_mul_1:0) : float32[2] @cpu[0:0] {}
norm/reshape = reshape(norm/broadcast_mul:0) : float32[2,1,1,1] @cpu[0:0] {'shape': (2, 1, 1, 1)}
norm/broadcast_mul_2 = broadcast_mul(w:0, norm/reshape:0) : float32[2,2,1,1] @cpu[0:0] {}
norm/conv2d = conv2d(x:0, norm/broadcast_mul_2:0) : float32[1,2,3,3] @cpu[0:0] {'data_format': 'channels_first', 'dilation_rate': (1, 1), 'filters': 2, 'groups': 1, 'kernel_size': (1, 1), 'padding_after': (0, 0), 'padding_before': (0, 0), 'strides': (1, 1)}
norm = bias_add(norm/conv2d:0, norm/broadcast_sub:0) : float32[1,2,3,3] @cpu[0:0] {'axis': 1}
return norm:0
effects
"""
    assert apply(FoldNorms(), before) == after
