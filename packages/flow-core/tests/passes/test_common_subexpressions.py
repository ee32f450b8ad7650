"""Common-subexpression elimination."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.common_subexpressions import CommonSubexpressions


def test_equal_ops_are_merged_transitively(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
x = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
a = relu(x:0) : float32[2] @cpu[0:0] {}
b = relu(x:0) : float32[2] @cpu[0:0] {}
c = exp(a:0) : float32[2] @cpu[0:0] {}
d = exp(b:0) : float32[2] @cpu[0:0] {}
e = broadcast_add(c:0, d:0) : float32[2] @cpu[0:0] {}
return e:0, d:0
effects
"""
    after = """
graph
x = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
a = relu(x:0) : float32[2] @cpu[0:0] {}
c = exp(a:0) : float32[2] @cpu[0:0] {}
e = broadcast_add(c:0, c:0) : float32[2] @cpu[0:0] {}
return e:0, c:0
effects
"""
    assert apply(CommonSubexpressions(), before) == after
