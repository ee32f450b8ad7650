"""How much a program makes of single roundings.

Some nets are chaotic: where batch norm divides by the deviation of two or three pictures, a change
in the last bit of a weight may come out a thousand times as large.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.ir import Value
from flow_core.observe.rehearsal import Rehearsal, states
from flow_core.observe.rounding import disturb, drift

SEED = 30


def moved(
    rehearsed: Callable[[Mapping[str, Any]], Rehearsal],
    values: Mapping[str, Any],
    feeds: Sequence[Sequence[Any]],
    results: Collection[Value],
) -> float:
    """How far results and variables move when weights and inputs are off by single roundings.

    Args:
        rehearsed: the program, on some weights.
        values: the weights by name.
        feeds: the inputs of each step.
        results: what is looked at, besides the variables.

    Returns:
        The largest drift of any step; see `flow_core.observe.rounding.drift`.
    """
    rng = np.random.default_rng(SEED)
    usual = rehearsed(values)
    other = rehearsed({name: disturb(x, np.abs(x), rng) for name, x in values.items()})
    worst = 0.0
    for step, fed in enumerate(feeds):
        wanted = usual.run(fed, step)
        found = other.run([disturb(x, np.abs(x), rng) for x in fed], step)
        pairs = [(found[v], wanted[v]) for v in results if v in wanted]
        both = (*pairs, *states(other.variables, usual.variables))
        worst = max([worst, *(drift(a, b) for a, b in both)])
    return worst
