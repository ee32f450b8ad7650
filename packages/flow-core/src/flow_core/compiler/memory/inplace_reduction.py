"""In-place reduction: devices that share memory accumulate partial results in one buffer.

In data parallelism, a gradient is computed by a matrix product on each device, whose result is as
large as the weight, and by an all-reduce that reads the results of all devices.  Devices with a
common memory need only one buffer: the first device writes its product to the buffer, and each
later device adds its own product.  Transfers are counted as if the memories were separate.

If only an update of the weight reads the sum, and the inputs of the products are smaller than the
weight, the update itself computes the products, some rows at a time; the gradient is then never
stored in memory.

Invariant: the products are added in the order of the all-reduce, and each product is rounded before
it is added, so the sum is bitwise equal to that of an all-reduce between separate memories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flow_core.comm.exchange import BOXING
from flow_core.compiler.memory.aliases import alias_roots
from flow_core.compiler.memory.replica_dedup import ReplicaDedup
from flow_core.ir.graph import Attrs, Graph, Op, Value
from flow_core.ir.update_rules import BY_TYPE, DIFF, MODEL
from flow_core.ops.training.summed_updates import SUMMED, fused_attrs
from flow_core.plugins.specs import OpSpec

ACCUMULATING: Mapping[str, str] = {"matmul": "matmul_onto"}
"""Maps an op type to the type of the op that adds its result to the contents of the output."""


Form = tuple[str, Attrs, tuple[Value, ...]]
"""The form in which the task of an op runs: its op type, attributes and inputs."""
HasKernel = Callable[[Op, Form], bool]
"""A predicate: whether a kernel of an op's device type accepts the op in another form."""


def with_inplace_sums(
    graph: Graph, sharing: ReplicaDedup, specs: Mapping[str, OpSpec], has_kernel: HasKernel
) -> ReplicaDedup:
    """Return the replicas that devices share, with the sums that are computed in place."""
    if not sharing.same:
        return sharing
    roots = alias_roots(graph, specs, sharing)
    found = _Sums(graph, sharing, graph.consumers(), roots, has_kernel)
    for op in graph.of_type(BOXING):
        if op.attrs["collective"] == "all_reduce" and op.attrs["combine"] == "sum":
            found.search(op)
    same = {**sharing.same, **found.same}
    return replace(
        sharing,
        same=same,
        accumulated=found.accumulated,
        presummed=found.presummed,
        executes=found.executes,
    )


