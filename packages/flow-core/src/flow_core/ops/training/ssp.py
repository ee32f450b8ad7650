"""The op for stale values of variables: the values that they had some steps before.

If a job reads stale values, several steps can be in flight, since no step waits for the update of
the previous one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import int64
from flow_core.ir.graph import tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.plugins.specs import InferContext, Sample, SbpContext
from flow_core.sharding.sbp import B, S, Signature, Signatures


def rotate_ring(var: Any, ring: Any, count: Any, value: Any) -> None:
    """Copy the oldest entry of the ring to ``value``, and replace it by the variable.

    >>> ring, count, value = np.zeros(2), np.zeros(1, np.int64), np.zeros(1)
    >>> for step in range(4):
    ...     rotate_ring(np.array([float(step)]), ring.reshape(2, 1), count, value)
    ...     print(value[0])
    0.0
    0.0
    0.0
    1.0
    """
    if count[0] == 0:
        ring[...] = var
    place = int(count[0]) % len(ring)
    value[...] = ring[place]
    ring[place] = var
    count[0] += 1


class SspVariableProxy(OpDef):
    """The value of a variable as many steps before as the ring has copies; initially the variable's
    initial value.
    """

    schema = "ssp_variable_proxy(var, ring, count) -> value"
    mutates = (1, 2)
    effect = True

    def infer(self, ctx: InferContext) -> Types:
        var, ring, count = ctx.inputs
        fits = ring.shape[1:] == var.shape and ring.dtype is var.dtype
        ctx.check(
            fits and ring.shape[:1] > (0,), f"a ring {ring} for {var}", "copies of the variable"
        )
        ctx.check(count == tensor_type((1,), int64), f"a count {count}", "int64[1]")
        return (var,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        rank = len(ctx.inputs[0].shape)
        return tuple(Signature((S(i), S(i + 1), B), (S(i),)) for i in range(rank))

    def gradient(self, g: GradContext) -> Gradients:
        """Pass the gradient of the stale value to the variable."""
        return g.dy, None, None

    def reference(self, var: Array, ring: Array, count: Array) -> tuple[Array, Array, Array]:
        step = int(count[0])
        old = ring.copy() if step else np.broadcast_to(var, ring.shape)
        place = step % len(ring)
        is_oldest = (np.arange(len(ring)) == place).reshape(-1, *(1,) * var.ndim)
        return old[place].copy(), np.where(is_oldest, var, old), count + 1

    def samples(self, rng: Rng) -> Samples:
        for shape, size, count in (((3, 4), 2, 0), ((5,), 3, 4), ((2, 3, 2), 1, 1)):
            var, ring = rng.uniform(-3, 3, shape), rng.uniform(-3, 3, (size, *shape))
            yield Sample((var, ring, np.array([count], np.int64)), {}, False)


OPS = specs(SspVariableProxy)
