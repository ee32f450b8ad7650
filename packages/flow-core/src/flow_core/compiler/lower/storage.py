"""Storage: which value owns the bytes of each value, and the live ranges of the owners.

A value without an entry in `Storage.base` owns its bytes.  Invariants: the chain of `base` entries
from any value ends at an owner; only owners have a live range; a value is stored in the bytes of an
input that it overwrites only if no later op reads that input.
"""

from __future__ import annotations

from collections import Counter
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
    """The assignment of values to bytes for an ordered graph.

    Attributes:
        graph: the physical graph.
        adjacent: groups of values that are placed side by side, by the first value of each group.
        base: maps a value to the value in whose bytes it is stored.
        shift: the offset of a value in bytes from the start of its base, if not 0.
        first, last: for each owner, the positions of the first and last op that use its bytes.
    """

    graph: Graph
    adjacent: Mapping[Value, tuple[Value, ...]]
    base: dict[Value, Value]
    shift: dict[Value, int] = field(default_factory=dict)
    first: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)

    def locate(self, value: Value) -> tuple[Value, int]:
        """Return the owner of a value's bytes, and the value's offset in the owner in bytes."""
        shift = 0
        while value in self.base:
            shift += self.shift.get(value, 0)
            value = self.base[value]
        return value, shift

    def owner(self, value: Value) -> Value:
        """Return the owner of a value's bytes."""
        return self.locate(value)[0]

    def type_of(self, owner: Value) -> TensorType:
        """Return the type of an owner, including the values placed side by side with it."""
        parts = self.adjacent.get(owner, ())
        whole = side_by_side([self.graph.type_of(value) for value in parts]) if parts else None
        return whole or self.graph.type_of(owner)

    def device(self, value: Value) -> Device:
        """Return the device of a value."""
        return device_of(self.graph.ops[value.op], value.index)


def device_of(op: Op, output: int = 0) -> Device:
    """Return the device of an output of a physical op.

    The outputs of an exchange are assigned to its devices in turn.
    """
    return op.placement.device(output % op.placement.size)


def assign_storage(inputs: Inputs, order: Order) -> Storage:
    """Choose the owner of each value's bytes.

    The owners of aliases are chosen first, then those of adjacent values and in-place results.
    """
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
            outputs = list(_inplace_outputs(inputs.specs, graph, op))
            owners = [storage.owner(v) for v in op.inputs] if any(c for _, c in outputs) else []
            times = Counter(owners)
            for value, candidates in outputs:
                _store_in_place(
                    storage, inputs, order, i, value, [(k, owners[k]) for k in candidates], times
                )
    _extend_while_running(storage, order)
    return storage


def _place_adjacent(storage: Storage) -> None:
    """Place values that are the rows of one array side by side, after the first of them."""
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

    The result of an all-reduce on a device may overwrite the input on the same device.
    """
    if op.type != BOXING:
        if graph.types[op.name]:
            yield op.output(), _overwritable(specs, op)
    elif op.attrs["collective"] == "all_reduce":
        for k in range(len(op.inputs)):
            yield op.output(k), (k,)


def _overwritable(specs: Mapping[str, OpSpec], op: Op) -> Sequence[int]:
    """Return the numbers of the inputs that output 0 may overwrite.

    A fused group writes an output only when it no longer needs its inputs; the member op that
    computes output 0 must itself be able to overwrite its first input.
    """
    if op.type != "fused":
        return specs[op.type].inplace
    maker, refs, *_ = op.attrs["body"][op.attrs["outputs"][0]]
    kept = -1 - refs[0] if 0 not in specs[maker].inplace else None
    return [k for k in range(len(op.inputs)) if k != kept]


def _store_in_place(
    storage: Storage,
    inputs: Inputs,
    order: Order,
    i: int,
    value: Value,
    candidates: Sequence[tuple[int, Value]],
    times: Mapping[Value, int],
) -> None:
    """Store an output in the bytes of the first candidate input that fits and has no later reader.

    The input must have the same size and device, and must not be a variable or a constant.

    Args:
        storage: the storage so far.
        inputs: the inputs of lowering.
        order: the order of the ops.
        i: the position of the op.
        value: the output.
        candidates: the numbers of the inputs, with their owners.
        times: how many inputs of the op each owner holds.
    """
    if value not in storage.first:
        return
    op = order.ops[i]
    for k, owner in candidates:
        if (
            owner.op not in inputs.constant
            and storage.graph.ops[owner.op].type != "variable"
            and storage.last[owner] == i
            and times[owner] == _times_read(order, op, k)
            and storage.type_of(owner).nbytes == storage.type_of(value).nbytes
            and storage.device(owner) == storage.device(value)
        ):
            storage.base[value] = owner
            storage.last[owner] = max(i, storage.last.pop(value))
            del storage.first[value]
            return


def _times_read(order: Order, op: Op, k: int) -> int:
    """Return how often an op reads the bytes of input ``k``.

    The inputs of a presummed member of an all-reduce share the bytes of one sum.
    """
    p = op.placement.size
    return p if k // p in order.sharing.presummed.get(op.name, ()) else 1


def _extend_while_running(storage: Storage, order: Order) -> None:
    """Extend live ranges to the end of the ops that use them.

    Other streams start ops in the meantime; the end of an op is therefore the position of the last
    op that starts before it ends.
    """
    if order.table is None:
        return
    for op, end in zip(order.ops, order.table.until, strict=True):
        outputs = (Value(op.name, k) for k in range(len(storage.graph.types[op.name])))
        for value in (*order.sharing.reads(storage.graph, op), *outputs):
            owner = storage.owner(value)
            storage.last[owner] = max(end, storage.last[owner])