@dataclass(slots=True)
class _Sums:
    """The in-place sums found so far; the fields are those of `ReplicaDedup`."""

    graph: Graph
    sharing: ReplicaDedup
    readers: Mapping[Value, list[Op]]
    roots: Mapping[Value, Value]
    has_kernel: HasKernel
    same: dict[Value, Value] = field(default_factory=dict)
    accumulated: dict[str, str] = field(default_factory=dict)
    presummed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    executes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def search(self, exchange: Op) -> None:
        members = tuple(
            m for m, (parts, sums) in enumerate(_members(exchange)) if self._take(parts, sums)
        )
        if members:
            self.presummed[exchange.name] = members

    def _take(self, parts: tuple[Value, ...], sums: tuple[Value, ...]) -> bool:
        """Record how a sum is computed: by its update, or else by accumulating products.

        Return False if neither is possible.
        """
        if not self._fits(parts, sums):
            return False
        products = [self.graph.ops[value.op] for value in parts]
        names = tuple(op.name for op in products)
        update = self._update(parts, sums)
        if update is not None and self.has_kernel(update, summed_form(update, products)):
            self.executes[update.name] = names
            self.same.update(dict.fromkeys((*parts, sums[0]), update.inputs[MODEL]))
            return True
        if not all(self.has_kernel(op, accumulating_form(op)) for op in products[1:]):
            return False
        self.same.update(dict.fromkeys(parts[1:], parts[0]))
        self.accumulated.update(zip(names[1:], names, strict=False))
        return True

    def _fits(self, parts: tuple[Value, ...], sums: tuple[Value, ...]) -> bool:
        """Return whether only the sum reads the parts, and all devices share the sum."""
        return (
            len(set(parts)) == len(parts) > 1
            and all(value in self.sharing.same for value in sums[1:])
            and all(map(self._only_summed, parts))
        )

    def _only_summed(self, part: Value) -> bool:
        merged = part in self.sharing.same or part.op in self.sharing.merged
        has_one_reader = len(self.readers.get(part, ())) == 1 and part not in self.graph.results
        return self.graph.ops[part.op].type in ACCUMULATING and has_one_reader and not merged

    def _update(self, parts: tuple[Value, ...], sums: tuple[Value, ...]) -> Op | None:
        """Return the only reader of a sum, if it is an update that can compute the sum."""
        merged = self.sharing.merged
        readers = [op for value in sums for op in self.readers.get(value, ())]
        running = {op.name: op for op in readers if op.name not in merged}
        if len(running) != 1 or any(value in self.graph.results for value in sums):
            return None
        (update,) = running.values()
        one_input = sum(value in sums for value in update.inputs) == 1
        one_update = all(merged.get(op.name, op.name) == update.name for op in readers)
        products = [self.graph.ops[value.op] for value in parts]
        fits = one_input and one_update and self._may_make(update, products)
        return update if fits and update.inputs[DIFF] in sums else None

    def _may_make(self, update: Op, products: Sequence[Op]) -> bool:
        """Return whether an update has a form that computes its gradient from the given products.

        An update with ``skip_if`` has no such form, and no product may read a value that the update
        overwrites.  The inputs of the products stay live until the update, which waits for a bucket
        of gradients; therefore the inputs must not be larger than the gradient.
        """
        types = self.graph.input_types(update)
        if update.type not in SUMMED or types[MODEL] != types[DIFF]:
            return False
        row = BY_TYPE[update.type]
        written = {self._root(update.inputs[i]) for i in row.mutates}
        operands = {self._root(value) for op in products for value in op.inputs}
        small = sum(self.graph.type_of(v).nbytes for v in operands) <= types[MODEL].nbytes
        same_attrs = all(op.attrs == products[0].attrs for op in products)
        floating = all(t.dtype.is_floating for t in types[len(row.inputs) :])
        return same_attrs and floating and small and not written & operands

    def _root(self, value: Value) -> Value:
        return self.roots.get(value, value)


def _members(exchange: Op) -> Iterator[tuple[tuple[Value, ...], tuple[Value, ...]]]:
    """Yield the inputs and outputs of each member of an all-reduce."""
    p = exchange.placement.size
    for first in range(0, len(exchange.inputs), p):
        yield (
            exchange.inputs[first : first + p],
            tuple(map(exchange.output, range(first, first + p))),
        )


def accumulating_form(op: Op) -> Form:
    """Return the form of an op that adds its result to the contents of its output."""
    return ACCUMULATING[op.type], op.attrs, (*op.inputs, op.output())


def summed_form(update: Op, products: Sequence[Op]) -> Form:
    """Return the form of an update that also computes its gradient, the sum of the products."""
    attrs = fused_attrs(update.attrs, products[0].attrs, len(products))
    others = tuple(value for i, value in enumerate(update.inputs) if i != DIFF)
    operands = tuple(value for product in products for value in product.inputs)
    return SUMMED[update.type], attrs, (*others, *operands)


def lowered_form(graph: Graph, sharing: ReplicaDedup, op: Op) -> Form:
    """Return the form of the task of an op; the task may also do the work of other ops."""
    if op.name in sharing.accumulated:
        return accumulating_form(op)
    if op.name in sharing.executes and op.name not in sharing.batched:
        return summed_form(op, [graph.ops[name] for name in sharing.executes[op.name]])
    return op.type, op.attrs, op.inputs
