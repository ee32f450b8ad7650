"""Optimizer-state sharding: each device stores and updates a part of the weights and their states.

The devices that store and update a weight are called its owners.  A broadcast weight and its
optimizer states are either split on axis 0 over the devices ("distributed_split") or placed on the
least loaded device ("non_distributed").  In a hierarchy, "distributed_split" splits along the
dimensions in which the weight is broadcast, such as the dimension of the data-parallel replicas of
tensor-parallel parts.  Forward and backward ops read a copy of the weight that is gathered at the
start of the step, and gradients are sent to the owners only.  The volume of communication does not
change.  The memory for weights and states, and the work of updates, are divided by the number of
devices.

With ``ahead``, a gathered copy serves only readers that follow each other closely, such as those of
a layer in the forward pass, and others gather the weight again.  The schedule starts a gather only
a few layers before its first reader (`flow_core.compiler.schedule.prefetch`), so that few copies
exist at the same time.  This is stage 3 of ZeRO (Rajbhandari et al. 2020, "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", section 5.3), whose volume of
communication is one and a half times as large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from math import prod

from flow_core.base.errors import located
from flow_core.ir.graph import NO_ATTRS, Graph, Op, Origin, Value
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.rewriter import Rewriter
from flow_core.passes.split_norms import decomposes
from flow_core.plugins.specs import SbpContext
from flow_core.sharding.sbp import B, NdSbp, Split
from flow_core.sharding.topology import Placement

MODES = ("non_distributed", "distributed_split")
THRESHOLD = 1024
"""Minimum number of elements per device; smaller weights are not changed."""


@dataclass(frozen=True, slots=True)
class Owned:
    """The placement and SBP of a weight and its optimizer states on the owners."""

    placement: Placement
    sbp: tuple[NdSbp, ...]


def owners(graph: Graph) -> dict[str, Owned]:
    """Return the owners of those variables of a rewritten graph that have a gathered copy."""
    found: dict[str, Owned] = {}
    for op in graph.of_type("variable"):
        if copy_name(op.name) in graph.ops:
            found[op.name] = Owned(op.placement, tuple(s for s in op.sbp if s is not None))
    return found


def copy_name(variable: str) -> str:
    """Return the name of the gathered copy of a variable."""
    return f"{variable}/gathered"


@dataclass(frozen=True)
class OptimizerPlacement:
    """A pass that assigns owners to data-parallel weights and their optimizer states."""

    mode: str  # "non_distributed" or "distributed_split"
    threshold: int = THRESHOLD  # minimum number of elements per device
    # The number of weights that are gathered ahead of their readers; None to gather each weight
    # once per step.
    ahead: int | None = None
    name: str = "optimizer_placement"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with weights and states on owners, and gathered copies for readers."""
        updates = {v: op for v, op in _updates(graph, context) if self._allows(graph, v, op)}
        owned = self._owners(graph, context, updates)
        moved = {updates[weight].name: place for weight, place in owned.items()}
        weights = {weight.op for weight in owned}
        kept = _states(context, updates, owned)
        return _rewritten(graph, moved, kept, weights, self.ahead) if owned else graph

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
    """Return whether a variable is broadcast to all devices."""
    return not variable.sbp or all(s == B for s in variable.sbp[0] or ())


def _partly_alike(variable: Op) -> bool:
    """Return whether a variable is broadcast along at least one hierarchy dimension."""
    sizes = variable.placement.hierarchy
    return any(s == B and n > 1 for s, n in zip(_sbp(variable), sizes, strict=True))


def _sbp(variable: Op) -> NdSbp:
    """Return the requested SBP of a variable, or broadcast if none is requested."""
    asked = variable.sbp[0] if variable.sbp else None
    return (B,) * len(variable.placement.hierarchy) if asked is None else asked


def _updates(graph: Graph, context: PassContext) -> Iterator[tuple[Value, Op]]:
    """Yield each trained variable that has exactly one update, together with the update."""
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
    """Return a variable's SBP with each broadcast dimension replaced by a split of axis 0."""
    return tuple(Split(0) if s == B else s for s in _sbp(variable))


def _splits(graph: Graph, context: PassContext, update: Op, split: NdSbp) -> bool:
    """Return whether an update supports a split, and each device gets a part that is not empty."""
    types, sizes = graph.input_types(update), update.placement.hierarchy
    with located(graph.lines.get(update.name)):
        rules = context.specs[update.type].sbp(SbpContext(types, (), update.attrs))
    valid = {rule.inputs[0] for rule in rules}
    shape = types[0].shape
    return (all(s in valid for s in split) or decomposes(update)) and all(
        n >= prod(p for s, p in zip(split, sizes, strict=True) if s == Split(axis))
        for axis, n in enumerate(shape)
    )


