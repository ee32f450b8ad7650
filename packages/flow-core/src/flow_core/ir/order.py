"""Stable topological order: among the ready nodes, the node of lowest rank comes first."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Dependencies(Generic[Node]):
    """Counts of the unfinished predecessors of each node.

    Args:
        before: the distinct predecessors of each node.
    """

    def __init__(self, before: Mapping[Node, Collection[Node]]) -> None:
        self._waiting = {name: len(names) for name, names in before.items()}
        self._followers: dict[Node, list[Node]] = {}
        for name, names in before.items():
            for other in names:
                self._followers.setdefault(other, []).append(name)

    def blocked(self) -> list[Node]:
        """Return the nodes that have an unfinished predecessor."""
        return [name for name, count in self._waiting.items() if count]

    def free(self) -> list[Node]:
        """Return the nodes that have no unfinished predecessor."""
        return [name for name, count in self._waiting.items() if not count]

    def finish(self, name: Node) -> Iterator[Node]:
        """Mark a node as finished; yield the nodes that become free."""
        for other in self._followers.get(name, ()):
            self._waiting[other] -= 1
            if not self._waiting[other]:
                yield other


def topological_order(
    before: Mapping[str, Collection[str]], rank: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """Order nodes after their predecessors (Kahn's algorithm); break ties by rank, then by name.

    >>> topological_order({"a": [], "b": [], "c": ["b"]}, {"a": 2, "b": 0, "c": 1})
    (['b', 'c', 'a'], [])

    Args:
        before: the distinct predecessors of each node.

    Returns:
        The order, and the nodes that it omits: nodes on a cycle, or that depend on one.
    """
    dependencies = Dependencies(before)
    ready = [(rank[name], name) for name in dependencies.free()]
    heapify(ready)
    order: list[str] = []
    while ready:
        _, name = heappop(ready)
        order.append(name)
        for other in dependencies.finish(name):
            heappush(ready, (rank[other], other))
    return order, dependencies.blocked()
