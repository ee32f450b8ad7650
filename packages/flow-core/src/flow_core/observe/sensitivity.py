"""How much a program makes of a few roundings.

Some nets are chaotic: where batch norm divides by the deviation of two or three pictures, a change
in the last bit of a weight may come out a thousand times as large.  Others have steps: whether an
activation is cut off hangs on the last bit of its input, and with it what that adds to a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import Value
from flow_core.observe.isolated_run import IsolatedRun, states
from flow_core.observe.rounding import disturb, drift, is_float

SEED = 30

TRIALS = 4
"""How often weights and inputs are disturbed: a step is met by chance."""

ROUNDINGS = 4
"""By how many roundings."""


def moved(
    simulated: Callable[[Mapping[str, Any]], IsolatedRun],
    values: Mapping[str, Array],
    feeds: Sequence[Sequence[Array]],
    results: Collection[Value],
) -> float:
    """How far results and variables move when weights and inputs are off by a few roundings.

    Args:
        simulated: the program, on some weights.
        values: the weights by name.
        feeds: the inputs of each step.
        results: what is looked at, besides the variables.

    Returns:
        The largest drift of any step; see `flow_core.observe.rounding.drift`.
    """
    rng, worst = np.random.default_rng(SEED), 0.0
    usual = simulated(values)
    others = [
        simulated({name: _disturbed(x, rng) for name, x in values.items()}) for _ in range(TRIALS)
    ]
    for step, fed in enumerate(feeds):
        wanted = usual.run(fed, step)
        for other in others:
            found = other.run([_disturbed(x, rng) for x in fed], step)
            pairs = [(found[v], wanted[v]) for v in results if v in wanted]
            both = (*pairs, *states(other.variables, usual.variables))
            worst = max([worst, *(drift(a, b) for a, b in both)])
    return worst


def _disturbed(array: Array, rng: np.random.Generator) -> Array:
    return disturb(array, ROUNDINGS * np.abs(array), rng) if is_float(array) else array
