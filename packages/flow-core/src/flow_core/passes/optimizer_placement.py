"""Optimizer-state sharding: each device keeps and updates a part of the weights and their states.

A weight that all devices hold alike is, with its optimizer states, either split on axis 0 over
the devices ("distributed_split") or put on one of them, the least loaded one in turn
("non_distributed").  In a hierarchy, "distributed_split" divides what the devices of a dimension
hold alike, such as the parts of tensor parallelism that the replicas of data parallelism have.
The forward and backward ops read a copy that is put together at the start of the step; the
gradient comes to its owners alone.  What is sent is the same as before, the memory of weights
and states and the work of the updates are divided by the number of devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from math import prod

from flow_core.ir.graph import NO_ATTRS, Graph, Op, TensorType, Value
from flow_core.passes.base import PassContext
from flow_core.passes.split_norms import takes_apart
from flow_core.plugins.specs import SbpContext
from flow_core.sharding.sbp import B, NdSbp, Split
from flow_core.sharding.topology import Placement

MODES = ("non_distributed", "distributed_split")
THRESHOLD = 1024
"""Weights of fewer elements per device stay as they are."""


@dataclass(frozen=True, slots=True)
class Owned:
    """Where a weight and its states are to lie."""

    placement: Placement
    sbp: tuple[NdSbp, ...]


def owners(graph: Graph) -> dict[str, Owned]:
    """Where the variables of a rewritten graph lie that have copies for their readers."""
    found: dict[str, Owned] = {}
    for op in graph.of_type("variable"):
        if copy_name(op.name) in graph.ops:
            found[op.name] = Owned(op.placement, tuple(s for s in op.sbp if s is not None))
    return found


def copy_name(variable: str) -> str:
    """The name of the copy of a variable that is put together for its readers."""
    return f"{variable}/gathered"


@dataclass(frozen=True)
class OptimizerPlacement:
    """Gives the weights of data parallelism, and their optimizer states, to owners.

    Attributes:
        mode: "non_distributed" or "distributed_split".
        threshold: elements per device from which on it is worth it.
    """

    mode: str
    threshold: int = THRESHOLD
    name: str = "optimizer_placement"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph with weights and states at their owners, and copies for all other readers."""
        updates = {v: op for v, op in _updates(graph, context) if self._allows(graph, v, op)}
        owned = self._owners(graph, context, updates)
        moved = {updates[weight].name: place for weight, place in owned.items()}
        weights = {weight.op for weight in owned}
        kept = _states(context, updates, owned)
        return _rewritten(graph, moved, kept, weights) if owned else graph

    def _allows(self, graph: Graph, weight: Value, update: Op) -> bool:
        op, type_ = graph.ops[weight.op], graph.type_of(weight)
        devices = op.placement.size
        same = update.placement == op.placement
        alike = _alike(op) or (self.mode == "distributed_split" and _partly_alike(op))
        return devices > 1 and alike and same and type_.size >= self.threshold * devices

    def _owners(
        self, graph: Graph, context: PassContext, updates: dict[Value, Op]
    ) -> dict[Value, Owned]:
        if self.mode == "non_distributed":
            return _in_turn(graph, updates)
        split = {weight: _split(graph.ops[weight.op]) for weight in updates}
        return {
            weight: Owned(op.placement, (split[weight],))
            for weight, op in updates.items()
            if _splits(graph, context, op, split[weight])
        }


def _alike(variable: Op) -> bool:
    """Whether all devices are to hold a variable alike."""
    return not variable.sbp or all(s == B for s in variable.sbp[0] or ())


def _partly_alike(variable: Op) -> bool:
    """Whether the devices of some hierarchy dimension are to hold a variable alike."""
    sizes = variable.placement.hierarchy
    return any(s == B and n > 1 for s, n in zip(_sbp(variable), sizes, strict=True))


def _sbp(variable: Op) -> NdSbp:
    """The SBP of a variable: all devices hold it alike unless something else is asked for."""
    asked = variable.sbp[0] if variable.sbp else None
    return (B,) * len(variable.placement.hierarchy) if asked is None else asked


def _updates(graph: Graph, context: PassContext) -> Iterator[tuple[Value, Op]]:
    """The trained variables, each with its one update."""
    found: dict[Value, list[Op]] = {}
    for op in graph.ops.values():
        for i in context.specs[op.type].mutates:
            if i < len(op.inputs):
                found.setdefault(op.inputs[i], []).append(op)
    for value, ops in found.items():
        variable = graph.ops[value.op]
        if variable.type == "variable" and variable.attrs["trainable"] and len(ops) == 1:
            yield value, ops[0]


