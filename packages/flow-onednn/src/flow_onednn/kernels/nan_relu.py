"""Products and convolutions with a fused relu that propagates NaN.

The library's relu returns 0 for NaN. A product of moderate numbers contains no NaN, so if reading
the operands is cheaper than another pass over the result, each launch checks the operands. If all
are moderate, the launch runs the fused primitive; for large numbers, infinities or NaN, it runs a
primitive without relu and a separate relu loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext
from flow_core.base.arrays import Array
from flow_onednn.binding import CData
from flow_onednn.kernels.loops import null, pointer
from flow_onednn.native import compiler
from flow_onednn.native.calls import call, choice
from flow_onednn.recipes import Build, Implementation, Problem

ACTIVATION = "activation"


@dataclass(frozen=True, slots=True)
class NanPreserving:
    """Two implementations of one op, of which each launch selects one."""

    exact: Implementation  # the product without relu, which a loop applies
    # The product with fused relu, for moderate numbers; None if the check of the operands is more
    # expensive than the loop.
    fast: Implementation | None

    @property
    def _both(self) -> tuple[Implementation, ...]:
        return (self.exact,) if self.fast is None else (self.exact, self.fast)

    @property
    def workspace(self) -> int:
        """Bytes of the larger one of the two workspaces."""
        return max(r.workspace for r in self._both)

    @property
    def reorders(self) -> int:
        return self._both[-1].reorders

    @property
    def allocates(self) -> bool:
        return any(r.allocates for r in self._both)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches of the product and relu."""
        exact = [*self.exact.bind(ctx), _relu(ctx.outputs[0])]
        if self.fast is None:
            return exact
        inputs, fast = bounded(ctx.inputs), self.fast.bind(ctx)
        return [choice("run_moderate", inputs, len(ctx.inputs), fast=fast, exact=exact)]


def _relu(y: Array) -> Launch:
    """Return a launch that applies relu in place and propagates NaN."""
    if not compiler.available():
        return partial(np.maximum, y, np.zeros((), y.dtype), y)
    if y.dtype == np.float32:
        return call("relu_inplace", pointer(y), y.size)
    return call("relu_inplace_bf16", pointer(y, "uint16_t *"), y.size)


def bounded(arrays: Sequence[Array | None], known: Sequence[Array | None] | None = None) -> CData:
    """Return the C array that describes arrays whose largest magnitudes a call needs.

    Args:
        arrays: the arrays; None for one whose magnitudes are not needed.
        known: the array of one element in which another op stores a bound of each array's
            magnitudes; None without such an op.
    """
    rows = compiler.ffi(compiler.CDEF).new("Bounded[]", len(arrays))
    for row, x, bound in zip(rows, arrays, known or [None] * len(arrays), strict=True):
        row.known = null() if bound is None else pointer(bound)
        if x is not None:
            row.x, row.n, row.half = pointer(x, "void *"), x.size, x.dtype != np.float32
    return rows


def preserve_nan(
    build: Build, keeps_nan: Callable[[Implementation], bool] = lambda made: False
) -> Build:
    """Make implementations with relu propagate NaN.

    Args:
        keeps_nan: whether an implementation with relu propagates NaN by itself.
    """

    def made(p: Problem) -> Implementation | None:
        fast = build(p)
        if fast is None or p.attrs.get(ACTIVATION) != "relu" or keeps_nan(fast):
            return fast
        items = tuple((k, "" if k == ACTIVATION else v) for k, v in p.items)
        exact = build(replace(p, items=items))
        if exact is None:
            return None
        read, written = (sum(t.nbytes for t in side) for side in (p.inputs, p.outputs))
        return NanPreserving(exact, fast if compiler.available() and read < 2 * written else None)

    return made
