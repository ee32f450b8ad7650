"""Live ranges: which value owns the bytes of each value, and when the owners' bytes are in use.

A value without an entry in `Storage.base` owns its bytes.  Invariants: the chain of `base` entries
from any value ends at an owner; only owners have a live range; a value is stored in the bytes of an
input that it overwrites only if no later op reads that input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flow_core.comm.exchange import BOXING
from flow_core.compiler.memory.aliases import alias_roots
from flow_core.compiler.memory.replica_dedup import ReplicaDedup
from flow_core.ir.graph import Graph, Op, TensorType, Value
from flow_core.plan import Buffer
from flow_core.plugins.batchable import side_by_side
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class Execution:
    """The ops of a physical graph in the order in which they start."""

    graph: Graph
    specs: Mapping[str, OpSpec]
    ops: Sequence[Op]  # in the order in which they start
    # For each op, the position of the last op that starts before it ends; None if each op ends
    # before the next one starts.
    until: Sequence[int] | None
    sharing: ReplicaDedup
    constant: frozenset[str]  # names of the ops that do not run in each step
    derived: frozenset[str]  # those of them that run again after a variable was overwritten
    inplace: bool  # whether an output may overwrite an input that no later op reads
    reuse: bool  # whether memory is reused within a step

    def end(self, i: int) -> int:
        """Return the position of the last op that starts before the op at position ``i`` ends."""
        return i if self.until is None else self.until[i]


@dataclass(slots=True)
class Storage:
    """The assignment of values to bytes for an ordered graph."""

    graph: Graph
    # Groups of values that are placed side by side, by the first value of each group.
    adjacent: Mapping[Value, tuple[Value, ...]]
    base: dict[Value, Value]  # maps a value to the value in whose bytes it is stored
    # The offset of a value in bytes from the start of its base, if not 0.
    shift: dict[Value, int] = field(default_factory=dict)
    # By owner, the position of the first op that uses its bytes.
    first: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)  # likewise of the last op

    def locate(self, value: Value) -> tuple[Value, int]:
        """Return the owner of a value's bytes, and the value's offset in the owner in bytes."""
        shift = 0
        while value in self.base:
            shift += self.shift.get(value, 0)
            value = self.base[value]
        return value, shift

    def owner(self, value: Value) -> Value:
        return self.locate(value)[0]

    def type_of(self, owner: Value) -> TensorType:
        """Return the type of an owner, including the values placed side by side with it."""
        parts = self.adjacent.get(owner, ())
        whole = side_by_side([self.graph.type_of(value) for value in parts]) if parts else None
        return whole or self.graph.type_of(owner)

    def device(self, value: Value) -> Device:
        return device_of(self.graph.ops[value.op], value.index)


def device_of(op: Op, output: int = 0) -> Device:
    """Return the device of an output of a physical op.

    The outputs of an exchange are assigned to its devices in turn.
    """
    return op.placement.device(output % op.placement.size)


def assign_storage(execution: Execution) -> Storage:
    """Choose the owner of each value's bytes.

    The owners of aliases are chosen first, then those of adjacent values and in-place results.
    """
    graph, specs, sharing = execution.graph, execution.specs, execution.sharing
    storage = Storage(graph, sharing.adjacent, dict(alias_roots(graph, specs, sharing)))
    _place_adjacent(storage)
    uses = _last_uses(storage, execution)
    for i, op in enumerate(execution.ops):
        for k in range(len(graph.types[op.name])):
            value = Value(op.name, k)
            if value not in storage.base:
                storage.first[value] = i
                storage.last[value] = max(uses.get(value, i), i)
        # Ops are visited in their order, and a merge extends the range of the owner at once.  Hence
        # ``last[owner] == i`` says that no op after this one reads any value in these bytes.
        if execution.inplace and op.name not in execution.constant:
            outputs = list(_inplace_outputs(specs, graph, op))
            owners = [storage.owner(v) for v in op.inputs] if any(c for _, c in outputs) else []
            times = Counter(owners)
            for value, candidates in outputs:
                _store_in_place(
                    storage, execution, i, value, [(k, owners[k]) for k in candidates], times
                )
    # Only now: the test above needs the last reader, not the last op that overlaps in time with it.
    _extend_while_running(storage, execution)
    return storage


def _place_adjacent(storage: Storage) -> None:
    """Place values that are the rows of one array side by side, after the first of them."""
    for first, *others in storage.adjacent.values():
        shift = storage.graph.type_of(first).nbytes
        for value in others:
            storage.base[value], storage.shift[value] = first, shift
            shift += storage.graph.type_of(value).nbytes


def _last_uses(storage: Storage, execution: Execution) -> dict[Value, int]:
    """Return the position of the last op that reads each owner; results outlive all ops."""
    graph, sharing = execution.graph, execution.sharing
    idle, uses = sharing.idle(), dict[Value, int]()
    for i, op in enumerate(execution.ops):
        for value in sharing.reads(graph, op) if op.name not in idle else ():
            uses[storage.owner(value)] = i
    for value in graph.results:
        uses[storage.owner(value)] = len(execution.ops)
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
    execution: Execution,
    i: int,
    value: Value,
    candidates: Sequence[tuple[int, Value]],  # the numbers of the inputs, with their owners
    times: Mapping[Value, int],  # how many inputs of the op each owner holds
) -> None:
    """Store an output in the bytes of the first candidate input that fits and has no later reader.

    The input must have the same size and device, and must not be a variable or a constant.
    """
    if value not in storage.first:
        return
    op = execution.ops[i]
    for k, owner in candidates:
        if (
            owner.op not in execution.constant
            and storage.graph.ops[owner.op].type != "variable"
            and storage.last[owner] == i
            and times[owner] == _times_read(execution.sharing, op, k)
            and storage.type_of(owner).nbytes == storage.type_of(value).nbytes
            and storage.device(owner) == storage.device(value)
        ):
            storage.base[value] = owner
            storage.last[owner] = max(i, storage.last.pop(value))
            del storage.first[value]
            return


def _times_read(sharing: ReplicaDedup, op: Op, k: int) -> int:
    """Return how often an op reads the bytes of input ``k``.

    The inputs of a presummed member of an all-reduce share the bytes of one sum.
    """
    p = op.placement.size
    return p if k // p in sharing.presummed.get(op.name, ()) else 1


def _extend_while_running(storage: Storage, execution: Execution) -> None:
    """Extend live ranges to the end of the ops that use them; other streams start ops meanwhile."""
    if execution.until is None:
        return
    graph = execution.graph
    for op, end in zip(execution.ops, execution.until, strict=True):
        outputs = (Value(op.name, k) for k in range(len(graph.types[op.name])))
        for value in (*execution.sharing.reads(graph, op), *outputs):
            owner = storage.owner(value)
            storage.last[owner] = max(end, storage.last[owner])


# ------------------------------------------------------------------------------------- buffers


def owned_buffers(execution: Execution, storage: Storage) -> Iterator[tuple[Value, Buffer]]:
    """Yield the owners of bytes in the order of their ops, with buffers that have no offset yet.

    Buffers that are never reused are in use at all positions.  Values that do not change in a step
    are computed at negative positions.
    """
    read = _read_by_steps(execution, storage) if execution.derived else frozenset()
    for op in execution.ops:
        for k in range(len(execution.graph.types[op.name])):
            value = Value(op.name, k)
            if value in storage.first:
                yield value, _buffer(execution, storage, value, value in read)


def _read_by_steps(execution: Execution, storage: Storage) -> frozenset[Value]:
    """Return the owners of the values that are fetched, or read by ops that run in each step."""
    read = [v for op in execution.ops if op.name not in execution.derived for v in op.inputs]
    return frozenset(map(storage.owner, (*read, *execution.graph.results)))


def _buffer(execution: Execution, storage: Storage, value: Value, kept: bool) -> Buffer:
    """Return the buffer of an owner; ``kept`` states whether a step reads it, if it is derived."""
    op, end = execution.graph.ops[value.op], len(execution.ops)
    kind = "constant" if op.name in execution.constant else _KINDS.get(op.type, "temp")
    first, last = storage.first[value], storage.last[value]
    if op.name in execution.derived and execution.reuse:
        kind, first, last = ("constant" if kept else "temp"), first - end, last - end
        last = end if kept else last
    elif kind == "constant":
        first, last = -end if execution.derived else 0, end
    elif kind == "variable" or not execution.reuse:
        first, last = 0, end
    elif kind == "feed":
        first = 0  # it is copied in before the first task
    device, type_ = storage.device(value), storage.type_of(value)
    return Buffer(op.name, value.index, kind, device, -1, type_, first, last)


_KINDS = {"input": "feed", "variable": "variable"}


def workspace_buffer(execution: Execution, i: int, type_: TensorType) -> Buffer:
    """Return the buffer of the workspace of the op at position ``i``, in use while the op runs."""
    op = execution.ops[i]
    first, last = (0, 0) if op.name in execution.constant else (i, execution.end(i))
    if op.name in execution.derived:
        first = last = i - len(execution.ops)
    return Buffer(op.name, None, "workspace", device_of(op), -1, type_, first, last)
