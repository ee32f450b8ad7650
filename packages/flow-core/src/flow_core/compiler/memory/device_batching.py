"""Device batching: one kernel call for the rows of several devices that share memory.

If a batch is split over devices with a common memory, the parts of the batch are fed side by side,
as one array.  One launch can then compute the rows of all devices, as on a single device.

Invariants: a batched op computes the same bits as separate ops, which its kernels assert
(`flow_core.plugins.specs.KernelSpec.batchable`); the devices' values of each input of the op are
either side by side, too, or the same value; the values of each output are side by side.  Ops that
are not batched read the part of their device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from flow_core.base.errors import InferenceError, KernelNotFoundError, located
from flow_core.compiler.memory.aliases import alias_roots
from flow_core.compiler.memory.replica_dedup import ReplicaDedup
from flow_core.ir.graph import Graph, Op, Value
from flow_core.plugins.batchable import side_by_side
from flow_core.plugins.specs import InferContext, KernelQuery, KernelSpec, OpSpec

Parts = tuple[Value, ...]
Find = Callable[..., KernelSpec]


def with_device_batching(
    graph: Graph,
    sharing: ReplicaDedup,
    specs: Mapping[str, OpSpec],
    find: Find,
    once: Set[str] = frozenset(),  # the ops that run when the plan is loaded
) -> ReplicaDedup:
    """Return the replicas that devices share, with the ops that can be batched."""
    if not sharing.same:
        return sharing
    batching = _Batching(graph, sharing, specs, find, alias_roots(graph, specs, sharing))
    excluded = sharing.idle() | sharing.executes.keys() | sharing.accumulated.keys() | once
    for ops in _groups(graph):
        if not excluded & {op.name for op in ops} and not any(op.control for op in ops):
            batching.search(ops)
    merged = {op: ops[0] for ops in batching.groups.values() for op in ops[1:]}
    return replace(
        sharing,
        merged={**sharing.merged, **merged},
        executes={**sharing.executes, **{name: ops[1:] for name, ops in batching.groups.items()}},
        batched=batching.batched,
        adjacent=batching.adjacent,
    )


def _groups(graph: Graph) -> Iterator[list[Op]]:
    """Yield the parts of each logical op or fed array, in the order of their devices."""
    groups: dict[object, list[Op]] = {}
    for op in graph.ops.values():
        origin = graph.origins.get(op.name)
        if op.type == "input":
            groups.setdefault((op.attrs.get("of"), op.type), []).append(op)
        elif origin is not None and op.placement.size == 1:
            key = (origin.unsharded, op.type, op.attrs, len(op.inputs))
            groups.setdefault(key, []).append(op)
    for ops in groups.values():
        devices = {op.placement.devices for op in ops}
        if 1 < len(ops) == len(devices):
            yield ops


@dataclass(slots=True)
class _Batching:
    """The batched ops found so far."""

    graph: Graph
    sharing: ReplicaDedup
    specs: Mapping[str, OpSpec]
    find: Find
    roots: Mapping[Value, Value]
    adjacent: dict[Value, Parts] = field(default_factory=dict)  # as in `ReplicaDedup`
    # Maps a value to the first value of its group of adjacent values, and to its number in the
    # group.
    position: dict[Value, tuple[Value, int]] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # all ops, by the first
    batched: dict[str, tuple[bool, ...]] = field(default_factory=dict)  # as in `ReplicaDedup`

    def search(self, ops: Sequence[Op]) -> None:
        """Batch the parts of one logical op if that is possible."""
        if ops[0].type == "input":
            self._search_fed(ops)
            return
        spec = self.specs[ops[0].type]
        is_unsuitable = spec.alias is not None or spec.random or spec.effect or spec.mutates
        columns = zip(*(op.inputs for op in ops), strict=True)
        flags = [self._is_adjacent(values) for values in columns]
        if is_unsuitable or None in flags or True not in flags:
            return
        adjacent = tuple(map(bool, flags))
        if self._may_batch(ops, adjacent):
            self.groups[ops[0].name] = tuple(op.name for op in ops)
            self.batched[ops[0].name] = adjacent
            for k in range(len(self.graph.types[ops[0].name])):
                self._place_adjacent(tuple(op.output(k) for op in ops))

    def _place_adjacent(self, parts: Parts) -> None:
        self.adjacent[parts[0]] = parts
        self.position.update({part: (parts[0], k) for k, part in enumerate(parts)})

    def _search_fed(self, ops: Sequence[Op]) -> None:
        """Place parts of a fed array side by side if they are consecutive rows of the array."""
        regions = [op.attrs.get("region") for op in ops]
        if None in regions or not all(regions):
            return
        rows = [region[0] for region in regions]  # type: ignore[index]  # not None
        other_axes = {region[1:] for region in regions}  # type: ignore[index]
        are_consecutive = all(a[1] == b[0] for a, b in pairwise(rows))
        types = [self.graph.types[op.name][0] for op in ops]
        if are_consecutive and len(other_axes) == 1 and side_by_side(types) is not None:
            self._place_adjacent(tuple(op.output() for op in ops))

    def _is_adjacent(self, values: Parts) -> bool | None:
        """Return True if the inputs of the devices are adjacent in memory, in device order.

        Return False if all devices read one value, and None if neither is the case.
        """
        roots = [self.roots.get(value, value) for value in values]
        if len(set(roots)) == 1:
            return False if len({self.graph.type_of(value) for value in values}) == 1 else None
        positions = [self.position.get(root) for root in roots]
        first = positions[0]
        if first is None or len(self.adjacent[first[0]]) != len(values):
            return None
        return True if positions == [(first[0], k) for k in range(len(values))] else None

    def _may_batch(self, ops: Sequence[Op], adjacent: Sequence[bool]) -> bool:
        """Return whether one kernel call for all devices computes the same bits as one for each."""
        find = partial(self.find, device_type=ops[0].placement.device_type)
        batched = batched_query(self.graph, ops, adjacent, find)
        if batched is None or not self._is_inferred(batched):
            return False
        parts = []
        for op in ops:
            types = self.graph.input_types(op), self.graph.types[op.name]
            parts.append(KernelQuery(op.type, op.attrs, *types, find))
        with located(self.graph.lines.get(ops[0].name)):
            try:
                kernel, *others = map(find, (batched, *parts))
            except KernelNotFoundError:
                return False
            if kernel.batchable is None or any(k != kernel for k in others):
                return False
            return kernel.batchable(batched, parts)

    def _is_inferred(self, batched: KernelQuery) -> bool:
        """Return whether the op's shape inference gives the expected types for all rows."""
        spec = self.specs[batched.op]
        try:
            outputs = spec.infer(
                InferContext(batched.op, batched.op, batched.inputs, batched.attrs)
            )
        except InferenceError:
            return False
        return tuple(outputs) == batched.outputs


def batched_query(
    graph: Graph,
    ops: Sequence[Op],
    adjacent: Sequence[bool],
    find: Callable[[KernelQuery], KernelSpec],
) -> KernelQuery | None:
    """Return the query for one kernel that computes the ops of several devices in one call.

    Return None if the rows of the devices do not form one array.
    """
    columns = zip(*(graph.input_types(op) for op in ops), strict=True)
    inputs = [side_by_side(t) if w else t[0] for t, w in zip(columns, adjacent, strict=True)]
    outputs = [side_by_side(t) for t in zip(*(graph.types[op.name] for op in ops), strict=True)]
    if None in inputs or None in outputs:
        return None
    input_types, output_types = (
        tuple(t for t in side if t is not None) for side in (inputs, outputs)
    )
    return KernelQuery(ops[0].type, ops[0].attrs, input_types, output_types, find)
