"""The same optimum by integer programming, for networks too wide to eliminate.

Each node's states are 0/1 variables that add up to one.  Each table over two nodes gets a variable
per pair of states, whose sums over one side are the other side's states: with this many variables
the linear relaxation is close, and often exact.  HiGHS solves it, through SciPy, which is optional
(``flow-core[optimal]``).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.compiler.select.costs import NEVER
from flow_core.compiler.select.network import Infeasible, Network

SCALE = 1e6
"""Picoseconds per unit of the program's objective: solvers like numbers near one."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the solver found.

    Attributes:
        states: of all nodes; None when it found nothing in time.
        bound: no choice costs less.
    """

    states: list[int] | None
    bound: int


def available() -> bool:
    """Whether the solver is installed."""
    return importlib.util.find_spec("scipy") is not None


class _Program:
    """The integer program of a network with tables over one and two nodes."""

    def __init__(self, net: Network, nodes: Sequence[int]) -> None:
        self.net = net
        self.first: dict[int, int] = {}
        self.costs: list[Any] = []
        self.rows: list[tuple[list[int], list[float], float]] = []
        self.count = 0
        for node in nodes:
            self.first[node] = self._add(net.tables[node].get((node,), np.zeros(net.sizes[node])))
            self._row([self.first[node] + s for s in range(net.sizes[node])], [], 1.0)
        self.whole = self.count
        scopes = {s: t for n in nodes for s, t in net.tables[n].items() if len(s) == 2}
        for (a, b), table in scopes.items():
            self._pair(a, b, table)

    def _add(self, costs: Any) -> int:
        start = self.count
        self.costs.append(np.asarray(costs, np.int64).ravel())
        self.count += self.costs[-1].size
        return start

    def _row(self, plus: list[int], minus: list[int], total: float) -> None:
        self.rows.append((plus + minus, [1.0] * len(plus) + [-1.0] * len(minus), total))

    def _pair(self, a: int, b: int, table: Any) -> None:
        start = self._add(table)
        m, n = table.shape
        for i in range(m):
            self._row([start + i * n + j for j in range(n)], [self.first[a] + i], 0.0)
        for j in range(n):
            self._row([start + i * n + j for i in range(m)], [self.first[b] + j], 0.0)

    def solve(self, seconds: float) -> tuple[Any, float]:
        """Values of the state variables (None when none were found) and a lower bound."""
        optimize = importlib.import_module("scipy.optimize")
        sparse = importlib.import_module("scipy.sparse")
        costs = np.concatenate(self.costs)
        upper = np.where(costs >= NEVER, 0.0, 1.0)
        counts = [len(columns) for columns, _, __ in self.rows]
        matrix = sparse.csr_array(
            (
                np.concatenate([values for _, values, __ in self.rows]),
                np.concatenate([columns for columns, _, __ in self.rows]),
                np.concatenate([[0], np.cumsum(counts)]),
            ),
            shape=(len(self.rows), self.count),
        )
        totals = np.array([total for _, __, total in self.rows])
        integral = np.zeros(self.count)
        integral[: self.whole] = 1
        result = optimize.milp(
            np.where(costs >= NEVER, 0.0, costs / SCALE),
            integrality=integral,
            bounds=optimize.Bounds(0.0, upper),
            constraints=optimize.LinearConstraint(matrix, totals, totals),
            options={"time_limit": seconds, "mip_rel_gap": 1e-6},
        )
        if result.status == 2:
            raise Infeasible
        bound = getattr(result, "mip_dual_bound", None)
        return result.x, 0.0 if bound is None else float(bound) * SCALE


def solve(net: Network, nodes: Sequence[int], seconds: float) -> Found:
    """The best states of the nodes that are left in a network of pairs.

    Args:
        net: its tables cover at most two nodes.
        nodes: those that have not been eliminated.
        seconds: when to stop searching.

    Raises:
        Infeasible: nothing is possible.
    """
    program = _Program(net, nodes)
    values, bound = program.solve(seconds)
    lowest = net.constant + max(0, int(bound))
    if values is None:
        return Found(None, lowest)
    states = [0] * len(net.sizes)
    for node in nodes:
        start = program.first[node]
        states[node] = int(np.argmax(values[start : start + net.sizes[node]]))
    return Found(states, lowest)
