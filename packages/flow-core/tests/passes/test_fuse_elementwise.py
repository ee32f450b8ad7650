"""Fusion of elementwise ops."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.fuse_elementwise import FuseElementwise


def test_elementwise_chain_becomes_one_op_with_its_external_outputs(
    apply: Callable[[Pass, str], str],
) -> None:
    before = """
graph
x = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
a = relu(x:0) : float32[2] @cpu[0:0] {}
b = exp(a:0) : float32[2] @cpu[0:0] {}
c = broadcast_mul(b:0, a:0) : float32[2] @cpu[0:0] {}
m = reduce_sum(c:0) : float32[1] @cpu[0:0] {'axis': (0,), 'keepdims': False}
r = relu(b:0) : float32[2] @cpu[0:0] {}
return m:0, b:0
effects
"""
    after = """
graph
x = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
c = fused(x:0) : float32[2]; float32[2] @cpu[0:0] {'body': (('relu', (-1,), (), (2,), 'float32'), ('exp', (0,), (), (2,), 'float32'), ('broadcast_mul', (1, 0), (), (2,), 'float32')), 'outputs': (1, 2)}
m = reduce_sum(c:1) : float32[1] @cpu[0:0] {'axis': (0,), 'keepdims': False}
r = relu(c:0) : float32[2] @cpu[0:0] {}
return m:0, c:0
effects
"""
    assert apply(FuseElementwise(), before) == after
