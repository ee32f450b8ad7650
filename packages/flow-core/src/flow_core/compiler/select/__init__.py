"""SBP signature selection: the distribution of each op's inputs and outputs over its devices.

In: a `Problem`, a logical graph with its specs.  Out: a `Selection`, a signature for each op.
Must not depend on scheduling, memory planning or lowering.

Selectors are callables ``selector(problem) -> Selection``, by name in `SELECTORS`:

* ``greedy`` goes through the ops in order, as OneFlow does;
* ``optimal`` searches for the least total cost over the whole graph, as `costs` counts it, and
  falls back to ``greedy`` where it finds nothing better within its budget;
* ``auto``, the default, is ``optimal`` where that saves more than a little, else ``greedy``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flow_core.compiler.select.candidates import NdSignature, first_device, signatures
from flow_core.compiler.select.greedy import greedy
from flow_core.compiler.select.optimal import auto, optimal
from flow_core.compiler.select.problem import Problem, Selection, SelectionError

Selector = Callable[[Problem], Selection]

SELECTORS: Mapping[str, Selector] = {"auto": auto, "greedy": greedy, "optimal": optimal}
"""The selectors by their name in a job's configuration."""

__all__ = [
    "SELECTORS",
    "NdSignature",
    "Problem",
    "Selection",
    "SelectionError",
    "Selector",
    "auto",
    "first_device",
    "greedy",
    "optimal",
    "signatures",
]
