"""Dead-code elimination."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.dead_code import DeadCode


def test_unread_ops_are_dropped_and_inputs_are_kept(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
x = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
unused = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
a = relu(x:0) : float32[2] @cpu[0:0] {}
dead = exp(a:0) : float32[2] @cpu[0:0] {}
deader = exp(dead:0) : float32[2] @cpu[0:0] {}
return a:0
effects
"""
    after = """
graph
x = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
unused = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
a = relu(x:0) : float32[2] @cpu[0:0] {}
return a:0
effects
"""
    assert apply(DeadCode(), before) == after
