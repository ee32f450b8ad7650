"""Replica deduplication: devices with a common memory store and compute equal tensors only once.

The simulated devices and CPU devices of a process read each other's memory.  The first device
computes and stores the tensors that are equal on all of these devices: broadcast weights and their
updates, results of an all-reduce, and the learning rate.  Equality follows from the ops, not from
SBP: two ops are equal if they come from one logical op and have equal attributes and inputs.  Equal
values originate from exchanges, and from variables that hold the same part of a logical variable
and whose updates are all equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flow_core.comm.exchange import BOXING
from flow_core.ir.graph import Graph, Op, Value
from flow_core.plugins.specs import OpSpec


@dataclass(frozen=True, slots=True)
class ReplicaDedup:
    """The values that several devices share, and the ops that run for several devices.

    Invariants: ``same`` maps to earlier values only.  An op that is in ``merged`` or that another
    op executes does not run.  The keys of ``batched`` are keys of ``executes``; the outputs of a
    batched op and of the ops that it executes are ``adjacent``.
    """

    # Maps a value to the earlier value, of another device, in whose bytes it is stored.
    same: Mapping[Value, Value] = field(default_factory=dict)
    # Maps an op to the earlier op that computes its results.
    merged: Mapping[str, str] = field(default_factory=dict)
    # Names of the physical variables that are stored in the memory of another physical variable.
    shared_variables: frozenset[str] = frozenset()
    # Maps an op to the earlier op to whose result it adds its own result; see
    # `flow_core.compiler.memory.inplace_reduction`.
    accumulated: Mapping[str, str] = field(default_factory=dict)
    # Maps an all-reduce to those of its members whose inputs are already summed.
    presummed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Maps an op to the ops whose work it does in addition to its own.
    executes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Maps an op that computes the rows of several devices at once to a flag for each input: whether
    # the op reads the inputs of all devices side by side; see
    # `flow_core.compiler.memory.device_batching`.
    batched: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)
    # Maps the first of several values that are placed side by side to all these values, in order.
    adjacent: Mapping[Value, tuple[Value, ...]] = field(default_factory=dict)

    def idle(self) -> frozenset[str]:
        """Return the ops that do not run, because other ops do their work."""
        return frozenset(self.merged) | {name for names in self.executes.values() for name in names}

    def reads(self, graph: Graph, op: Op) -> tuple[Value, ...]:
        """Return the values that an op reads, for itself and for the ops that it executes."""
        others = (graph.ops[name].inputs for name in self.executes.get(op.name, ()))
        return (*op.inputs, *(value for values in others for value in values))

    def executed_with(self, graph: Graph, op: Op) -> list[Op]:
        return [op, *(graph.ops[name] for name in self.executes[op.name])]


NO_DEDUP = ReplicaDedup()

MOST_WALKS = 8
"""The number of searches that each leave out further variables, before one that leaves out all."""

Copies = Sequence[Sequence[str]]
"""For each part of a logical variable, the names of the physical variables that hold it."""


def find_sharing(
    graph: Graph, specs: Mapping[str, OpSpec], copies: Iterable[Copies]
) -> ReplicaDedup:
    """Find the replicas in a physical graph whose devices have a common memory.

    Args:
        graph: the physical graph, after all passes.
        copies: for each variable that may be shared, the groups of ``variable`` ops that hold the
            same part of the variable.
    """
    wanted, walks = list(copies), 0
    # Equality is assumed and then checked: if the updates of a group differ under the assumption,
    # what was derived from it is void, so the walk starts again without the group.
    while True:
        walks += 1
        walk = _Walk(graph, specs)
        for group in (group for groups in wanted for group in groups):
            walk.same.update({Value(name, 0): Value(group[0], 0) for name in group[1:]})
        walk.run()
        kept = [groups for groups in wanted if all(map(walk.updated_equally, groups))]
        if len(kept) == len(wanted):
            names = frozenset(n for groups in wanted for group in groups for n in group[1:])
            return ReplicaDedup(walk.same, walk.merged, names)
        wanted = kept if walks < MOST_WALKS else []


@dataclass(slots=True)
class _Walk:
    """One traversal of the graph, under the assumption that some variables are equal."""

    graph: Graph
    specs: Mapping[str, OpSpec]
    same: dict[Value, Value] = field(default_factory=dict)  # as in `ReplicaDedup`
    merged: dict[str, str] = field(default_factory=dict)
    seen: dict[object, str] = field(default_factory=dict)  # maps each computation to its first op
    updates: dict[Value, list[str]] = field(default_factory=dict)  # ops that overwrite a variable

    def run(self) -> None:
        for op in self.graph.ops.values():
            for value in self._overwritten(op):
                self.updates.setdefault(value, []).append(op.name)
        for op in self.graph.ops.values():
            if not self._may_merge(op):
                continue
            if op.type == BOXING:
                self.same.update(_alike(op, self._read(op)))
            else:
                self._merge(op)

    def _read(self, op: Op) -> tuple[Value, ...]:
        return tuple([self.same.get(v, v) for v in op.inputs])

    def _may_merge(self, op: Op) -> bool:
        spec = self.specs[op.type]
        types = (*self.graph.input_types(op), *self.graph.types[op.name])
        fixed = op.type in ("input", "variable") or (spec.effect and not spec.mutates)
        if fixed or any(t.dtype.is_object for t in types):
            return False
        return not any(Value(op.name, k) in self.updates for k in range(len(types)))

    def _merge(self, op: Op) -> None:
        origin = self.graph.origin(op.name).unsharded
        control = tuple([self.merged.get(name, name) for name in op.control])
        does = (origin, op.type, op.attrs, self._read(op), control, self.graph.types[op.name])
        first = self.seen.setdefault(does, op.name)
        if first != op.name:
            self.merged[op.name] = first
            outputs = range(len(self.graph.types[op.name]))
            self.same.update({Value(op.name, i): Value(first, i) for i in outputs})

    def _overwritten(self, op: Op) -> Iterator[Value]:
        """Yield the values whose memory an op overwrites, before any sharing."""
        for index in self.specs[op.type].overwrites(op.attrs):
            if index < len(op.inputs):
                yield self._owner(op.inputs[index])

    def _owner(self, value: Value) -> Value:
        op = self.graph.ops[value.op]
        alias = self.specs[op.type].alias
        if alias is None or alias >= len(op.inputs):
            return value
        return self._owner(op.inputs[alias])

    def updated_equally(self, group: Sequence[str]) -> bool:
        """Return whether the variables of a group share all of their updates."""
        done = [self._updates(name) for name in group]
        return all(other == done[0] for other in done)

    def _updates(self, name: str) -> list[str]:
        return [self.merged.get(op, op) for op in self.updates.get(Value(name, 0), ())]


def _alike(op: Op, inputs: Sequence[Value]) -> Iterator[tuple[Value, Value]]:
    """Yield each output of an exchange that equals an earlier output, and that earlier output."""
    first: dict[object, int] = {}
    for index, made in enumerate(_sources_of(op, inputs)):
        earlier = first.setdefault(made, index)
        if earlier != index:
            yield op.output(index), op.output(earlier)


def _sources_of(op: Op, inputs: Sequence[Value]) -> Iterator[object]:
    """Yield a key for the contents of each output: the blocks that make it, in their order."""
    shapes = op.attrs["shapes"]
    if op.attrs["collective"] == "all_reduce":
        yield from [k // op.placement.size for k in range(len(shapes))]
        return
    made: list[list[object]] = [[shape] for shape in shapes]
    for source, start, target, at, size, copied in op.attrs["blocks"]:
        made[target].append((inputs[source], start, at, size, copied))
    for target, operation in op.attrs["fills"]:
        made[target].append(operation)
    yield from map(tuple, made)
