"""What devices that share a memory need not have, or do, one by one.

Emulated devices and those of the CPU live in one process and read each other's memory.  What they
would all compute alike is then computed by the first of them, and what they would all hold alike
is held once: weights that are broadcast and their updates, results of an all-reduce, the
learning rate.  It is found from the ops themselves, not from what SBP says about them: an op does
what another one does if both are parts of one logical op, with the same attributes, on inputs
that are the same bytes.  Values begin to be the same where an exchange makes them so, and where
variables hold the same part of a logical one, as long as all updates of these are the same, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flow_core.exchange import BOXING
from flow_core.ir.graph import Graph, Op, Value
from flow_core.plugins.specs import OpSpec


@dataclass(frozen=True, slots=True)
class ReplicaDedup:
    """What is the same on several devices.

    Attributes:
        same: values that are the same bytes as an earlier one of another device.
        merged: ops that do what an earlier one does, and which: they need not run.
        variables: names of the physical variables that lie in another one's memory.
        onto: ops whose results are added to those of another one, which comes before: see
            `flow_core.compiler.memory.inplace_reduction`.
        summed: of all-reduces, the members that have been summed up by then.
        within: ops that also do what others would have done, for them alone or beside them, and
            those.
        joined: ops that do the rows of several devices at once, and per input whether it is that
            of all devices side by side: see `flow_core.compiler.memory.device_batching`.
        rows: values that lie side by side, by the first of them.
    """

    same: Mapping[Value, Value] = field(default_factory=dict)
    merged: Mapping[str, str] = field(default_factory=dict)
    variables: frozenset[str] = frozenset()
    onto: Mapping[str, str] = field(default_factory=dict)
    summed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    within: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    joined: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)
    rows: Mapping[Value, tuple[Value, ...]] = field(default_factory=dict)

    def idle(self) -> frozenset[str]:
        """The ops that need not run, as others do what they do."""
        return frozenset(self.merged) | {name for names in self.within.values() for name in names}

    def reads(self, graph: Graph, op: Op) -> tuple[Value, ...]:
        """What an op reads, for itself and for those that it does."""
        others = (graph.ops[name].inputs for name in self.within.get(op.name, ()))
        return (*op.inputs, *(value for values in others for value in values))


NO_DEDUP = ReplicaDedup()

MOST_WALKS = 8
"""How often the search begins again without some variables, before it goes without any."""

Copies = Sequence[Sequence[str]]
"""Names of physical variables that hold the same part of a logical one, part by part."""


def find_sharing(
    graph: Graph,
    specs: Mapping[str, OpSpec],
    copies: Iterable[Copies],
) -> ReplicaDedup:
    """What the devices of a physical graph can share, all of which have one memory.

    Args:
        graph: the physical graph, after all passes.
        specs: the ops.
        copies: of each variable that may be shared, the groups of ``variable`` ops that hold
            the same part of it.
    """
    wanted, walks = list(copies), 0
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
    """One way through the graph, which takes some variables to be the same.

    Attributes:
        same, merged: as in `ReplicaDedup`.
        seen: ops by what they do.
        updates: by variable, the ops that overwrite it.
    """

    graph: Graph
    specs: Mapping[str, OpSpec]
    same: dict[Value, Value] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)
    seen: dict[object, str] = field(default_factory=dict)
    updates: dict[Value, list[str]] = field(default_factory=dict)

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
        """The values whose memory an op overwrites, before any sharing."""
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
        """Whether every update of a group of variables is one op, which all of them share."""
        done = [self._updates(name) for name in group]
        return all(other == done[0] for other in done)

    def _updates(self, name: str) -> list[str]:
        return [self.merged.get(op, op) for op in self.updates.get(Value(name, 0), ())]


def _alike(op: Op, inputs: Sequence[Value]) -> Iterator[tuple[Value, Value]]:
    """Outputs of an exchange that are the same bytes as an earlier output."""
    first: dict[object, int] = {}
    for index, made in enumerate(_made_of(op, inputs)):
        earlier = first.setdefault(made, index)
        if earlier != index:
            yield op.output(index), op.output(earlier)


def _made_of(op: Op, inputs: Sequence[Value]) -> Iterator[object]:
    """What each output of an exchange is made of: blocks of inputs, in their order."""
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
