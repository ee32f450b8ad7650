"""What a selection costs: the model that selectors share.

All costs are whole picoseconds, so that sums are the same whatever their order:

* communication: the predicted time of every hop of boxing, each done once per value and layout;
* compute: arithmetic and memory traffic of each op's share on its busiest device, and of the
  copies that boxing makes, with the time to start each hop.  Work that all devices repeat is as
  long as on one device;
* buckets: what gradients on their way to an update save, as they travel in buckets: the latency and
  the start of their all-reduces, less their share of a bucket's.  Not positive;
* memory: a price per byte that outputs, variables and copies occupy on the fullest device;
* convention: what scattering a fed batch would take, charged for each other way than by samples
  in which it is fed in parts: fed batches arrive split, unless there is something to gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flow_core.base.dtypes import DType
from flow_core.compiler.reshard.planner import BoxingError, ReshardStep, TensorLayout, plan_boxing
from flow_core.compiler.select.candidates import NdSignature, first_device
from flow_core.compiler.select.price import NEVER, NOTHING, Cost, picoseconds
from flow_core.compiler.select.problem import Problem, Selection, fed_as
from flow_core.ir.graph import Op, TensorType, Value, tensor_type
from flow_core.plugins.specs import SbpContext
from flow_core.sharding.sbp import B, NdSbp, Split, region_shape
from flow_core.sharding.topology import Link, LinkModel, Placement, device_model

BUCKET = 16 << 20
"""Bytes of a bucket, whatever the settings: buckets are to change nothing but times."""

OBJECT = 1 << 17
"""Bytes that a record, or a tensor of changing shape, is taken for: an encoded picture has as many.

