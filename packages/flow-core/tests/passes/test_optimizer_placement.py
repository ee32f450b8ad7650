"""Optimizer-state sharding."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.optimizer_placement import OptimizerPlacement, Owned, SharedPlacement
from flow_core.sharding.sbp import Split
from flow_core.sharding.topology import Placement


def test_weights_and_states_are_split_and_gathered_for_readers(
    apply: Callable[[Pass, str], str],
) -> None:
    before = """
graph
x = input() : float32[4,2] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float32', 'shape': (4, 2)}
w = variable() : float32[2,2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': True}
m = variable() : float32[2,2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': False}
y = matmul(x:0, w:0) : float32[4,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
dw = matmul(x:0, y:0) : float32[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': True, 'transpose_b': False}
rate = constant() : float32[1] @cpu[0:0-1] {'dtype': 'float32', 'shape': (1,), 'value': 0.1}
update = momentum_update(w:0, dw:0, rate:0, m:0) :  @cpu[0:0-1] {'beta': 0.9, 'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
return y:0
effects update
"""
    after = """
graph
x = input() : float32[4,2] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float32', 'shape': (4, 2)}
w = variable() : float32[2,2] @cpu[0:0-1] sbp(S(0)) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': True}
w/gathered = identity(w:0) : float32[2,2] @cpu[0:0-1] sbp(B) {}
m = variable() : float32[2,2] @cpu[0:0-1] sbp(S(0)) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': False}
y = matmul(x:0, w/gathered:0) : float32[4,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
dw = matmul(x:0, y:0) : float32[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': True, 'transpose_b': False}
rate = constant() : float32[1] @cpu[0:0-1] {'dtype': 'float32', 'shape': (1,), 'value': 0.1}
update = momentum_update(w:0, dw:0, rate:0, m:0) :  @cpu[0:0-1] {'beta': 0.9, 'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
return y:0
effects update
"""
    assert apply(OptimizerPlacement("distributed_split", threshold=1), before) == after


def test_weight_and_its_states_are_placed_on_one_device(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
x = input() : float32[4,2] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float32', 'shape': (4, 2)}
w = variable() : float32[2,2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': True}
m = variable() : float32[2,2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': False}
y = matmul(x:0, w:0) : float32[4,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
dw = matmul(x:0, y:0) : float32[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': True, 'transpose_b': False}
rate = constant() : float32[1] @cpu[0:0-1] {'dtype': 'float32', 'shape': (1,), 'value': 0.1}
update = momentum_update(w:0, dw:0, rate:0, m:0) :  @cpu[0:0-1] {'beta': 0.9, 'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
return y:0
effects update
"""
    after = """
graph
x = input() : float32[4,2] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float32', 'shape': (4, 2)}
w = variable() : float32[2,2] @cpu[0:0] sbp(B) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': True}
w/gathered = identity(w:0) : float32[2,2] @cpu[0:0-1] sbp(B) {}
m = variable() : float32[2,2] @cpu[0:0] sbp(B) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': False}
y = matmul(x:0, w/gathered:0) : float32[4,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
dw = matmul(x:0, y:0) : float32[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': True, 'transpose_b': False}
rate = constant() : float32[1] @cpu[0:0-1] {'dtype': 'float32', 'shape': (1,), 'value': 0.1}
update = momentum_update(w:0, dw:0, rate:0, m:0) :  @cpu[0:0] {'beta': 0.9, 'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
return y:0
effects update
"""
    assert apply(OptimizerPlacement("non_distributed", threshold=1), before) == after


def test_variables_of_another_job_keep_its_layout(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
x = input() : float32[4,2] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float32', 'shape': (4, 2)}
w = variable() : float32[2,2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': True}
y = matmul(x:0, w:0) : float32[4,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
return y:0
effects
"""
    after = """
graph
x = input() : float32[4,2] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float32', 'shape': (4, 2)}
w = variable() : float32[2,2] @cpu[0:0-1] sbp(S(0)) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': True}
w/gathered = identity(w:0) : float32[2,2] @cpu[0:0-1] sbp(B) {}
y = matmul(x:0, w/gathered:0) : float32[4,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
return y:0
effects
"""
    assert (
        apply(
            SharedPlacement({"w": Owned(Placement.parse("cpu", "0:0-1"), ((Split(0),),))}), before
        )
        == after
    )
