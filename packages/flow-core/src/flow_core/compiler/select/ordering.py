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
    """An order of elimination.

    Attributes:
        nodes: the nodes in the order in which they are eliminated.
        widest: the number of entries of the largest table that is added up.
        total: the number of entries of all tables that are added up.
    """

    nodes: tuple[int, ...]
    widest: int
    total: int


class Relations:
    """For each node, the neighbors that share a table with it, updated as nodes are eliminated."""

    def __init__(self, sizes: Sequence[int], neighbors: Sequence[Iterable[int]]) -> None:
        self.sizes = sizes
        self.bits = [round(1024 * log2(n)) for n in sizes]
        self.neighbors = [set(nodes) for nodes in neighbors]

    def width(self, node: int) -> int:
        """Return the number of entries of the table that is added up to eliminate a node."""
        return self.sizes[node] * prod([self.sizes[n] for n in self.neighbors[node]])

    def related(self, node: int, weights: Sequence[int]) -> int:
        """Return the total weight of the pairs of nodes that eliminating a node newly relates."""
        adjacent, neighbors, weight = self.neighbors[node], self.neighbors, 0
        for a in adjacent:
            others = adjacent - neighbors[a]
            if len(others) > 1:  # one of them is node a itself
                weight += weights[a] * (sum([weights[b] for b in others]) - weights[a])
        return weight

    def eliminate(self, node: int) -> set[int]:
        """Relate a node's neighbors to one another, and return all nodes whose rank may change."""
        adjacent, neighbors = self.neighbors[node], self.neighbors
        changed = set(adjacent)
        for a in adjacent:
            neighbors[a].discard(node)
            fresh = adjacent - neighbors[a]
            fresh.discard(a)
            if fresh:
                neighbors[a] |= fresh
                for b in fresh:
                    changed |= neighbors[a] & neighbors[b]
        neighbors[node] = set()
        return changed


RULES: Mapping[str, Callable[[Relations, int], int]] = {
    "least bits related": lambda r, node: r.related(node, r.bits),
    "fewest states related": lambda r, node: r.related(node, r.sizes),
    "smallest table": Relations.width,
}
"""The rules by name; the node for which a rule returns the least number is eliminated first."""


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
    relations, number = Relations(sizes, neighbors), RULES[rule]

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
