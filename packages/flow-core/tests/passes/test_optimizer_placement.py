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


def test_weights_are_gathered_again_for_readers_that_do_not_follow(
    apply: Callable[[Pass, str], str],
) -> None:
    """The first weight is read twice with another one in between, the second one twice in a row.

    A cast of a weight is repeated with its gather.
    """
    before = """
graph
x = input() : float16[2,2] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float16', 'shape': (2, 2)}
a = variable() : float32[2,2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': True}
b = variable() : float32[2,2] @cpu[0:0-1] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': True}
ha = cast(a:0) : float16[2,2] @cpu[0:0-1] {'dtype': 'float16'}
hb = cast(b:0) : float16[2,2] @cpu[0:0-1] {'dtype': 'float16'}
y = matmul(x:0, ha:0) : float16[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
z = matmul(y:0, hb:0) : float16[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
dz = matmul(z:0, hb:0) : float16[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
dy = matmul(dz:0, ha:0) : float16[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
dw = cast(dy:0) : float32[2,2] @cpu[0:0-1] {'dtype': 'float32'}
rate = constant() : float32[1] @cpu[0:0-1] {'dtype': 'float32', 'shape': (1,), 'value': 0.1}
ua = sgd_update(a:0, dw:0, rate:0) :  @cpu[0:0-1] {'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
ub = sgd_update(b:0, dw:0, rate:0) :  @cpu[0:0-1] {'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
return dy:0
effects ua, ub
"""
    after = """
graph
x = input() : float16[2,2] @cpu[0:0-1] {'batch_axis': 0, 'dtype': 'float16', 'shape': (2, 2)}
a = variable() : float32[2,2] @cpu[0:0-1] sbp(S(0)) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': True}
a/gathered = identity(a:0) : float32[2,2] @cpu[0:0-1] sbp(B) {}
b = variable() : float32[2,2] @cpu[0:0-1] sbp(S(0)) {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (2, 2), 'trainable': True}
b/gathered = identity(b:0) : float32[2,2] @cpu[0:0-1] sbp(B) {}
ha = cast(a/gathered:0) : float16[2,2] @cpu[0:0-1] {'dtype': 'float16'}
hb = cast(b/gathered:0) : float16[2,2] @cpu[0:0-1] {'dtype': 'float16'}
y = matmul(x:0, ha:0) : float16[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
z = matmul(y:0, hb:0) : float16[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
dz = matmul(z:0, hb:0) : float16[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
a/part_1/recomputed = identity(a:0) : float32[2,2] @cpu[0:0-1] sbp(S(0)) {}
a/gathered_1/recomputed = identity(a/part_1/recomputed:0) : float32[2,2] @cpu[0:0-1] sbp(B) {}
ha_1/recomputed = cast(a/gathered_1/recomputed:0) : float16[2,2] @cpu[0:0-1] {'dtype': 'float16'}
dy = matmul(dz:0, ha_1/recomputed:0) : float16[2,2] @cpu[0:0-1] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
dw = cast(dy:0) : float32[2,2] @cpu[0:0-1] {'dtype': 'float32'}
rate = constant() : float32[1] @cpu[0:0-1] {'dtype': 'float32', 'shape': (1,), 'value': 0.1}
ua = sgd_update(a:0, dw:0, rate:0) :  @cpu[0:0-1] {'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
ub = sgd_update(b:0, dw:0, rate:0) :  @cpu[0:0-1] {'l1': 0.0, 'l2': 0.0, 'scale': 1.0, 'weight_decay': 0.0}
return dy:0
effects ua, ub
"""
    assert apply(OptimizerPlacement("distributed_split", threshold=1, ahead=1), before) == after
