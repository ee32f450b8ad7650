"""Buckets of all-reduces."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.bucket_all_reduces import BucketAllReduces


def test_all_reduces_move_up_into_one_bucket(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
"g0@0" = constant() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,), 'value': 0.0}
"g0@1" = constant() : float32[2] @cpu[0:1] {'dtype': 'float32', 'shape': (2,), 'value': 1.0}
"g1@0" = constant() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,), 'value': 1.0}
"g1@1" = constant() : float32[2] @cpu[0:1] {'dtype': 'float32', 'shape': (2,), 'value': 2.0}
"late@0" = exp("g1@0":0) : float32[2] @cpu[0:0] {}
reduce0 = boxing("g0@0":0, "g0@1":0) : float32[2]; float32[2] @cpu[0:0-1] {'blocks': (), 'collective': 'all_reduce', 'combine': 'sum', 'dtype': 'float32', 'fills': (), 'members': (), 'shapes': ((2,), (2,))}
reduce1 = boxing("g1@0":0, "g1@1":0) : float32[2]; float32[2] @cpu[0:0-1] {'blocks': (), 'collective': 'all_reduce', 'combine': 'sum', 'dtype': 'float32', 'fills': (), 'members': (), 'shapes': ((2,), (2,))}
"u0@0" = exp(reduce0:0) : float32[2] @cpu[0:0] {}
"u1@0" = exp(reduce1:0) : float32[2] @cpu[0:0] {}
return "late@0":0, "u0@0":0, "u1@0":0, reduce1:1
effects
"""
    after = """
graph
"g0@0" = constant() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,), 'value': 0.0}
"g0@1" = constant() : float32[2] @cpu[0:1] {'dtype': 'float32', 'shape': (2,), 'value': 1.0}
"g1@0" = constant() : float32[2] @cpu[0:0] {'dtype': 'float32', 'shape': (2,), 'value': 1.0}
"g1@1" = constant() : float32[2] @cpu[0:1] {'dtype': 'float32', 'shape': (2,), 'value': 2.0}
reduce0/bucket = boxing("g0@0":0, "g0@1":0, "g1@0":0, "g1@1":0) : float32[2]; float32[2]; float32[2]; float32[2] @cpu[0:0-1] {'blocks': (), 'collective': 'all_reduce', 'combine': 'sum', 'dtype': 'float32', 'fills': (), 'members': ('reduce0', 'reduce1'), 'shapes': ((2,), (2,), (2,), (2,))}
"late@0" = exp("g1@0":0) : float32[2] @cpu[0:0] {}
"u0@0" = exp(reduce0/bucket:0) : float32[2] @cpu[0:0] {}
"u1@0" = exp(reduce0/bucket:2) : float32[2] @cpu[0:0] {}
return "late@0":0, "u0@0":0, "u1@0":0, reduce0/bucket:3
effects
"""
    assert apply(BucketAllReduces(), before) == after