By what its place in an array takes, all devices would read and decode whole batches.
"""


@dataclass(frozen=True, slots=True)
class Move:
    """One transition of a value.

    Attributes:
        hops: its steps; None when there is no way.
        cost: of all of them.
    """

    reshard_steps: tuple[ReshardStep, ...] | None
    cost: Cost

    @property
    def total(self) -> int:
        """The cost, `NEVER` when there is no way."""
        return NEVER if self.reshard_steps is None else self.cost.total


class Costs:
    """The costs of one problem; equal questions are answered once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._moves: dict[Any, Move] = {}
        self._ops: dict[Any, Cost] = {}
        self._gradients = frozenset(gradients(problem))

    # ---------------------------------------------------------------------- boxing

    @property
    def planned(self) -> int:
        """How many transitions have been planned so far."""
        return len(self._moves)

    def move(self, type_: TensorType, source: TensorLayout, target: TensorLayout) -> Move:
        """The cheapest way from one layout to another."""
        key = (type_, source, target)
        known = self._moves.get(key)
        if known is None:
            known = self._moves[key] = self._plan(type_, source, target)
        return known

    def _plan(self, type_: TensorType, source: TensorLayout, target: TensorLayout) -> Move:
        links, itemsize = self.problem.links, weight(type_.dtype)
        try:
            reshard_steps = plan_boxing(type_.shape, itemsize, source, target, links)
        except BoxingError:
            return Move(None, NOTHING)
        return Move(reshard_steps, sum((self.hop(type_, hop) for hop in reshard_steps), NOTHING))

    def hop(self, type_: TensorType, hop: ReshardStep) -> Cost:
        """The cost of one hop and of the copies that it leaves."""
        nbytes = weighed(local_type(type_, hop.target))
        device = device_model(hop.target.placement.device_type)
        return Cost(
            communication=picoseconds(hop.seconds(weight(type_.dtype), self.problem.links)),
            compute=picoseconds(device.launch + device.seconds(0.0, 2 * nbytes)),
            memory=picoseconds(self.problem.memory * device.held * nbytes),
        )

    def bucketed(self, value: Value, reshard_steps: Sequence[ReshardStep]) -> int:
        """What a gradient saves when its all-reduce is one of many in a bucket; not positive."""
        type_ = self.problem.graph.type_of(value)
        if not reshard_steps or value not in self._gradients or type_.nbytes >= BUCKET:
            return 0
        size, links = type_.dtype.itemsize, self.problem.links
        saved = 0.0
        for hop in reshard_steps:
            if hop.name == "all_reduce":
                saved += device_model(hop.target.placement.device_type).launch
                saved += hop.seconds(size, links) - hop.seconds(size, instant(links))
        return -picoseconds(saved * (1 - type_.nbytes / BUCKET))

    def begin(
        self, value: Value, source: TensorLayout, target: TensorLayout
    ) -> tuple[TensorLayout, Cost]:
        """Whence a value is boxed: a fed one from where it is fed in parts, at the cost of that."""
        is_fed = self.problem.graph.ops[value.op].type == "input"
        parts = fed_as(target) if is_fed else None
        if parts is None:
            return source, NOTHING
        nbytes = local_type(self.problem.graph.type_of(value), parts).nbytes
        device = device_model(parts.placement.device_type)
        return parts, Cost(
            compute=picoseconds(device.launch + device.seconds(0.0, 2 * nbytes)),
            memory=picoseconds(self.problem.memory * device.held * nbytes),
        )

    def unsplit(self, value: Value, target: TensorLayout) -> int:
        """What is charged for a fed batch in other parts than those in which it arrives."""
        arrival = self.problem.arrival(value, target.placement)
        if arrival is None or arrival == target or fed_as(target) is None:
            return 0
        source = TensorLayout(first_device(target.placement), (B,))
        return self.move(self.problem.graph.type_of(value), source, arrival).cost.communication

    def fetch(self, value: Value, source: TensorLayout, target: TensorLayout) -> int:
        """All that it costs to have a value in a layout, once."""
        if source == target:
            return 0
        begin, fed = self.begin(value, source, target)
        move = self.move(self.problem.graph.type_of(value), begin, target)
        parts = any(isinstance(sbp, Split) for sbp in source.sbp)
        stays = parts and self.problem.stays(self.problem.graph.ops[value.op])
        if move.reshard_steps is None or (stays and move.cost.communication):
            return NEVER
        extra = self.unsplit(value, target) + self.bucketed(value, move.reshard_steps)
        return fed.total + move.total + extra

    # ------------------------------------------------------------------------- ops

    def op(self, op: Op, state: NdSignature) -> Cost:
        """The cost of an op itself with one of its signatures."""
        graph = self.problem.graph
        types = graph.input_types(op), graph.types[op.name]
        key = (op.type, op.attrs, types, op.placement, state)
        known = self._ops.get(key)
        if known is None:
            known = self._ops[key] = self._share(op, *types, state)
        return known

    def _share(
        self,
        op: Op,
        inputs: tuple[TensorType, ...],
        outputs: tuple[TensorType, ...],
        state: NdSignature,
    ) -> Cost:
        spec, home = self.problem.specs[op.type], self.problem.home(op)
        if spec.alias is not None or spec.spreads(op.placement):
            return NOTHING
        device = device_model(home.device_type)
        local = SbpContext(
            local_types(inputs, op.placement, state.inputs),
            local_types(outputs, home, state.outputs),
            op.attrs,
        )
        held = sum(map(weighed, local.outputs))
        if not op.inputs:
            return Cost(memory=picoseconds(self.problem.memory * device.held * held))
        touched = held + sum(map(weighed, local.inputs))
        flops = spec.work(local) if spec.work is not None else 0.0
        return Cost(
            compute=picoseconds(device.seconds(flops, touched)),
            memory=picoseconds(self.problem.memory * device.held * held),
        )

    # ------------------------------------------------------------------------ plans

    def evaluate(self, selection: Selection) -> Cost:
        """The cost of a whole selection, each boxing counted once, as the plan does it."""
        graph, total = self.problem.graph, NOTHING
        there: dict[Value, dict[TensorLayout, None]] = {}
        for op in graph.ops.values():
            chosen = selection.signatures[op.name]
            total += self.op(op, chosen)
            for i, (value, sbp) in enumerate(zip(op.inputs, chosen.inputs, strict=True)):
                wanted = TensorLayout(self.problem.reads(op, i), sbp)
                total += self._bring(selection, there, value, wanted)
        for value in graph.results:
            total += self._bring(
                selection, there, value, result_layout(selection.layouts[value].placement)
            )
        return total

    def _bring(
        self,
        selection: Selection,
        there: dict[Value, dict[TensorLayout, None]],
        value: Value,
        target: TensorLayout,
    ) -> Cost:
        known = there.get(value)
        if known is None:
            known = there[value] = {selection.layouts[value]: None}
        if target in known:
            return NOTHING
        type_ = self.problem.graph.type_of(value)
        begin, fed = self.begin(value, selection.layouts[value], target)
        move = self.move(type_, begin, target)
        fresh = [hop for hop in move.reshard_steps or () if hop.target not in known]
        more = NOTHING if begin in known else fed
        known.update(dict.fromkeys((begin, *(hop.target for hop in fresh), target)))
        more += Cost(convention=self.unsplit(value, target), buckets=self.bucketed(value, fresh))
        return sum((self.hop(type_, hop) for hop in fresh), more)


def gradients(problem: Problem) -> Iterator[Value]:
    """The values that updates of variables read, and do not overwrite."""
    for op in problem.graph.ops.values():
        mutates = problem.specs[op.type].mutates
        if mutates:
            yield from (v for i, v in enumerate(op.inputs) if i not in mutates)


@lru_cache(maxsize=8)
def instant(links: LinkModel) -> LinkModel:
    """The links without their latencies."""
    return LinkModel(
        *(Link(0.0, link.bandwidth) for link in (links.local, links.machine, links.network))
    )


def result_layout(placement: Placement) -> TensorLayout:
    """Where a job's results are fetched from a placement: whole on the first device."""
    return TensorLayout(first_device(placement), (B,))


def weight(dtype: DType) -> int:
    """Bytes of an element, as far as anybody knows before there is one."""
    return OBJECT if dtype.is_object else dtype.itemsize


def weighed(type_: TensorType) -> int:
    """Bytes of a tensor."""
    return type_.size * weight(type_.dtype)


def local_type(type_: TensorType, layout: TensorLayout) -> TensorType:
    """The type of the first device's part, which is the largest."""
    return tensor_type(region_shape(layout.region(type_.shape, 0)), type_.dtype)


def local_types(
    types: Sequence[TensorType], placement: Placement, sbps: Sequence[NdSbp]
) -> tuple[TensorType, ...]:
    """The types of the first device's parts."""
    pairs = zip(types, sbps, strict=True)
    return tuple(local_type(t, TensorLayout(placement, sbp)) for t, sbp in pairs)