def _split(variable: Op) -> NdSbp:
    """The SBP with what is alike in a dimension split on axis 0 instead."""
    return tuple(Split(0) if s == B else s for s in _sbp(variable))


def _splits(graph: Graph, context: PassContext, update: Op, split: NdSbp) -> bool:
    """Whether an update may be split so, with a part for every device."""
    types, sizes = graph.input_types(update), update.placement.hierarchy
    rules = context.specs[update.type].sbp(SbpContext(types, (), update.attrs))
    valid = {rule.inputs[0] for rule in rules}
    shape = types[0].shape
    return (all(s in valid for s in split) or takes_apart(update)) and all(
        n >= prod(p for s, p in zip(split, sizes, strict=True) if s == Split(axis))
        for axis, n in enumerate(shape)
    )


def _in_turn(graph: Graph, updates: dict[Value, Op]) -> dict[Value, Owned]:
    """A device for each weight: the largest first, always to the device that has least."""
    load: dict[tuple[Placement, int], int] = {}
    owned: dict[Value, Owned] = {}
    for weight in sorted(updates, key=lambda v: -graph.type_of(v).nbytes):
        devices = graph.ops[weight.op].placement
        rank = min(range(devices.size), key=lambda r: load.get((devices, r), 0))
        load[devices, rank] = load.get((devices, rank), 0) + graph.type_of(weight).nbytes
        single = Placement(devices.device_type, devices.devices[rank : rank + 1])
        owned[weight] = Owned(single, ((B,),))
    return owned


@dataclass(frozen=True)
class SharedPlacement:
    """Lays out variables as another job has them, of which devices keep a part each.

    Attributes:
        owners: where the variables of that job lie, by name.
    """

    owners: Mapping[str, Owned]
    name: str = "shared_placement"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph with these variables at their owners, and copies for their readers."""
        kept = {
            op.name: self.owners[op.name]
            for op in graph.of_type("variable")
            if op.name in self.owners and _alike(op)
        }
        moved = {
            op.name: kept[v.op]
            for op in graph.ops.values()
            for i in context.specs[op.type].mutates
            if i < len(op.inputs) and (v := op.inputs[i]).op in kept
        }
        return _rewritten(graph, moved, kept, set(kept)) if kept else graph


def _rewritten(
    graph: Graph, moved: Mapping[str, Owned], kept: Mapping[str, Owned], copied: Set[str]
) -> Graph:
    """The graph with updates moved and variables kept at owners, some of them copied for all."""
    found = Graph({}, {}, graph.results, graph.effects, dict(graph.lines), graph.origins)
    copies: dict[Value, Value] = {}
    for op in graph.ops.values():
        types = graph.types[op.name]
        if op.name in moved:
            _add(found, replace(op, placement=moved[op.name].placement), types)
        elif op.name in kept:
            place = kept[op.name]
            sbp = place.sbp if types[0].size > 1 else ()
            _add(found, replace(op, placement=place.placement, sbp=sbp), types)
            if op.name in copied:
                copy = _copy(op)
                _add(found, copy, types, op.name)
                copies[op.output()] = copy.output()
        else:
            _add(found, op.with_inputs(tuple(copies.get(v, v) for v in op.inputs)), types)
    return found


def _states(
    context: PassContext, updates: dict[Value, Op], owned: dict[Value, Owned]
) -> dict[str, Owned]:
    """Where each weight and each state is to lie: all that the update overwrites."""
    return {
        updates[weight].inputs[i].op: place
        for weight, place in owned.items()
        for i in context.specs[updates[weight].type].mutates
        if i < len(updates[weight].inputs)
    }


def _add(graph: Graph, op: Op, types: tuple[TensorType, ...], like: str | None = None) -> None:
    """Adds an op to a graph under construction, at the line of another."""
    graph.ops[op.name] = op  # type: ignore[index]  # under construction: plain dicts
    graph.types[op.name] = types  # type: ignore[index]
    if like in graph.lines:
        graph.lines[op.name] = graph.lines[like]  # type: ignore[index]


def _copy(variable: Op) -> Op:
    """What all devices read instead of a weight: the whole of it, put together."""
    sbp = variable.sbp or ((B,) * len(variable.placement.hierarchy),)
    name, inputs = copy_name(variable.name), (variable.output(),)
    return Op(name, "identity", inputs, NO_ATTRS, variable.placement, sbp)
