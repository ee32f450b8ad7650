"""Orders for eliminating the nodes of a network, and the work that each order takes.

The sizes of the tables that arise depend only on which nodes are related, that is, share a table.
Candidate orders are therefore computed from these relations alone, by several greedy rules, because
no single rule is the best one for all networks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod

CROWD, MANY = 40, 1 << 60
"""A node with more neighbors than ``CROWD`` gets the rank ``MANY``, after all other nodes."""

CHEAP = 1 << 25
"""The number of entries that are added up in less time than it takes to try another rule."""

Turn = tuple[int, int, int]  # the rule's number, the number of neighbors, the node


@dataclass(frozen=True, slots=True)
class Ordering:
    """An order of elimination."""

    nodes: tuple[int, ...]  # the nodes in the order in which they are eliminated
    widest: int  # the number of entries of the largest table that is added up
    total: int  # the number of entries of all tables that are added up


class Relations:
    """For each node, the neighbors that share a table with it, updated as nodes are eliminated.

    Args:
        sizes: the number of states of each node.
        neighbors: for each node, the nodes that share a table with it.
        weights: the weight of each node in `related`.
    """

    def __init__(
        self, sizes: Sequence[int], neighbors: Sequence[Iterable[int]], weights: Sequence[int] = ()
    ) -> None:
        self.sizes, self.weights = sizes, weights
        self.neighbors = [set(nodes) for nodes in neighbors]
        self._related: dict[int, int] = {}  # kept up to date for nodes that are not crowded

    def width(self, node: int) -> int:
        """Return the number of entries of the table that is added up to eliminate a node."""
        return self.sizes[node] * prod([self.sizes[n] for n in self.neighbors[node]])

    def related(self, node: int) -> int:
        """Return the total weight of the pairs of nodes that eliminating a node newly relates."""
        known = self._related.get(node)
        if known is None:
            known = self._related[node] = self._weight_of_pairs(node)
        return known

    def _weight_of_pairs(self, node: int) -> int:
        adjacent, weights, total = self.neighbors[node], self.weights, 0
        for a in adjacent:
            others = adjacent - self.neighbors[a]
            if len(others) > 1:  # one of them is node a itself
                total += weights[a] * (sum([weights[b] for b in others]) - weights[a])
        return total // 2

    def eliminate(self, node: int) -> set[int]:
        """Relate a node's neighbors to one another, and return all nodes whose rank may change."""
        adjacent, neighbors, known = self.neighbors[node], self.neighbors, self._related
        changed = set(adjacent)
        self.neighbors[node] = set()
        known.pop(node, None)
        for a in adjacent:
            neighbors[a].discard(node)
            if a in known:  # the pairs of the node with other neighbors of a
                known[a] -= self.weights[node] * self._weight(neighbors[a] - adjacent)
        for a in adjacent:
            for b in (adjacent - neighbors[a]) - {a}:
                changed |= self._relate(a, b)
        return changed

    def _relate(self, a: int, b: int) -> set[int]:
        """Make two nodes neighbors, and return the neighbors that they have in common."""
        weights, known = self.weights, self._related
        common = self.neighbors[a] & self.neighbors[b]
        for c in known.keys() & common:
            known[c] -= weights[a] * weights[b]
        for one, other in ((a, b), (b, a)):
            near = self.neighbors[one]
            if one in known:
                known[one] += weights[other] * self._weight(near - common)
                if len(near) >= CROWD:
                    del known[one]
            near.add(other)
        return common

    def _weight(self, nodes: Iterable[int]) -> int:
        return sum([self.weights[n] for n in nodes])


def bits(size: int) -> int:
    """Return the binary logarithm of a number of states, in units of 1/1024."""
    return round(1024 * log2(size))


RULES: Mapping[str, tuple[Callable[[Relations, int], int], Callable[[int], int]]] = {
    "least bits related": (Relations.related, bits),
    "fewest states related": (Relations.related, int),
    "smallest table": (Relations.width, int),
}
"""The rules by name: the rank of a node, and the weight of a node of some number of states.

The node of the lowest rank is eliminated first.
"""


def order(
    sizes: Sequence[int], neighbors: Sequence[Iterable[int]], rule: str, limit: int = 1 << 30
) -> Ordering:
    """Return the order that results from a rule.

    >>> order([2, 3, 4], [{1}, {0, 2}, {1}], "smallest table")
    Ordering(nodes=(0, 1, 2), widest=12, total=22)

    Args:
        sizes: the number of states of each node.
        neighbors: for each node, the nodes that share a table with it.
        rule: name of one of `RULES`.
        limit: the number of neighbors above which a node is not eliminated.
    """
    number, weight = RULES[rule]
    relations = Relations(sizes, neighbors, [weight(n) for n in sizes])

    def turn(node: int) -> Turn | None:
        count = len(relations.neighbors[node])
        if count > limit:
            return None
        return (MANY, count, node) if count > CROWD else (number(relations, node), count, node)

    turns = {n: turn(n) for n in range(len(sizes))}
    queue = [t for t in turns.values() if t is not None]
    heapq.heapify(queue)
    found: dict[int, int] = {}
    while queue:
        when = heapq.heappop(queue)
        node = when[-1]
        if turns.get(node) != when:
            continue  # the entry is outdated
        del turns[node]
        found[node] = relations.width(node)
        for n in relations.eliminate(node):
            fresh = turn(n)
            if fresh is not None and fresh != turns[n]:
                heapq.heappush(queue, fresh)
            turns[n] = fresh
    return Ordering(tuple(found), max(found.values(), default=0), sum(found.values()))


def narrow_order(sizes: Sequence[int], neighbors: Sequence[Iterable[int]]) -> Ordering:
    """Return an order of the nodes with at most two neighbors, which creates only pair tables."""
    return order(sizes, neighbors, "least bits related", limit=2)


def best_order(sizes: Sequence[int], neighbors: Sequence[Iterable[int]], limit: int) -> Ordering:
    """Return the cheapest order of all nodes, if possible one whose tables are within a limit."""
    found: list[Ordering] = []
    for rule in RULES:
        found.append(order(sizes, neighbors, rule))
        if found[-1].widest <= limit and found[-1].total <= CHEAP:
            break
    return min(found, key=lambda one: (one.widest > limit, one.total))
