"""Constant folding."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flow_core.passes.base import Pass
from flow_core.passes.constant_folding import ConstantFolding


def test_ops_on_constants_become_literals_and_constants(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
x = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
one = constant() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,), 'value': 1.0}
lit = literal() : float32[2] @cpu[0:0] {'data': (1.0, 2.0), 'dtype': 'float32', 'shape': (2,)}
s = broadcast_add(one:0, lit:0) : float32[2] @cpu[0:0] {}
n = negative(one:0) : float32[2] @cpu[0:0] {}
y = broadcast_mul(x:0, s:0) : float32[2] @cpu[0:0] {}
z = broadcast_mul(y:0, n:0) : float32[2] @cpu[0:0] {}
return z:0
effects
"""
    after = """
graph
x = input() : float32[2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}
one = constant() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,), 'value': 1.0}
lit = literal() : float32[2] @cpu[0:0] {'data': (1.0, 2.0), 'dtype': 'float32', 'shape': (2,)}
s = literal() : float32[2] @cpu[0:0] {'data': (2.0, 3.0), 'dtype': 'float32', 'shape': (2,)}
n = constant() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,), 'value': -1.0}
y = broadcast_mul(x:0, s:0) : float32[2] @cpu[0:0] {}
z = broadcast_mul(y:0, n:0) : float32[2] @cpu[0:0] {}
return z:0
effects
"""
    assert apply(ConstantFolding(), before) == after


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_quotients_are_not_truncated(apply: Callable[[Pass, str], str], dtype: str) -> None:
    def constant(name: str, value: float) -> str:
        attrs = f"{{'dtype': '{dtype}', 'shape': (2,), 'value': {value}}}"
        return f"{name} = constant() : {dtype}[2] @cpu[0:0] {attrs}"

    divided = f"q = broadcast_div(one:0, four:0) : {dtype}[2] @cpu[0:0] {{}}"
    head = ["", "graph", constant("one", 1.0), constant("four", 4.0)]
    tail = ["return q:0", "effects", ""]
    after = apply(ConstantFolding(), "\n".join([*head, divided, *tail]))
    assert after == "\n".join([*head, constant("q", 0.25), *tail])
