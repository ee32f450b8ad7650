"""Activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.checkpointing import Checkpointing


def test_values_inside_a_segment_are_recomputed_for_backward_readers(
    apply: Callable[[Pass, str], str],
) -> None:
    before = """
graph
x = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
a = exp(x:0) : float32[2] @cpu[0:0] {}
b = relu(a:0) : float32[2] @cpu[0:0] {}
c = exp(b:0) : float32[2] @cpu[0:0] {}
dy = constant() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,), 'value': 1.0}
g1 = broadcast_mul(dy:0, c:0) : float32[2] @cpu[0:0] {}
g2 = broadcast_mul(g1:0, a:0) : float32[2] @cpu[0:0] {}
return g2:0
effects
"""
    after = """
graph
x = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
a = exp(x:0) : float32[2] @cpu[0:0] {}
b = relu(a:0) : float32[2] @cpu[0:0] {}
c = exp(b:0) : float32[2] @cpu[0:0] {}
dy = constant() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,), 'value': 1.0}
g1 = broadcast_mul(dy:0, c:0) : float32[2] @cpu[0:0] {}
a/recomputed = exp(x:0) : float32[2] @cpu[0:0] after(g1) {}
g2 = broadcast_mul(g1:0, a/recomputed:0) : float32[2] @cpu[0:0] {}
return g2:0
effects
"""
    assert (
        apply(
            Checkpointing(segments=(("a", "b"),), forward=frozenset(("x", "a", "b", "c"))), before
        )
        == after
    )
