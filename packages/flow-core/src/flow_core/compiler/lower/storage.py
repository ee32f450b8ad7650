"""Storage: the value that owns the bytes of each value, and the live ranges of the owners.

A value without an entry in `Storage.base` owns its bytes.  Invariants: following `base` ends at an
owner; owners, and only they, have a live range; a value shares the bytes of an input that it
overwrites only where no later op reads that input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flow_core.comm.exchange import BOXING
from flow_core.compiler.lower.inputs import Inputs
from flow_core.compiler.lower.ordering import Order
from flow_core.compiler.memory.aliases import alias_roots
from flow_core.ir.graph import Graph, Op, TensorType, Value
from flow_core.plugins.batchable import side_by_side
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.topology import Device


@dataclass(slots=True)
class Storage:
    """The bytes of the values of an ordered graph.

    Attributes:
        graph: the physical graph.
        adjacent: values placed side by side, by the first of them.
        base: the value in whose bytes a value is stored.
        shift: bytes from the start of the base, where not 0.
        first, last: positions of the first and last op that use the bytes of an owner.
    """

    graph: Graph
    adjacent: Mapping[Value, tuple[Value, ...]]
    base: dict[Value, Value]
    shift: dict[Value, int] = field(default_factory=dict)
    first: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)

    def locate(self, value: Value) -> tuple[Value, int]:
        """Return the owner of a value's bytes, and the offset in bytes."""
        shift = 0
        while value in self.base:
            shift += self.shift.get(value, 0)
            value = self.base[value]
        return value, shift

    def owner(self, value: Value) -> Value:
        """Return the owner of a value's bytes."""
        return self.locate(value)[0]

    def type_of(self, owner: Value) -> TensorType:
        """Return the type of an owner together with the values placed side by side with it."""
        parts = self.adjacent.get(owner, ())
        whole = side_by_side([self.graph.type_of(value) for value in parts]) if parts else None
        return whole or self.graph.type_of(owner)

    def device(self, value: Value) -> Device:
        """Return the device of a value."""
        return device_of(self.graph.ops[value.op], value.index)


def device_of(op: Op, output: int = 0) -> Device:
    """Return the device of an output of a physical op; exchanges cycle over their devices."""
    return op.placement.device(output % op.placement.size)


def assign_storage(inputs: Inputs, order: Order) -> Storage:
    """Choose the owner of each value's bytes: aliases, adjacent values, then in-place results."""
    graph, sharing = inputs.graph, order.sharing
    storage = Storage(graph, sharing.adjacent, dict(alias_roots(graph, inputs.specs, sharing)))
    _place_adjacent(storage)
    uses = _last_uses(storage, order)
    for i, op in enumerate(order.ops):
        for k in range(len(graph.types[op.name])):
            value = Value(op.name, k)
            if value not in storage.base:
                storage.first[value] = i
                storage.last[value] = max(uses.get(value, i), i)
        if inputs.options.inplace and op.name not in inputs.constant:
            for value, candidates in _inplace_outputs(inputs.specs, graph, op):
                _store_in_place(storage, inputs, order, i, value, candidates)
    _extend_while_running(storage, order)
    return storage


def _place_adjacent(storage: Storage) -> None:
    """Place the rows of one array behind the first of them."""
    for first, *others in storage.adjacent.values():
        shift = storage.graph.type_of(first).nbytes
        for value in others:
            storage.base[value], storage.shift[value] = first, shift
            shift += storage.graph.type_of(value).nbytes


def _last_uses(storage: Storage, order: Order) -> dict[Value, int]:
    """Return the position of the last op that reads each owner; results outlive all ops."""
    graph, idle = storage.graph, order.sharing.idle()
    uses: dict[Value, int] = {}
    for i, op in enumerate(order.ops):
        for value in order.sharing.reads(graph, op) if op.name not in idle else ():
            uses[storage.owner(value)] = i
    for value in graph.results:
        uses[storage.owner(value)] = len(order.ops)
    return uses


def _inplace_outputs(
    specs: Mapping[str, OpSpec], graph: Graph, op: Op
) -> Iterator[tuple[Value, Sequence[int]]]:
    """Yield the outputs that may overwrite an input, and the inputs that they may overwrite.

    A result of an all-reduce may overwrite the input of its own device.
    """
    if op.type != BOXING:
        if graph.types[op.name]:
            yield op.output(), _overwritable(specs, op)
    elif op.attrs["collective"] == "all_reduce":
        for k in range(len(op.inputs)):
            yield op.output(k), (k,)


def _overwritable(specs: Mapping[str, OpSpec], op: Op) -> Sequence[int]:
    """Return the inputs that output 0 may overwrite.

    A fused group writes an output only when it no longer needs the inputs; the member that makes
    output 0 must itself be able to overwrite its first input.
    """
    if op.type != "fused":
        return specs[op.type].inplace
    maker, refs, *_ = op.attrs["body"][op.attrs["outputs"][0]]
    kept = -1 - refs[0] if 0 not in specs[maker].inplace else None
    return [k for k in range(len(op.inputs)) if k != kept]


def _store_in_place(
    storage: Storage, inputs: Inputs, order: Order, i: int, value: Value, candidates: Sequence[int]
) -> None:
    """Store an output in the bytes of the first input that dies with op ``i`` and fits."""
    if value not in storage.first:
        return
    op = order.ops[i]
    owners = [storage.owner(v) for v in op.inputs]
    for k in candidates:
        owner = owners[k]
        if (
            owner.op not in inputs.constant
            and storage.graph.ops[owner.op].type != "variable"
            and storage.last[owner] == i
            and owners.count(owner) == _times_read(order, op, k)
            and storage.type_of(owner).nbytes == storage.type_of(value).nbytes
            and storage.device(owner) == storage.device(value)
        ):
            storage.base[value] = owner
            storage.last[owner] = max(i, storage.last.pop(value))
            del storage.first[value]
            return


def _times_read(order: Order, op: Op, k: int) -> int:
    """Return how often an op reads the bytes of input ``k``: a presummed member shares one sum."""
    p = op.placement.size
    return p if k // p in order.sharing.presummed.get(op.name, ()) else 1


def _extend_while_running(storage: Storage, order: Order) -> None:
    """Extend live ranges to the end of the ops that use them, while other streams go on."""
    if order.table is None:
        return
    for op, end in zip(order.ops, order.table.until, strict=True):
        outputs = (Value(op.name, k) for k in range(len(storage.graph.types[op.name])))
        for value in (*order.sharing.reads(storage.graph, op), *outputs):
            owner = storage.owner(value)
            storage.last[owner] = max(end, storage.last[owner])
