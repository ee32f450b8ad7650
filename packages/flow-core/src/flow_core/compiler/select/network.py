"""Least total cost of choices that depend on each other, exactly, by eliminating them in turn.

A network has nodes, each with a few states, and tables of costs over some nodes' states.  A node
is eliminated by adding up its tables and taking the minimum over its states: what remains is a
table over its neighbours, and the same optimum.  Chains, trees and whatever else has little width
take time proportional to their length.  Costs are integers and tables are kept by contents with
their minimum taken out, so that the tenth of ten equal layers, which asks what the ninth asked,
finds its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flow_core.compiler.select.ordering import best_order
from flow_core.compiler.select.price import NEVER

PIECE = 1 << 16
"""Entries that are added up at a time: they fit into a cache."""

Scope = tuple[int, ...]
Table = Any  # int64 array with an axis per node of its scope


class TooWide(Exception):  # an outcome, not an error
    """Elimination would need a table beyond the limit."""


class Infeasible(Exception):  # an outcome, not an error
    """No choice of states has a possible cost."""


@dataclass(frozen=True, slots=True)
class Step:
    """One elimination: the node, its neighbours, and its best state by theirs."""

    node: int
    scope: Scope
    best: Any


class Memory:
    """Tables by contents, and answers by the tables they were asked about."""

    def __init__(self) -> None:
        self.tables: dict[tuple[Scope, bytes], Table] = {}
        self.answers: dict[Any, tuple[Table, int, Any]] = {}

    def keep(self, table: Table) -> Table:
        """The one table with these contents."""
        return self.tables.setdefault((table.shape, table.tobytes()), table)


class Network:
    """Nodes with states, and tables over them.

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
        self.tables: list[dict[Scope, Table]] = []
        self.near: list[set[int]] = []

    def node(self, costs: Sequence[int] | Any) -> int:
        """A new node with a cost per state."""
        name = len(self.sizes)
        self.sizes.append(len(costs))
        self.tables.append({})
        self.near.append(set())
        self.add((name,), np.asarray(costs, np.int64))
        return name

    def add(self, scope: Scope, table: Table) -> None:
        """Adds a table; the nodes of its scope ascend."""
        old = self.tables[scope[0]].get(scope)
        if old is not None:
            table = np.minimum(old + table, NEVER)
        kept = self.memory.keep(table)
        for node in scope:
            self.tables[node][scope] = kept
            self.near[node].update(scope)
            self.near[node].discard(node)

    def pair(self, a: int, b: int, table: Table) -> None:
        """Adds a table over two nodes, the first one's states along its first axis."""
        self.add((a, b), table) if a < b else self.add((b, a), table.T.copy())

    # ------------------------------------------------------------------ elimination

    def solve(self, limit: int = 1 << 22) -> tuple[list[int], int]:
        """The best states and their cost.

        Raises:
            TooWide: a table would have more entries than ``limit``.
            Infeasible: nothing is possible.
        """
        order = best_order(self.sizes, self.near, limit)
        if order.widest > limit:
            raise TooWide
        steps = list(self.eliminate(order.nodes))
        return self.decode(steps, [0] * len(self.sizes)), self.constant

    def eliminate(self, nodes: Iterable[int]) -> Iterator[Step]:
        """Eliminates nodes in a given order.

        Raises:
            Infeasible: nothing is possible.
        """
        for node in nodes:
            scope = tuple(sorted(self.near[node]))
            table, least, best = self._answer(node, tuple(sorted((*scope, node))))
            self._remove(node)
            self.constant += least
            if scope:
                self.add(scope, table)
            yield Step(node, scope, best)

    def _answer(self, node: int, scope: Scope) -> tuple[Table, int, Any]:
        """The table that takes a node's place, the minimum taken out of it, the best states."""
        parts = sorted((tuple(map(scope.index, s)), t) for s, t in self.tables[node].items())
        key = (scope.index(node), tuple((axes, id(t)) for axes, t in parts))
        answer = self.memory.answers.get(key)
        if answer is None:
            answer = self.memory.answers[key] = self._minimum(scope, node, parts)
        return answer

    def _minimum(
        self, scope: Scope, node: int, parts: Sequence[tuple[Scope, Table]]
    ) -> tuple[Table, int, Any]:
        own = scope.index(node)
        order = [i for i in range(len(scope)) if i != own] + [own]
        sizes = [self.sizes[scope[i]] for i in order]
        turned = [_along(order, sizes, axes, table) for axes, table in parts]
        turned.sort(key=lambda table: int(table.size))  # small ones are added up while it is cheap
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
        return self.memory.keep(np.where(table >= NEVER, NEVER, table - least)), least, best

    def _remove(self, node: int) -> None:
        for scope in list(self.tables[node]):
            for n in scope:
                del self.tables[n][scope]
        for n in self.near[node]:
            self.near[n].discard(node)

    def decode(self, steps: Sequence[Step], states: list[int]) -> list[int]:
        """The states of eliminated nodes, given those of the others."""
        for step in reversed(steps):
            states[step.node] = int(step.best[tuple(states[n] for n in step.scope)])
        return states

    def cost(self, states: Sequence[int]) -> int:
        """What a choice of states costs, where nothing has been eliminated."""
        seen = {scope: table for tables in self.tables for scope, table in tables.items()}
        parts = (int(t[tuple(states[n] for n in scope)]) for scope, t in seen.items())
        return self.constant + sum(parts)


def _along(order: Sequence[int], sizes: Sequence[int], axes: Scope, table: Table) -> Table:
    """A table with an axis for each of a larger one's, in a given order; of length 1 for others."""
    own = order[-1]
    if own in axes:
        table = np.moveaxis(table, axes.index(own), -1)
    return table.reshape([n if i in axes else 1 for i, n in zip(order, sizes, strict=True)])


def _fits(sizes: Sequence[int]) -> bool:
    return prod(sizes) <= PIECE


def _within(table: Table, index: Sequence[int]) -> tuple[int, ...]:
    """Where on its leading axes a table has what belongs to an index: axes of length 1 repeat."""
    return tuple([0 if n == 1 else i for i, n in zip(index, table.shape, strict=False)])


def _sum(tables: Iterator[Table]) -> Table:
    """The sum of tables over all of their axes; each has at least one of length 1 or equal."""
    total = next(tables)
    for table in tables:
        total = total + table
    return total
