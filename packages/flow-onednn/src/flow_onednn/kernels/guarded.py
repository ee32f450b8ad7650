"""Products and convolutions with relu that keep NaN.

The library's relu gives 0 for NaN.  A product of moderate numbers has no NaN: where reading the
operands costs less than another pass over the result, they are looked at first, and only if there
are large numbers, infinities or NaN among them does a loop of ours apply relu to the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext
from flow_onednn.kernels.loops import pointer
from flow_onednn.native import compiler
from flow_onednn.recipes import Cook, Cooked, Problem

ACTIVATION = "activation"


@dataclass(frozen=True, slots=True)
class Guarded:
    """Two recipes of one op.

    Attributes:
        exact: makes the product without relu, which a loop applies.
        fast: has relu in its primitive, for moderate numbers; None where looking at them costs more
            than the loop.
    """

    exact: Cooked
    fast: Cooked | None

    @property
    def _both(self) -> tuple[Cooked, ...]:
        return (self.exact,) if self.fast is None else (self.exact, self.fast)

    @property
    def workspace(self) -> int:
        """Bytes that either needs at most."""
        return max(r.workspace for r in self._both)

    @property
    def reorders(self) -> int:
        """Bytes that are copied from one layout to another at each launch."""
        return self._both[-1].reorders

    @property
    def allocates(self) -> bool:
        """Whether the library takes memory at each launch."""
        return any(r.allocates for r in self._both)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """The launches of the product with relu."""
        exact = [*self.exact.bind(ctx), _relu(ctx.outputs[0])]
        return exact if self.fast is None else [_chosen(ctx.inputs, self.fast.bind(ctx), exact)]


def _relu(y: Any) -> Launch:
    """A launch that applies relu in place, and keeps NaN."""
    if not compiler.available():
        return partial(np.maximum, y, np.zeros((), y.dtype), y)
    if y.dtype == np.float32:
        return partial(compiler.native().relu_of, pointer(y), y.size)
    return partial(compiler.native().relu_of_halves, pointer(y, "uint16_t *"), y.size)


def _chosen(inputs: Sequence[Any], fast: Sequence[Launch], exact: Sequence[Launch]) -> Launch:
    """A launch of the fast recipe if all inputs are moderate, of the exact one otherwise."""
    checks = tuple(map(_check, inputs))

    def run() -> None:
        for launch in fast if all(check() for check in checks) else exact:
            launch()

    return run


def _check(x: Any) -> Callable[[], int]:
    if x.dtype == np.float32:
        return partial(compiler.native().ordinary, pointer(x), x.size)
    return partial(compiler.native().ordinary_halves, pointer(x, "uint16_t *"), x.size)


def guarded(cook: Cook, keeps_nan: Callable[[Cooked], bool] = lambda made: False) -> Cook:
    """The same recipes, which keep NaN also where the op has relu.

    Args:
        cook: makes them.
        keeps_nan: whether one with relu does so by itself.
    """

    def made(p: Problem) -> Cooked | None:
        fast = cook(p)
        if fast is None or p.attrs.get(ACTIVATION) != "relu" or keeps_nan(fast):
            return fast
        items = tuple((k, "" if k == ACTIVATION else v) for k, v in p.items)
        exact = cook(replace(p, items=items))
        if exact is None:
            return None
        read, written = (sum(t.nbytes for t in side) for side in (p.inputs, p.outputs))
        return Guarded(exact, fast if compiler.available() and read < 2 * written else None)

    return made
