"""The optimum by integer programming, for networks that are too wide for elimination.

The states of a node are 0/1 variables whose sum is one.  A table over two nodes has a variable for
each pair of states; the sums of these variables over the states of one node equal the variables of
the other node.  With these variables, the linear relaxation is close to the optimum, and often
exact.  HiGHS solves the program; its package is optional (``flow-core[optimal]``).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.compiler.select.network import Infeasible, Network, Scope, Table
from flow_core.compiler.select.price import NEVER

SOLVER = "highspy"

BRANCHES = 1000
"""The largest number of branch-and-bound nodes.

A time limit instead would make the result depend on the machine.
"""

SCALE = 1e6
"""Picoseconds per unit of the objective, because solvers are accurate for numbers near one."""


@dataclass(frozen=True, slots=True)
class Found:
    """The solver's result."""

    states: list[int] | None  # the states of all nodes; None if the solver found no solution
    bound: int  # a lower bound on the cost of all choices


def available() -> bool:
    """Return whether the solver is installed."""
    return importlib.util.find_spec(SOLVER) is not None


class _Program:
    """The integer program for a network whose tables are over one or two nodes."""

    def __init__(self, net: Network, nodes: Sequence[int]) -> None:
        self.net = net
        self.first: dict[int, int] = {}
        self.costs: list[Any] = []
        self.rows: list[tuple[list[int], list[float], float]] = []
        self.count = 0
        for node in nodes:
            own = net.tables[node].get((node,))
            self.first[node] = self._add(np.zeros(net.sizes[node]) if own is None else own.costs)
            self._row([self.first[node] + s for s in range(net.sizes[node])], [], 1.0)
        self.whole = self.count
        for (a, b), table in _pairs(net, nodes).items():
            self._pair(a, b, table)

    def _add(self, costs: Array) -> int:
        start = self.count
        self.costs.append(np.asarray(costs, np.int64).ravel())
        self.count += self.costs[-1].size
        return start

    def _row(self, plus: list[int], minus: list[int], total: float) -> None:
        self.rows.append((plus + minus, [1.0] * len(plus) + [-1.0] * len(minus), total))

    def _pair(self, a: int, b: int, table: Array) -> None:
        start = self._add(table)
        m, n = table.shape
        for i in range(m):
            self._row([start + i * n + j for j in range(n)], [self.first[a] + i], 0.0)
        for j in range(n):
            self._row([start + i * n + j for i in range(m)], [self.first[b] + j], 0.0)

    def model(self, highs: Any) -> Any:
        """Return the program as a HiGHS model."""
        costs = np.concatenate(self.costs)
        totals = np.array([total for _, __, total in self.rows])
        kinds = highs.HighsVarType
        lp = highs.HighsLp()
        lp.num_col_, lp.num_row_ = self.count, len(self.rows)
        lp.col_cost_ = np.where(costs >= NEVER, 0.0, costs / SCALE)
        lp.col_lower_ = np.zeros(self.count)
        lp.col_upper_ = np.where(costs >= NEVER, 0.0, 1.0)
        lp.row_lower_ = lp.row_upper_ = totals
        lp.integrality_ = [
            kinds.kInteger if i < self.whole else kinds.kContinuous for i in range(self.count)
        ]
        lp.a_matrix_.format_ = highs.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(columns) for columns, _, __ in self.rows)])
        lp.a_matrix_.index_ = np.concatenate([columns for columns, _, __ in self.rows])
        lp.a_matrix_.value_ = np.concatenate([values for _, values, __ in self.rows])
        return lp

    def solve(self) -> tuple[Any, float]:
        """Return the values of the variables, or None if none were found, and a lower bound."""
        highs = importlib.import_module(SOLVER)
        solver = highs.Highs()
        options = {
            "output_flag": False, "mip_rel_gap": 1e-6, "random_seed": 0, "mip_max_nodes": BRANCHES
        }  # fmt: skip
        for name, value in options.items():
            solver.setOptionValue(name, value)
        solver.passModel(self.model(highs))
        solver.run()
        if solver.getModelStatus() == highs.HighsModelStatus.kInfeasible:
            raise Infeasible
        info = solver.getInfo()
        feasible = info.primal_solution_status == highs.SolutionStatus.kSolutionStatusFeasible
        bound = info.mip_dual_bound if np.isfinite(info.mip_dual_bound) else 0.0
        return (np.array(solver.getSolution().col_value) if feasible else None), bound * SCALE


def columns(net: Network, nodes: Sequence[int]) -> int:
    """Return the number of variables in the integer program for the given nodes."""
    own = sum(net.sizes[node] for node in nodes)
    return own + sum(int(table.size) for table in _pairs(net, nodes).values())


def _pairs(net: Network, nodes: Sequence[int]) -> dict[Scope, Table]:
    """Return the tables over two of the given nodes."""
    return {s: t.costs for n in nodes for s, t in net.tables[n].items() if len(s) == 2}


def solve(net: Network, nodes: Sequence[int]) -> Found:
    """Return the best states of the remaining nodes of a network.

    Args:
        net: the network; its tables cover at most two nodes.

    Raises:
        Infeasible: every choice is impossible.
    """
    program = _Program(net, nodes)
    values, bound = program.solve()
    lowest = net.constant + max(0, int(bound))
    if values is None:
        return Found(None, lowest)
    states = [0] * len(net.sizes)
    for node in nodes:
        start = program.first[node]
        states[node] = int(np.argmax(values[start : start + net.sizes[node]]))
    return Found(states, lowest)
