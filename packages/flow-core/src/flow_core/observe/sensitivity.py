"""How sensitive a program is to a few roundings.

Some networks are ill-conditioned: if batch norm divides by the standard deviation of two or three
images, a change in the last bit of a weight may be amplified a thousandfold.  Other networks are
discontinuous: the last bit of an activation's input decides whether the input is clipped, and
thereby whether it contributes to a gradient.
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
"""The number of perturbations of weights and inputs.

Several are needed because a perturbation crosses a discontinuity only by chance.
"""

ROUNDINGS = 4
"""The size of a perturbation, as a number of roundings."""


def moved(
    # Function that returns a run of the program on given weights.
    simulated: Callable[[Mapping[str, Any]], IsolatedRun],
    values: Mapping[str, Array],
    feeds: Sequence[Sequence[Array]],  # the inputs of each step
    results: Collection[Value],  # the results to compare, in addition to the variables
    roundings: float = ROUNDINGS,  # size of a perturbation, in roundings of the arrays' own types
) -> float:
    """Measure the change of results and variables when weights and inputs are perturbed.

    Returns:
        The largest drift of any step; see `flow_core.observe.rounding.drift`.
    """
    rng, worst = np.random.default_rng(SEED), 0.0
    usual = simulated(values)
    others = [
        simulated({name: _disturbed(x, rng, roundings) for name, x in values.items()})
        for _ in range(TRIALS)
    ]
    for step, fed in enumerate(feeds):
        wanted = usual.run(fed, step)
        for other in others:
            found = other.run([_disturbed(x, rng, roundings) for x in fed], step)
            pairs = [(found[v], wanted[v]) for v in results if v in wanted]
            both = (*pairs, *states(other.variables, usual.variables))
            worst = max([worst, *(drift(a, b) for a, b in both)])
    return worst


def _disturbed(array: Array, rng: np.random.Generator, roundings: float) -> Array:
    return disturb(array, roundings * np.abs(array), rng) if is_float(array) else array
