"""The exact minimum of the total cost of dependent choices, by variable elimination.

A network has nodes, each with a few states, and tables of costs over the states of some nodes.
To eliminate a node, its tables are added up, and the minimum over its states is taken: a table over
its neighbors remains, and the optimum does not change.  For chains, trees and other graphs of
small width, this takes time proportional to the number of nodes.

Invariants: costs are integers; every table is interned, with its minimum moved to the network's
constant, so that the elimination of the tenth of ten equal layers reuses the result for the ninth.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np

from flow_core.compiler.select.ordering import best_order
from flow_core.compiler.select.price import NEVER

PIECE = 1 << 16
"""The number of entries that are added up at a time, so that they fit into a cache."""

Scope = tuple[int, ...]
Table = Any  # an int64 array with one axis for each node of its scope


class TooWide(Exception):  # an outcome, not an error
    """Elimination needs a table with more entries than the limit."""


class Infeasible(Exception):  # an outcome, not an error
    """Every choice of states is impossible."""


@dataclass(frozen=True, slots=True)
class Step:
    """One elimination: the node, its neighbors, and its best state for each of their states."""

    node: int
    scope: Scope
    best: Any


@dataclass(frozen=True, slots=True, eq=False)
class InternedTable:
    """A table of which one object exists for each content, so that it is compared by identity."""

    costs: Table


class Memory:
    """The interned tables, and the results of eliminations by the tables of the eliminated node."""

    def __init__(self) -> None:
        self.tables: dict[tuple[Scope, bytes], InternedTable] = {}
        self.answers: dict[Hashable, tuple[InternedTable, int, Any]] = {}

    def intern(self, table: Table) -> InternedTable:
        """Return the only interned object with these contents."""
        return self.tables.setdefault((table.shape, table.tobytes()), InternedTable(table))


class Network:
    """A network of nodes with states, and tables of costs over the nodes.

    >>> net = Network()
    >>> a, b = net.node([0, 5]), net.node([3, 0])
    >>> net.add((a, b), np.array([[9, 9], [0, 0]]))
    >>> net.solve()
    ([1, 1], 5)
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.constant = 0
        self.memory = Memory()
        self.tables: list[dict[Scope, InternedTable]] = []
        self.neighbors: list[set[int]] = []

    def node(self, costs: Sequence[int] | Any) -> int:
        """Add a node with a cost for each state, and return the node's number."""
        name = len(self.sizes)
        self.sizes.append(len(costs))
        self.tables.append({})
        self.neighbors.append(set())
        self.add((name,), np.asarray(costs, np.int64))
        return name

    def add(self, scope: Scope, table: Table) -> None:
        """Add a table; the numbers of the nodes in its scope must be in ascending order."""
        old = self.tables[scope[0]].get(scope)
        if old is not None:
            table = np.minimum(old.costs + table, NEVER)
        interned = self.memory.intern(table)
        for node in scope:
            self.tables[node][scope] = interned
            self.neighbors[node].update(scope)
            self.neighbors[node].discard(node)

    def pair(self, a: int, b: int, table: Table) -> None:
        """Add a table over two nodes; the states of ``a`` are along its first axis."""
        self.add((a, b), table) if a < b else self.add((b, a), table.T.copy())

    # ------------------------------------------------------------------ elimination

    def solve(self, limit: int = 1 << 22) -> tuple[list[int], int]:
        """Return the best states and their cost.

        Raises:
            TooWide: a table has more entries than ``limit``.
            Infeasible: every choice is impossible.
        """
        order = best_order(self.sizes, self.neighbors, limit)
        if order.widest > limit:
            raise TooWide
        steps = list(self.eliminate(order.nodes))
        return self.decode(steps, [0] * len(self.sizes)), self.constant

    def eliminate(self, nodes: Iterable[int]) -> Iterator[Step]:
        """Eliminate nodes in a given order; yield the steps.

        Raises `Infeasible` if every choice is impossible.
        """
        for node in nodes:
            scope = tuple(sorted(self.neighbors[node]))
            table, least, best = self._eliminated(node, tuple(sorted((*scope, node))))
            self._remove(node)
            self.constant += least
            if scope:
                self.add(scope, table.costs)
            yield Step(node, scope, best)

    def _eliminated(self, node: int, scope: Scope) -> tuple[InternedTable, int, Any]:
        """Return the table that replaces a node, the minimum taken from it, and the best states."""
        parts = [(tuple(map(scope.index, s)), t) for s, t in self.tables[node].items()]
        parts.sort(key=itemgetter(0))
        key = (scope.index(node), tuple(parts))
        answer = self.memory.answers.get(key)
        if answer is None:
            answer = self.memory.answers[key] = self._minimum(scope, node, parts)
        return answer

    def _minimum(
        self, scope: Scope, node: int, parts: Sequence[tuple[Scope, InternedTable]]
    ) -> tuple[InternedTable, int, Any]:
        own = scope.index(node)
        order = [i for i in range(len(scope)) if i != own] + [own]
        sizes = [self.sizes[scope[i]] for i in order]
        turned = [_along(order, sizes, axes, table.costs) for axes, table in parts]
        turned.sort(key=lambda table: int(table.size))  # add up small tables first, while cheap
        cut = next(k for k in range(len(sizes)) if _fits(sizes[k:]) or k == len(sizes) - 1)
        best = np.empty(sizes[:-1], np.min_scalar_type(sizes[-1]))
        table = np.empty(sizes[:-1], np.int64)
        for index in np.ndindex(*sizes[:cut]):
            total = _sum(part[_within(part, index)] for part in turned)
            best[index], table[index] = total.argmin(-1), total.min(-1)
        table = np.minimum(table, NEVER)
        least = int(table.min())
        if least >= NEVER:
            raise Infeasible
        return self.memory.intern(np.where(table >= NEVER, NEVER, table - least)), least, best

    def _remove(self, node: int) -> None:
        for scope in list(self.tables[node]):
            for n in scope:
                del self.tables[n][scope]
        for n in self.neighbors[node]:
            self.neighbors[n].discard(node)

    def decode(self, steps: Sequence[Step], states: list[int]) -> list[int]:
        """Fill in the states of eliminated nodes, given the states of the others."""
        for step in reversed(steps):
            states[step.node] = int(step.best[tuple(states[n] for n in step.scope)])
        return states

    def cost(self, states: Sequence[int]) -> int:
        """Return the cost of a choice of states; no node may have been eliminated."""
        initial = {scope: table for tables in self.tables for scope, table in tables.items()}
        parts = (int(t.costs[tuple(states[n] for n in scope)]) for scope, t in initial.items())
        return self.constant + sum(parts)


def _along(order: Sequence[int], sizes: Sequence[int], axes: Scope, table: Table) -> Table:
    """Reshape a table to the axes of a larger one, in the given order; absent axes get length 1."""
    own = order[-1]
    if own in axes:
        table = np.moveaxis(table, axes.index(own), -1)
    return table.reshape([n if i in axes else 1 for i, n in zip(order, sizes, strict=True)])


def _fits(sizes: Sequence[int]) -> bool:
    return prod(sizes) <= PIECE


def _within(table: Table, index: Sequence[int]) -> tuple[int, ...]:
    """Return an index into the leading axes of a table, whose axes of length 1 are broadcast."""
    return tuple([0 if n == 1 else i for i, n in zip(index, table.shape, strict=False)])


def _sum(tables: Iterator[Table]) -> Table:
    """Return the broadcast sum of tables."""
    total = next(tables)
    for table in tables:
        total = total + table
    return total
