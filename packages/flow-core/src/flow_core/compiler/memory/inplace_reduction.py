"""Sums of partial results that arise in place, where devices share a memory.

A gradient of data parallelism is a matrix product per device, each as large as the weight, and an
all-reduce that reads all of them.  Devices that share a memory and the sum need only one: the
first device's product is written there, each later device adds its own to it.  That is the order
in which the all-reduce adds them up, and every product is rounded before it is added, so the bits
are those of an all-reduce between devices apart.  What would cross devices is still counted.

Where an update of the weight alone reads the sum, and the products read less than that, the update
makes it, too: some rows after the others, of which the weight's are the only ones that go to
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flow_core.compiler.memory.aliases import alias_roots
from flow_core.compiler.memory.replica_dedup import ReplicaDedup
from flow_core.exchange import BOXING
from flow_core.ir.graph import Attrs, Graph, Op, Value
from flow_core.ir.update_rules import BY_TYPE, DIFF, MODEL
from flow_core.ops.training.summed_updates import SUMMED, fused_attrs
from flow_core.plugins.specs import OpSpec

ONTO: Mapping[str, str] = {"matmul": "matmul_onto"}
"""Ops whose results may be added to what is there, and the ops that do so."""


def with_sums(graph: Graph, sharing: ReplicaDedup, specs: Mapping[str, OpSpec]) -> ReplicaDedup:
    """What devices share, and the sums that they make in place.

    Args:
        graph: the physical graph.
        sharing: what its devices have, and do, only once.
        specs: the ops.
    """
    if not sharing.same:
        return sharing
    found = _Sums(graph, sharing, graph.consumers(), alias_roots(graph, specs, sharing))
    for op in graph.of_type(BOXING):
        if op.attrs["collective"] == "all_reduce" and op.attrs["combine"] == "sum":
            found.search(op)
    same = {**sharing.same, **found.same}
    return replace(sharing, same=same, onto=found.onto, summed=found.summed, within=found.within)


@dataclass(slots=True)
class _Sums:
    """The sums found so far: see `ReplicaDedup`."""

    graph: Graph
    sharing: ReplicaDedup
    readers: Mapping[Value, list[Op]]
    roots: Mapping[Value, Value]
    same: dict[Value, Value] = field(default_factory=dict)
    onto: dict[str, str] = field(default_factory=dict)
    summed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    within: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def search(self, exchange: Op) -> None:
        members = tuple(m for m, parts in enumerate(_members(exchange)) if self._fits(*parts))
        for member, (parts, sums) in enumerate(_members(exchange)):
            if member in members:
                self._take(parts, sums)
        if members:
            self.summed[exchange.name] = members

    def _take(self, parts: tuple[Value, ...], sums: tuple[Value, ...]) -> None:
        """Notes who makes a sum: its update, else the products one after the other."""
        names = [value.op for value in parts]
        update = self._update(parts, sums)
        if update is None:
            self.same.update(dict.fromkeys(parts[1:], parts[0]))
            self.onto.update(zip(names[1:], names, strict=False))
        else:
            self.within[update.name] = tuple(names)
            self.same.update(dict.fromkeys((*parts, sums[0]), update.inputs[MODEL]))

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

    def _update(self, parts: tuple[Value, ...], sums: tuple[Value, ...]) -> Op | None:
        """The op that alone reads a sum, if it is an update which can make it."""
        merged = self.sharing.merged
        readers = [op for value in sums for op in self.readers.get(value, ())]
        running = {op.name: op for op in readers if op.name not in merged}
        if len(running) != 1 or any(value in self.graph.results for value in sums):
            return None
        (update,) = running.values()
        once = sum(value in sums for value in update.inputs) == 1
        alike = all(merged.get(op.name, op.name) == update.name for op in readers)
        products = [self.graph.ops[value.op] for value in parts]
        fits = once and alike and self._may_make(update, products)
        return update if fits and update.inputs[DIFF] in sums else None

    def _may_make(self, update: Op, products: Sequence[Op]) -> bool:
        """Whether an update has a form that makes its gradient of some products.

        None with ``skip_if`` does, nor may a product read what the update overwrites.  What the
        products read is held until the update, which waits for a bucket of gradients: it must take
        no more memory than the gradient does.
        """
        types = self.graph.input_types(update)
        if update.type not in SUMMED or types[MODEL] != types[DIFF]:
            return False
        row = BY_TYPE[update.type]
        written = {self._root(update.inputs[i]) for i in row.mutates}
        read = {self._root(value) for op in products for value in op.inputs}
        small = sum(self.graph.type_of(v).nbytes for v in read) <= types[MODEL].nbytes
        alike = all(op.attrs == products[0].attrs for op in products)
        floating = all(t.dtype.is_floating for t in types[len(row.inputs) :])
        return alike and floating and small and not written & read

    def _root(self, value: Value) -> Value:
        return self.roots.get(value, value)


def _members(exchange: Op) -> Iterator[tuple[tuple[Value, ...], tuple[Value, ...]]]:
    """Inputs and outputs of each member of an all-reduce."""
    p = exchange.placement.size
    for first in range(0, len(exchange.inputs), p):
        yield (
            exchange.inputs[first : first + p],
            tuple(map(exchange.output, range(first, first + p))),
        )


def form_of(graph: Graph, sharing: ReplicaDedup, op: Op) -> tuple[str, Attrs, tuple[Value, ...]]:
    """Type, attributes and inputs of an op, with what it does for others."""
    if op.name in sharing.onto:
        return ONTO[op.type], op.attrs, (*op.inputs, op.output())
    if op.name not in sharing.within or op.name in sharing.joined:
        return op.type, op.attrs, op.inputs
    products = [graph.ops[name] for name in sharing.within[op.name]]
    attrs = fused_attrs(op.attrs, products[0].attrs, len(products))
    others = tuple(value for i, value in enumerate(op.inputs) if i != DIFF)
    operands = tuple(value for product in products for value in product.inputs)
    return SUMMED[op.type], attrs, (*others, *operands)
