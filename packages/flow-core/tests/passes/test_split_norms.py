"""Norm-scaled updates of split variables."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.split_norms import SplitNorms


def test_a_lars_update_becomes_norms_of_parts_and_its_formula(
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
update/reshape = reshape(rate:0) : float32[] @cpu[0:0-1] {'shape': ()}
update/cast_1 = cast(update/reshape:0) : float64[] @cpu[0:0-1] {'dtype': 'float64'}
update/reshape_1 = reshape(step:0) : int64[] @cpu[0:0-1] {'shape': ()}
update/cast_2 = cast(update/reshape_1:0) : float64[] @cpu[0:0-1] {'dtype': 'float64'}
update/square_sum = square_sum(w:0) : float64[] @cpu[0:0-1] {'wide': True}
update/sqrt = sqrt(update/square_sum:0) : float64[] @cpu[0:0-1] {}
update/square_sum_1 = square_sum(update/cast:0) : float64[] @cpu[0:0-1] {'wide': True}
update/sqrt_1 = sqrt(update/square_sum_1:0) : float64[] @cpu[0:0-1] {}
update/scalar_mul = scalar_mul(update/sqrt:0) : float64[] @cpu[0:0-1] {'operand': 0.35355339059327373}
update/scalar_logical_equal = scalar_logical_equal(update/scalar_mul:0) : int8[] @cpu[0:0-1] {'operand': 0.0}
update/cast_3 = cast(update/scalar_logical_equal:0) : float64[] @cpu[0:0-1] {'dtype': 'float64'}
update/scalar_mul_1 = scalar_mul(update/sqrt_1:0) : float64[] @cpu[0:0-1] {'operand': 0.35355339059327373}
update/scalar_logical_equal_1 = scalar_logical_equal(update/scalar_mul_1:0) : int8[] @cpu[0:0-1] {'operand': 0.0}
update/cast_4 = cast(update/scalar_logical_equal_1:0) : float64[] @cpu[0:0-1] {'dtype': 'float64'}
update/broadcast_add = broadcast_add(update/cast_3:0, update/cast_4:0) : float64[] @cpu[0:0-1] {}
update/scalar_mul_2 = scalar_mul(update/sqrt:0) : float64[] @cpu[0:0-1] {'operand': 0.35355339059327373}
update/scalar_mul_3 = scalar_mul(update/scalar_mul_2:0) : float64[] @cpu[0:0-1] {'operand': 0.0001}
update/scalar_mul_4 = scalar_mul(update/sqrt_1:0) : float64[] @cpu[0:0-1] {'operand': 0.35355339059327373}
update/scalar_add = scalar_add(update/scalar_mul_4:0) : float64[] @cpu[0:0-1] {'operand': 1e-09}
update/scalar_logical_not_equal = scalar_logical_not_equal(update/scalar_add:0) : int8[] @cpu[0:0-1] {'operand': 0.0}
update/where_scalar_y = where_scalar_y(update/scalar_logical_not_equal:0, update/scalar_add:0) : float64[] @cpu[0:0-1] {'operand': 1.0}
update/broadcast_div = broadcast_div(update/scalar_mul_3:0, update/where_scalar_y:0) : float64[] @cpu[0:0-1] {}
update/scalar_logical_not_equal_1 = scalar_logical_not_equal(update/scalar_add:0) : int8[] @cpu[0:0-1] {'operand': 0.0}
update/where_scalar_y_1 = where_scalar_y(update/scalar_logical_not_equal_1:0, update/broadcast_div:0) : float64[] @cpu[0:0-1] {'operand': 0.0}
update/scalar_logical_not_equal_2 = scalar_logical_not_equal(update/broadcast_add:0) : int8[] @cpu[0:0-1] {'operand': 0.0}
update/where_scalar_x = where_scalar_x(update/scalar_logical_not_equal_2:0, update/where_scalar_y_1:0) : float64[] @cpu[0:0-1] {'operand': 1.0}
update/broadcast_mul = broadcast_mul(update/cast_1:0, update/where_scalar_x:0) : float64[] @cpu[0:0-1] {}
update/scalar_mul_5 = scalar_mul(m:0) : float32[4,2] @cpu[0:0-1] {'operand': 0.9}
update/scalar_mul_6 = scalar_mul(update/broadcast_mul:0) : float64[] @cpu[0:0-1] {'operand': -1.0}
update/cast_5 = cast(update/scalar_mul_6:0) : float32[] @cpu[0:0-1] {'dtype': 'float32'}
update/broadcast_mul_1 = broadcast_mul(update/cast:0, update/cast_5:0) : float32[4,2] @cpu[0:0-1] {}
update/broadcast_add_1 = broadcast_add(update/scalar_mul_5:0, update/broadcast_mul_1:0) : float32[4,2] @cpu[0:0-1] {}
update/broadcast_add_2 = broadcast_add(w:0, update/broadcast_add_1:0) : float32[4,2] @cpu[0:0-1] {}
update/assign = assign(w:0, update/broadcast_add_2:0) :  @cpu[0:0-1] {}
update/assign_1 = assign(m:0, update/broadcast_add_1:0) :  @cpu[0:0-1] {}
return
effects update/assign, update/assign_1
"""
    assert apply(SplitNorms(), before) == after
