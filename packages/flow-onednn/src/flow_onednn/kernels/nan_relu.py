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
from flow_onednn.kernels.loops import pointer
from flow_onednn.native import compiler
from flow_onednn.recipes import Build, Implementation, Problem

ACTIVATION = "activation"


@dataclass(frozen=True, slots=True)
class NanPreserving:
    """Two implementations of one op, of which each launch selects one.

    Attributes:
        exact: the product without relu, which a loop applies.
        fast: the product with fused relu, for moderate numbers; None if the check of the operands
            is more expensive than the loop.
    """

    exact: Implementation
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
        """Bytes copied between layouts at each launch."""
        return self._both[-1].reorders

    @property
    def allocates(self) -> bool:
        """Whether the library allocates memory at each launch."""
        return any(r.allocates for r in self._both)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches of the product and relu."""
        exact = [*self.exact.bind(ctx), _relu(ctx.outputs[0])]
        return exact if self.fast is None else [_checked(ctx.inputs, self.fast.bind(ctx), exact)]


def _relu(y: Array) -> Launch:
    """Return a launch that applies relu in place and propagates NaN."""
    if not compiler.available():
        return partial(np.maximum, y, np.zeros((), y.dtype), y)
    if y.dtype == np.float32:
        return partial(compiler.native().relu_inplace, pointer(y), y.size)
    return partial(compiler.native().relu_inplace_bf16, pointer(y, "uint16_t *"), y.size)


def _checked(inputs: Sequence[Array], fast: Sequence[Launch], exact: Sequence[Launch]) -> Launch:
    """Return a launch that runs ``fast`` if all inputs are moderate, else ``exact``."""
    checks = tuple(map(_check, inputs))

    def run() -> None:
        for launch in fast if all(check() for check in checks) else exact:
            launch()

    return run


def _check(x: Array) -> Callable[[], int]:
    if x.dtype == np.float32:
        return partial(compiler.native().is_moderate, pointer(x), x.size)
    return partial(compiler.native().is_moderate_bf16, pointer(x, "uint16_t *"), x.size)


def preserve_nan(
    build: Build, keeps_nan: Callable[[Implementation], bool] = lambda made: False
) -> Build:
    """Make implementations with relu propagate NaN.

    Args:
        build: builds the implementations.
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
