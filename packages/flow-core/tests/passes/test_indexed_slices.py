"""Sparse updates of embedding tables."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.indexed_slices import IndexedSlices


def test_dense_gradient_of_a_configured_table_is_removed(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
table = variable() : float32[5,2] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (5, 2), 'trainable': True}
ids = input() : int64[3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'int64', 'shape': (3,)}
rows = input() : float32[3,2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (3, 2)}
rate = input() : float32[1] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (1,)}
grad = unsorted_segment_sum(rows:0, ids:0) : float32[5,2] @cpu[0:0] {'axis': 0, 'first': 0, 'num_segments': 5}
scaled = scalar_mul(grad:0) : float32[5,2] @cpu[0:0] {'operand': 0.5}
update = sgd_update(table:0, scaled:0, rate:0) :  @cpu[0:0] {'l1': 0.0, 'l2': 0.0, 'scale': 2.0, 'weight_decay': 0.0}
return
effects update
"""
    after = """
graph
table = variable() : float32[5,2] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (5, 2), 'trainable': True}
ids = input() : int64[3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'int64', 'shape': (3,)}
rows = input() : float32[3,2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (3, 2)}
rate = input() : float32[1] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (1,)}
update = indexed_slices_sgd_update(table:0, ids:0, rows:0, rate:0) :  @cpu[0:0] {'first': 0, 'scale': 1.0, 'weight_decay': 0.0}
return
effects update
"""
    assert apply(IndexedSlices(("table",)), before) == after
