"""Norm-scaled updates of split variables."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.split_norms import SplitNorms


def test_a_lars_update_becomes_norms_of_parts_and_momentum(
    apply: Callable[[Pass, str], str],
) -> None:
    before = """
graph
w = variable() : float32[4,2] @cpu[0:0-1] sbp(S(0)) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (4, 2), 'trainable': True}
m = variable() : float32[4,2] @cpu[0:0-1] sbp(S(0)) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (4, 2), 'trainable': False}
dw = constant() : float32[4,2] @cpu[0:0-1] {'dtype': 'float32', 'shape': (4, 2), 'value': 1.0}
rate = constant() : float32[1] @cpu[0:0-1] {'dtype': 'float32', 'shape': (1,), 'value': 0.1}
step = constant() : int64[1] @cpu[0:0-1] {'dtype': 'int64', 'shape': (1,), 'value': 1}
update = lars_update(w:0, dw:0, rate:0, step:0, m:0) :  @cpu[0:0-1] {'epsilon': 1e-09, 'l1': 0.0, 'l2': 0.0, 'lars_coefficient': 0.0001, 'momentum_beta': 0.9, 'scale': 1.0, 'weight_decay': 0.0, 'zero_ratio': 1.0}
return
effects update
"""
    after = """
graph
w = variable() : float32[4,2] @cpu[0:0-1] sbp(S(0)) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (4, 2), 'trainable': True}
m = variable() : float32[4,2] @cpu[0:0-1] sbp(S(0)) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (4, 2), 'trainable': False}
dw = constant() : float32[4,2] @cpu[0:0-1] {'dtype': 'float32', 'shape': (4, 2), 'value': 1.0}
rate = constant() : float32[1] @cpu[0:0-1] {'dtype': 'float32', 'shape': (1,), 'value': 0.1}
step = constant() : int64[1] @cpu[0:0-1] {'dtype': 'int64', 'shape': (1,), 'value': 1}
update/cast = identity(dw:0) : float32[4,2] @cpu[0:0-1] sbp(S(0)) {}
update/square_sum = square_sum(w:0) : float64[] @cpu[0:0-1] {'wide': True}
update/sqrt = sqrt(update/square_sum:0) : float64[] @cpu[0:0-1] {}
update/scalar_mul = scalar_mul(update/sqrt:0) : float64[] @cpu[0:0-1] {'operand': 0.35355339059327373}
update/square_sum_1 = square_sum(update/cast:0) : float64[] @cpu[0:0-1] {'wide': True}
update/sqrt_1 = sqrt(update/square_sum_1:0) : float64[] @cpu[0:0-1] {}
update/scalar_mul_1 = scalar_mul(update/sqrt_1:0) : float64[] @cpu[0:0-1] {'operand': 0.35355339059327373}
update/scalar_add = scalar_add(update/scalar_mul_1:0) : float64[] @cpu[0:0-1] {'operand': 1e-09}
update/scalar_logical_greater = scalar_logical_greater(update/scalar_add:0) : int8[] @cpu[0:0-1] {'operand': 0.0}
update/where_scalar_y = where_scalar_y(update/scalar_logical_greater:0, update/scalar_add:0) : float64[] @cpu[0:0-1] {'operand': 1.0}
update/broadcast_div = broadcast_div(update/scalar_mul:0, update/where_scalar_y:0) : float64[] @cpu[0:0-1] {}
update/where_scalar_y_1 = where_scalar_y(update/scalar_logical_greater:0, update/broadcast_div:0) : float64[] @cpu[0:0-1] {'operand': 0.0}
update/scalar_mul_2 = scalar_mul(update/where_scalar_y_1:0) : float64[] @cpu[0:0-1] {'operand': 0.0001}
update/broadcast_mul = broadcast_mul(update/scalar_mul:0, update/scalar_mul_1:0) : float64[] @cpu[0:0-1] {}
update/scalar_logical_not_equal = scalar_logical_not_equal(update/broadcast_mul:0) : int8[] @cpu[0:0-1] {'operand': 0.0}
update/where_scalar_y_2 = where_scalar_y(update/scalar_logical_not_equal:0, update/scalar_mul_2:0) : float64[] @cpu[0:0-1] {'operand': 1.0}
update/cast_1 = cast(update/where_scalar_y_2:0) : float32[] @cpu[0:0-1] {'dtype': 'float32'}
update/momentum_update = momentum_update(w:0, update/cast:0, rate:0, m:0, update/cast_1:0) :  @cpu[0:0-1] {'beta': 0.9, 'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
return
effects update/momentum_update
"""
    assert apply(SplitNorms(), before) == after
