"""Quantization-aware training."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.quantization.training_aware import QuantizationAware


def test_operands_and_results_of_int8_ops_are_rounded(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
x = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
w = variable() : float32[3,4] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (3, 4), 'trainable': True}
step = variable() : int64[1] @cpu[0:0] {'dtype': 'int64', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (1,), 'trainable': False}
r = reshape(w:0) : float32[3,4] @cpu[0:0] {'shape': (3, 4)}
m = matmul(x:0, r:0) : float32[2,4] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
y = exp(m:0) : float32[2,4] @cpu[0:0] {}
return y:0, m:0
effects
"""
    after = """
graph
step = variable() : int64[1] @cpu[0:0] {'dtype': 'int64', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (1,), 'trainable': False}
x = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
w = variable() : float32[3,4] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (3, 4), 'trainable': True}
r = reshape(w:0) : float32[3,4] @cpu[0:0] {'shape': (3, 4)}
x-out-fake-quant-observer-fake-quant-moving-max = variable() : float32[1] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0), 'regularizer': None, 'seed': None, 'shape': (1,), 'trainable': False}
x-out-fake-quant-observer-fake-quant-moving-min = variable() : float32[1] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0), 'regularizer': None, 'seed': None, 'shape': (1,), 'trainable': False}
x-out-fake-quant-observer = moving_average_min_max_observer(x:0, step:0, x-out-fake-quant-observer-fake-quant-moving-max:0, x-out-fake-quant-observer-fake-quant-moving-min:0) : float32[1]; float32[1] @cpu[0:0] {'momentum': 0.95, 'quantization_bit': 8, 'quantization_scheme': 'symmetric', 'stop_update_after_iters': 100, 'training': True}
x-out-fake-quant = fake_quantization(x:0, x-out-fake-quant-observer:0, x-out-fake-quant-observer:1) : float32[2,3] @cpu[0:0] {'quantization_bit': 8, 'quantization_scheme': 'symmetric'}
r-out_0-fake-quant-observer = min_max_observer(r:0) : float32[1]; float32[1] @cpu[0:0] {'per_layer_quantization': True, 'quantization_bit': 8, 'quantization_scheme': 'symmetric'}
r-out_0-fake-quant = fake_quantization(r:0, r-out_0-fake-quant-observer:0, r-out_0-fake-quant-observer:1) : float32[3,4] @cpu[0:0] {'quantization_bit': 8, 'quantization_scheme': 'symmetric'}
m = matmul(x-out-fake-quant:0, r-out_0-fake-quant:0) : float32[2,4] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
m-out_0-fake-quant-observer-fake-quant-moving-max = variable() : float32[1] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0), 'regularizer': None, 'seed': None, 'shape': (1,), 'trainable': False}
m-out_0-fake-quant-observer-fake-quant-moving-min = variable() : float32[1] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0), 'regularizer': None, 'seed': None, 'shape': (1,), 'trainable': False}
m-out_0-fake-quant-observer = moving_average_min_max_observer(m:0, step:0, m-out_0-fake-quant-observer-fake-quant-moving-max:0, m-out_0-fake-quant-observer-fake-quant-moving-min:0) : float32[1]; float32[1] @cpu[0:0] {'momentum': 0.95, 'quantization_bit': 8, 'quantization_scheme': 'symmetric', 'stop_update_after_iters': 100, 'training': True}
m-out_0-fake-quant = fake_quantization(m:0, m-out_0-fake-quant-observer:0, m-out_0-fake-quant-observer:1) : float32[2,4] @cpu[0:0] {'quantization_bit': 8, 'quantization_scheme': 'symmetric'}
y = exp(m-out_0-fake-quant:0) : float32[2,4] @cpu[0:0] {}
return y:0, m-out_0-fake-quant:0
effects x-out-fake-quant-observer, m-out_0-fake-quant-observer
"""
    assert apply(QuantizationAware(step="step", stop_after=100), before) == after
