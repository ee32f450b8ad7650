"""Casts of mixed precision."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.passes.base import Pass
from flow_core.passes.mixed_precision import MixedPrecision


def test_products_and_ops_between_them_compute_in_half_precision(
    apply: Callable[[Pass, str], str],
) -> None:
    before = """
graph
x = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
w = variable() : float32[3,4] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (3, 4), 'trainable': True}
b = variable() : float32[4] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (4,), 'trainable': True}
m = matmul(x:0, w:0) : float32[2,4] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
y = bias_add(m:0, b:0) : float32[2,4] @cpu[0:0] {'axis': 1}
r = relu(y:0) : float32[2,4] @cpu[0:0] {}
n = matmul(r:0, w:0) : float32[2,3] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': True}
l = exp(n:0) : float32[2,3] @cpu[0:0] {}
return l:0
effects
"""
    after = """
graph
x = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
w = variable() : float32[3,4] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (3, 4), 'trainable': True}
b = variable() : float32[4] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (4,), 'trainable': True}
x/float16 = cast(x:0) : float16[2,3] @cpu[0:0] {'dtype': 'float16'}
w/float16 = cast(w:0) : float16[3,4] @cpu[0:0] {'dtype': 'float16'}
m = matmul(x/float16:0, w/float16:0) : float16[2,4] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
b/float16 = cast(b:0) : float16[4] @cpu[0:0] {'dtype': 'float16'}
y = bias_add(m:0, b/float16:0) : float16[2,4] @cpu[0:0] {'axis': 1}
r = relu(y:0) : float16[2,4] @cpu[0:0] {}
n = matmul(r:0, w/float16:0) : float16[2,3] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': True}
n/float32 = cast(n:0) : float32[2,3] @cpu[0:0] {'dtype': 'float32'}
l = exp(n/float32:0) : float32[2,3] @cpu[0:0] {}
return l:0
effects
"""
    assert apply(MixedPrecision("float16"), before) == after


def test_means_and_limits_between_products_compute_in_half_precision(
    apply: Callable[[Pass, str], str],
) -> None:
    """As at the end of convolutional networks: relu6, the mean over pixels, a dense layer."""
    before = """
graph
x = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
w = variable() : float32[3,4] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (3, 4), 'trainable': True}
m = matmul(x:0, w:0) : float32[2,4] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
c = clip_by_scalar(m:0) : float32[2,4] @cpu[0:0] {'floating_max': 6.0, 'floating_min': 0.0, 'integral_max': 0, 'integral_min': 0}
a = reduce_mean(c:0) : float32[1,4] @cpu[0:0] {'axis': (0,), 'count': 0, 'keepdims': True}
n = matmul(a:0, w:0) : float32[1,3] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': True}
l = reduce_mean(n:0) : float32[] @cpu[0:0] {'axis': (0, 1), 'count': 0, 'keepdims': False}
return l:0
effects
"""
    found = apply(MixedPrecision("bfloat16"), before).splitlines()
    types = {line.split(" ")[0]: line.split(" : ")[1].split("[")[0] for line in found[2:-2]}
    assert [types[name] for name in "mcan"] == ["bfloat16"] * 4
    assert types["l"] == "float32", "nothing after it is a product"


def test_named_ops_stay_in_float32(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
x = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
w = variable() : float32[3,3] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (3, 3), 'trainable': True}
m = matmul(x:0, w:0) : float32[2,3] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
t = tanh(m:0) : float32[2,3] @cpu[0:0] {}
n = matmul(t:0, w:0) : float32[2,3] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
return n:0
effects
"""
    after = """
graph
x = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
w = variable() : float32[3,3] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (3, 3), 'trainable': True}
x/bfloat16 = cast(x:0) : bfloat16[2,3] @cpu[0:0] {'dtype': 'bfloat16'}
w/bfloat16 = cast(w:0) : bfloat16[3,3] @cpu[0:0] {'dtype': 'bfloat16'}
m = matmul(x/bfloat16:0, w/bfloat16:0) : bfloat16[2,3] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
m/float32 = cast(m:0) : float32[2,3] @cpu[0:0] {'dtype': 'float32'}
t = tanh(m/float32:0) : float32[2,3] @cpu[0:0] {}
n = matmul(t:0, w:0) : float32[2,3] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
return n:0
effects
"""
    assert apply(MixedPrecision("bfloat16", kept=frozenset(("n",))), before) == after
    assert apply(MixedPrecision("bfloat16", kept=frozenset(("m", "n"))), before) == before
