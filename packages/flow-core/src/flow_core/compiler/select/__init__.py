"""SBP signature selection: choosing how each op's inputs and outputs are distributed.

In: a `Problem`, which is a logical graph with the specs of its ops.
Out: a `Selection`, which has a signature for each op.

Selectors are callables ``selector(problem) -> Selection``; `SELECTORS` has them by name:

* ``greedy`` chooses op by op, in graph order, as OneFlow does;
* ``optimal`` searches for the least total cost over the whole graph, according to the cost model in
  `costs`, and falls back to ``greedy`` if it finds nothing better within its budget;
* ``grids`` searches all grids of the same devices by ``optimal``;
* ``auto``, the default, takes the result of ``optimal`` if that saves more than a little, else the
  result of ``greedy``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flow_core.compiler.select.candidates import NdSignature, first_device, signatures
from flow_core.compiler.select.greedy import greedy
from flow_core.compiler.select.grids import over_grids
from flow_core.compiler.select.optimal import auto, optimal
from flow_core.compiler.select.problem import Problem, Selection, SelectionError

Selector = Callable[[Problem], Selection]

SELECTORS: Mapping[str, Selector] = {
    "auto": auto,
    "greedy": greedy,
    "grids": over_grids,
    "optimal": optimal,
}
"""The selectors, by the name that a job's configuration uses."""

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
