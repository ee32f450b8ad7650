"""Elimination orders of a network, and their work.

The tables that arise depend on the relations between nodes alone, so orders are tried on the
relations, by several greedy rules, none of which is the best for all networks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod

CROWD, MANY = 40, 1 << 60
"""A node with more neighbours than ``CROWD`` comes after all others."""

CHEAP = 1 << 25
"""Entries that are added up in less time than trying another rule takes."""

Turn = tuple[int, int, int]  # the rule's number, the number of neighbours, the node


@dataclass(frozen=True, slots=True)
class Ordering:
    """An order of elimination.

    Attributes:
        nodes: the nodes, in this order.
        widest: entries of the largest table that is added up.
        total: entries of all tables that are added up.
    """

    nodes: tuple[int, ...]
    widest: int
    total: int


class Relations:
    """The nodes of a network that share a table with each node, while nodes are eliminated."""

    def __init__(self, sizes: Sequence[int], neighbours: Sequence[Iterable[int]]) -> None:
        self.sizes = sizes
        self.bits = [round(1024 * log2(n)) for n in sizes]
        self.neighbours = [set(nodes) for nodes in neighbours]

    def width(self, node: int) -> int:
        """Return the entries of the table that eliminating a node adds up."""
        return self.sizes[node] * prod([self.sizes[n] for n in self.neighbours[node]])

    def related(self, node: int, weights: Sequence[int]) -> int:
        """Return the weight of the pairs of nodes that an elimination newly relates."""
        adjacent, neighbours, weight = self.neighbours[node], self.neighbours, 0
        for a in adjacent:
            others = adjacent - neighbours[a]
            if len(others) > 1:  # itself is one of them
                weight += weights[a] * (sum([weights[b] for b in others]) - weights[a])
        return weight

    def eliminate(self, node: int) -> set[int]:
        """Relate a node's neighbours to one another; return all nodes that this affects."""
        adjacent, neighbours = self.neighbours[node], self.neighbours
        changed = set(adjacent)
        for a in adjacent:
            neighbours[a].discard(node)
            fresh = adjacent - neighbours[a]
            fresh.discard(a)
            if fresh:
                neighbours[a] |= fresh
                for b in fresh:
                    changed |= neighbours[a] & neighbours[b]
        neighbours[node] = set()
        return changed


RULES: Mapping[str, Callable[[Relations, int], int]] = {
    "least bits related": lambda r, node: r.related(node, r.bits),
    "fewest states related": lambda r, node: r.related(node, r.sizes),
    "smallest table": Relations.width,
}
"""The rules by name; the node of the least number is eliminated first."""


def order(
    sizes: Sequence[int], neighbours: Sequence[Iterable[int]], rule: str, limit: int = 1 << 30
) -> Ordering:
    """Return the order by a rule.

    >>> order([2, 3, 4], [{1}, {0, 2}, {1}], "smallest table")
    Ordering(nodes=(0, 1, 2), widest=12, total=22)

    Args:
        sizes: states per node.
        neighbours: the nodes that share a table with each.
        rule: one of `RULES`.
        limit: nodes with more neighbours are not eliminated.
    """
    relations, number = Relations(sizes, neighbours), RULES[rule]

    def turn(node: int) -> Turn | None:
        count = len(relations.neighbours[node])
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
            continue  # an outdated entry
        del turns[node]
        found[node] = relations.width(node)
        for n in relations.eliminate(node):
            fresh = turn(n)
            if fresh is not None and fresh != turns[n]:
                heapq.heappush(queue, fresh)
            turns[n] = fresh
    return Ordering(tuple(found), max(found.values(), default=0), sum(found.values()))


def narrow_order(sizes: Sequence[int], neighbours: Sequence[Iterable[int]]) -> Ordering:
    """Return an order of the nodes with at most two neighbours; tables of pairs remain."""
    return order(sizes, neighbours, "least bits related", limit=2)


def best_order(sizes: Sequence[int], neighbours: Sequence[Iterable[int]], limit: int) -> Ordering:
    """Return the cheapest order of all nodes, within the limit on tables if one is."""
    found: list[Ordering] = []
    for rule in RULES:
        found.append(order(sizes, neighbours, rule))
        if found[-1].widest <= limit and found[-1].total <= CHEAP:
            break
    return min(found, key=lambda one: (one.widest > limit, one.total))