def _in_turn(graph: Graph, updates: dict[Value, Op]) -> dict[Value, Owned]:
    """Assign each weight to the least loaded device, starting with the largest weight."""
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
    """A pass that gives variables the placement and SBP that another job has given them.

    Attributes:
        owners: placement and SBP of the other job's variables that are sharded or in stages of a
            pipeline, by name.
    """

    owners: Mapping[str, Owned]
    name: str = "shared_placement"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with these variables on owners, and gathered copies for readers."""
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
    graph: Graph,
    moved: Mapping[str, Owned],  # owners of the updates, by name
    kept: Mapping[str, Owned],  # owners of the variables, by name
    copied: Set[str],  # names of the variables to gather for their readers
    # The number of weights that are gathered ahead of their readers; None for all.
    ahead: int | None = None,
) -> Graph:
    """Return the graph with updates and variables on owners."""
    rewriter = Rewriter(graph)
    later = {} if ahead is None else _later_gathers(graph, copied, ahead, moved)
    copies: dict[Value, Value] = {}
    for op in graph.ops.values():
        if op.name in moved:
            rewriter.replace(op, replace(op, placement=moved[op.name].placement))
        elif op.name in kept:
            place, types = kept[op.name], graph.types[op.name]
            sbp = place.sbp if types[0].size > 1 else ()
            rewriter.replace(op, replace(op, placement=place.placement, sbp=sbp))
            if op.name in copied:
                copy = rewriter.after(op).add(_copy(op), types)
                copies[op.output()] = copy.output()
        elif op.name in later or not copies.keys().isdisjoint(op.inputs):
            again = {
                value: _gathered_again(rewriter, op, value, number, kept)
                for value, number in later.get(op.name, {}).items()
            }
            rewriter.replace(op, op.with_replaced_inputs({**copies, **again}))
    return rewriter.finish()


def _later_gathers(
    graph: Graph, copied: Set[str], ahead: int, moved: Mapping[str, Owned]
) -> dict[str, dict[Value, int]]:
    """Return, for each op that reads weights, the number of the gather of each, if not the first.

    A gathered copy serves an op if fewer than ``ahead`` other weights have been read since the copy
    was read for the last time, in the same micro-batch.  A weight that is cast, as for mixed
    precision, is cast after each gather.
    """
    found: dict[str, dict[Value, int]] = {}
    count: dict[str, int] = {}
    recent: list[tuple[str, int | None]] = []  # of each weight that is gathered, the last one first
    weight_of = {Value(name, 0): name for name in copied}
    for op in graph.ops.values():
        read = {v: weight_of[v] for v in op.inputs if v in weight_of}
        if op.type == "cast" and read:
            weight_of[op.output()] = weight_of[op.inputs[0]]
            continue
        for value, weight in read.items() if op.name not in moved else ():
            use = weight, graph.origin(op.name).micro_batch
            if use in recent:
                recent.remove(use)
            else:
                count[weight] = count.get(weight, -1) + 1
            recent = [use, *(other for other in recent if other[0] != weight)][:ahead]
            if count[weight]:
                found.setdefault(op.name, {})[value] = count[weight]
    return found


def _gathered_again(
    rewriter: Rewriter, reader: Op, value: Value, number: int, kept: Mapping[str, Owned]
) -> Value:
    """Return a later copy of a weight or its cast, adding the ops that make it before a reader.

    The copy reads a view of the owners' parts; an exchange of the weight itself would be the first.
    """
    graph = rewriter.graph
    maker, types = graph.ops[value.op], graph.types[value.op]
    is_weight = maker.type == "variable"
    whole = Origin(f"{copy_name(value.op) if is_weight else value.op}_{number}", recomputed=True)
    if str(whole) in rewriter.ops:
        return Value(str(whole), 0)
    if is_weight:
        part, place = Origin(f"{value.op}/part_{number}", recomputed=True), kept[value.op]
        view = Op(str(part), "identity", (value,), NO_ATTRS, place.placement, place.sbp)
        rewriter.before(reader).add(view, types, line=graph.lines.get(reader.name), origin=part)
        made = replace(_copy(maker), name=str(whole), inputs=(view.output(),))
    else:
        source = _gathered_again(rewriter, reader, maker.inputs[0], number, kept)
        made = replace(maker, name=str(whole), inputs=(source,))
    rewriter.before(reader).add(made, types, line=graph.lines.get(reader.name), origin=whole)
    return made.output()


def _states(
    context: PassContext, updates: dict[Value, Op], owned: dict[Value, Owned]
) -> dict[str, Owned]:
    """Return the owner of each weight and state; they are the inputs that an update overwrites."""
    return {
        updates[weight].inputs[i].op: place
        for weight, place in owned.items()
        for i in context.specs[updates[weight].type].mutates
        if i < len(updates[weight].inputs)
    }


def _copy(variable: Op) -> Op:
    """Return the op that gathers a weight for all devices."""
    sbp = variable.sbp or ((B,) * len(variable.placement.hierarchy),)
    name, inputs = copy_name(variable.name), (variable.output(),)
    return Op(name, "identity", inputs, NO_ATTRS, variable.placement, sbp)
