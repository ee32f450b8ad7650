"""Sums of partial results that arise in place, where devices share a memory.

A gradient of data parallelism is a matrix product per device, each as large as the weight, and an
all-reduce that reads all of them.  Devices that share a memory and the sum need only one: the
first device's product is written there, each later device adds its own to it.  That is the order
in which the all-reduce adds them up, and every product is rounded before it is added, so the bits
are those of an all-reduce between devices apart.  What would cross devices is still counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from flow_core.compiler.sharing import Sharing
from flow_core.exchange import BOXING
from flow_core.ir import Graph, Op, Value

ONTO: Mapping[str, str] = {"matmul": "matmul_onto"}
"""Ops whose results may be added to what is there, and the ops that do so."""


def with_sums(graph: Graph, sharing: Sharing) -> Sharing:
    """What devices share, and the sums that they make in place.

    Args:
        graph: the physical graph.
        sharing: what its devices have, and do, only once.
    """
    if not sharing.same:
        return sharing
    found = _Sums(graph, sharing, graph.consumers())
    for op in graph.of_type(BOXING):
        if op.attrs["collective"] == "all_reduce" and op.attrs["combine"] == "sum":
            found.search(op)
    same = {**sharing.same, **found.same}
    return replace(sharing, same=same, onto=found.onto, summed=found.summed)


@dataclass(slots=True)
class _Sums:
    """The sums found so far: see `Sharing`."""

    graph: Graph
    sharing: Sharing
    readers: Mapping[Value, list[Op]]
    same: dict[Value, Value] = field(default_factory=dict)
    onto: dict[str, str] = field(default_factory=dict)
    summed: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def search(self, exchange: Op) -> None:
        members = tuple(m for m, parts in enumerate(_members(exchange)) if self._fits(*parts))
        for member, (parts, _) in enumerate(_members(exchange)):
            if member in members:
                self.same.update(dict.fromkeys(parts[1:], parts[0]))
                names = [value.op for value in parts]
                self.onto.update(zip(names[1:], names, strict=False))
        if members:
            self.summed[exchange.name] = members

    def _fits(self, parts: tuple[Value, ...], sums: tuple[Value, ...]) -> bool:
        """Whether parts are for the sum alone, and the sum is one for all devices."""
        return (
            len(set(parts)) == len(parts) > 1
            and all(value in self.sharing.same for value in sums[1:])
            and all(map(self._only_summed, parts))
        )

    def _only_summed(self, part: Value) -> bool:
        merged = part in self.sharing.same or part.op in self.sharing.merged
        alone = len(self.readers.get(part, ())) == 1 and part not in self.graph.results
        return self.graph.ops[part.op].type in ONTO and alone and not merged


def _members(exchange: Op) -> Iterator[tuple[tuple[Value, ...], tuple[Value, ...]]]:
    """Inputs and outputs of each member of an all-reduce."""
    p = exchange.placement.size
    for first in range(0, len(exchange.inputs), p):
        yield (
            exchange.inputs[first : first + p],
            tuple(map(exchange.output, range(first, first + p))),
        )
