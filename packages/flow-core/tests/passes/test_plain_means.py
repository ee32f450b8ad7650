"""Means on device types without a kernel for means."""

from __future__ import annotations

from collections.abc import Callable

import plain_device

from flow_core.passes.plain_means import PlainMeans


def test_a_mean_without_a_kernel_becomes_a_sum_in_float32(apply: Callable[..., str]) -> None:
    before = """
graph
x = input() : float16[4,2] @plain[0:0] {'batch_axis': 0, 'dtype': 'float16', 'shape': (4, 2)}
y = input() : float16[4,2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float16', 'shape': (4, 2)}
mean = reduce_mean(x:0) : float16[2] @plain[0:0] {'axis': (0,), 'count': 0, 'keepdims': False}
kept = reduce_mean(y:0) : float16[2] @cpu[0:0] {'axis': (0,), 'count': 0, 'keepdims': False}
return mean:0, kept:0
effects
"""
    after = """
graph
x = input() : float16[4,2] @plain[0:0] {'batch_axis': 0, 'dtype': 'float16', 'shape': (4, 2)}
y = input() : float16[4,2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float16', 'shape': (4, 2)}
mean/cast = cast(x:0) : float32[4,2] @plain[0:0] {'dtype': 'float32'}
mean/reduce_sum = reduce_sum(mean/cast:0) : float32[2] @plain[0:0] {'axis': (0,), 'keepdims': False}
mean/scalar_mul = scalar_mul(mean/reduce_sum:0) : float32[2] @plain[0:0] {'operand': 0.25}
mean = cast(mean/scalar_mul:0) : float16[2] @plain[0:0] {'dtype': 'float16'}
kept = reduce_mean(y:0) : float16[2] @cpu[0:0] {'axis': (0,), 'count': 0, 'keepdims': False}
return mean:0, kept:0
effects
"""
    kernels = plain_device.registry((*plain_device.COMBINED, "reduce_mean"))
    assert apply(PlainMeans(), before, kernels) == after
