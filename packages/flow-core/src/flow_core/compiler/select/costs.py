"""The cost model of selections, which all selectors share.

All costs are whole picoseconds, so that sums do not depend on their order:

* communication: the predicted time of every reshard step, charged once for each value and layout;
* compute: the time for the arithmetic and memory traffic of each op's share on its busiest device,
  for the copies that boxing makes, and for launching each reshard step.  Work that all devices
  repeat takes as long as on one device;
* buckets: a credit, zero or negative, for gradients that are all-reduced in buckets: the latency
  and launch time of separate all-reduces, less the gradient's share of those of a bucket;
* memory: a price for each byte that outputs, variables and copies occupy on the fullest device;
* convention: the time to scatter a fed batch, charged if the batch is not fed split by
  samples.  So a fed batch arrives split by samples unless another split saves more than this time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from flow_core.base.dtypes import DType
from flow_core.base.errors import located
from flow_core.compiler.reshard.planner import BoxingError, ReshardStep, TensorLayout, plan_boxing
from flow_core.compiler.select.candidates import NdSignature, first_device
from flow_core.compiler.select.price import NEVER, NOTHING, Cost, picoseconds
from flow_core.compiler.select.problem import Problem, Selection, fed_as
from flow_core.costs.model import Work
from flow_core.ir.graph import Op, TensorType, Value, tensor_type
from flow_core.sharding.sbp import B, NdSbp, Split, region_shape
from flow_core.sharding.topology import Placement

BUCKET = 16 << 20
"""The assumed bytes of a bucket, whatever the settings, which thus do not change the selection."""

OBJECT = 1 << 17
"""The assumed bytes of a record or a tensor of variable shape: about the size of an encoded image.

If only the size of the pointer to such an object counted, the cheapest selection would make every
device read and decode whole batches.
"""


@dataclass(frozen=True, slots=True)
class Move:
    """A transition of a value between two layouts."""

    reshard_steps: tuple[ReshardStep, ...] | None  # None if no boxing exists
    cost: Cost  # of all these steps

    @property
    def total(self) -> int:
        """The total cost, or `NEVER` if no boxing exists."""
        return NEVER if self.reshard_steps is None else self.cost.total


class Costs:
    """The costs for one problem, computed once for each transition and each kind of op."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._moves: dict[Hashable, Move] = {}
        self._all_moves: dict[Hashable, Move] = problem.table("moves", problem.memory)
        self._ops: dict[Hashable, Cost] = problem.table("ops", problem.memory)
        self.gradients = frozenset(gradients(problem))

    # ---------------------------------------------------------------------- boxing

    @property
    def planned(self) -> int:
        """The number of transitions planned so far, for this problem or an earlier one."""
        return len(self._moves)

    def move(self, type_: TensorType, source: TensorLayout, target: TensorLayout) -> Move:
        """Return the cheapest transition from one layout to another."""
        key = (type_, source, target)
        known = self._moves.get(key)
        if known is None:
            known = self._all_moves.get(key) or self._plan(type_, source, target)
            self._moves[key] = self._all_moves[key] = known
        return known

    def _plan(self, type_: TensorType, source: TensorLayout, target: TensorLayout) -> Move:
        links, itemsize = self.problem.costs.links, assumed_itemsize(type_.dtype)
        try:
            reshard_steps = plan_boxing(type_.shape, itemsize, source, target, links)
        except BoxingError:
            return Move(None, NOTHING)
        return Move(reshard_steps, sum((self.step(type_, s) for s in reshard_steps), NOTHING))

    def step(self, type_: TensorType, step: ReshardStep) -> Cost:
        """Return the cost of a reshard step and of the copies that it makes."""
        itemsize = assumed_itemsize(type_.dtype)
        nbytes = assumed_nbytes(local_type(type_, step.target))
        device = self.problem.costs.device(step.target.placement.device_type)
        return Cost(
            communication=picoseconds(step.seconds(itemsize, self.problem.costs.links)),
            compute=picoseconds(device.launch + device.seconds(0.0, 2 * nbytes)),
            memory=picoseconds(self.problem.memory * device.held * nbytes),
        )

    def bucketed(self, value: Value, reshard_steps: Sequence[ReshardStep]) -> int:
        """Return the credit, zero or negative, for all-reducing a gradient in a bucket."""
        type_ = self.problem.graph.type_of(value)
        if not reshard_steps or value not in self.gradients or type_.nbytes >= BUCKET:
            return 0
        size, links = type_.dtype.itemsize, self.problem.costs.links
        saved = 0.0
        for step in reshard_steps:
            if step.name == "all_reduce":
                saved += self.problem.costs.device(step.target.placement.device_type).launch
                saved += step.seconds(size, links) - step.seconds(size, links.without_latency())
        return -picoseconds(saved * (1 - type_.nbytes / BUCKET))

    def begin(
        self, value: Value, source: TensorLayout, target: TensorLayout
    ) -> tuple[TensorLayout, Cost]:
        """Return the layout from which to box a value, and the cost of feeding it if it is fed."""
        is_fed = self.problem.graph.ops[value.op].type == "input"
        parts = fed_as(target) if is_fed else None
        if parts is None:
            return source, NOTHING
        nbytes = local_type(self.problem.graph.type_of(value), parts).nbytes
        device = self.problem.costs.device(parts.placement.device_type)
        return parts, Cost(
            compute=picoseconds(device.launch + device.seconds(0.0, 2 * nbytes)),
            memory=picoseconds(self.problem.memory * device.held * nbytes),
        )

    def unsplit(self, value: Value, target: TensorLayout) -> int:
        """Return the charge for feeding a batch in a layout that differs from the arriving one."""
        arrival = self.problem.arrival(value, target.placement)
        if arrival is None or arrival == target or fed_as(target) is None:
            return 0
        source = TensorLayout(first_device(target.placement), (B,))
        return self.move(self.problem.graph.type_of(value), source, arrival).cost.communication

    def fetch(self, value: Value, source: TensorLayout, target: TensorLayout) -> int:
        """Return the total cost of making a value available in a layout once."""
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
        """Return the cost, without boxing, of an op with one of its signatures."""
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
        if spec.alias is not None or spec.is_per_device(op.placement):
            return NOTHING
        device = self.problem.costs.device(home.device_type)
        local = Work(
            spec,
            op.attrs,
            local_types(inputs, op.placement, state.inputs),
            local_types(outputs, home, state.outputs),
        )
        held = sum(map(assumed_nbytes, local.outputs))
        if not op.inputs:
            return Cost(memory=picoseconds(self.problem.memory * device.held * held))
        objects = [t for t in (*local.inputs, *local.outputs) if t.dtype.is_object]
        more = sum(assumed_nbytes(t) - t.nbytes for t in objects)
        with located(self.problem.graph.lines.get(op.name)):
            seconds = self.problem.costs.kernel_seconds(local, home.device_type, device)
        seconds += device.seconds(0.0, more) - device.launch  # all plans launch every op
        return Cost(
            compute=picoseconds(max(seconds, 0.0)),
            memory=picoseconds(self.problem.memory * device.held * held),
        )

    # ------------------------------------------------------------------------ plans

    def evaluate(self, selection: Selection) -> Cost:
        """Return the cost of a whole selection; each boxing is counted once, as in the plan."""
        graph, total = self.problem.graph, NOTHING
        available: dict[Value, dict[TensorLayout, None]] = {}
        for op in graph.ops.values():
            chosen = selection.signatures[op.name]
            total += self.op(op, chosen)
            for i, (value, sbp) in enumerate(zip(op.inputs, chosen.inputs, strict=True)):
                wanted = TensorLayout(self.problem.reads(op, i), sbp)
                total += self._boxed(selection, available, value, wanted)
        for value in graph.results:
            target = result_layout(selection.layouts[value].placement)
            total += self._boxed(selection, available, value, target)
        return total

    def _boxed(
        self,
        selection: Selection,
        available: dict[Value, dict[TensorLayout, None]],
        value: Value,
        target: TensorLayout,
    ) -> Cost:
        """Return the cost of boxing a value to a layout, and record the layouts on the way."""
        known = available.get(value)
        if known is None:
            known = available[value] = {selection.layouts[value]: None}
        if target in known:
            return NOTHING
        type_ = self.problem.graph.type_of(value)
        begin, fed = self.begin(value, selection.layouts[value], target)
        move = self.move(type_, begin, target)
        steps = move.reshard_steps or ()
        fresh = [step for step in steps if step.target not in known]
        more = NOTHING if begin in known else fed
        known.update(dict.fromkeys((begin, *(step.target for step in fresh), target)))
        more += Cost(convention=self.unsplit(value, target), buckets=self.bucketed(value, fresh))
        if len(fresh) == len(steps):
            return more + move.cost
        return sum((self.step(type_, step) for step in fresh), more)


def gradients(problem: Problem) -> Iterator[Value]:
    """Yield the values that updates of variables read but do not overwrite."""
    for op in problem.graph.ops.values():
        mutates = problem.specs[op.type].mutates
        if mutates:
            yield from (v for i, v in enumerate(op.inputs) if i not in mutates)


def result_layout(placement: Placement) -> TensorLayout:
    """Return the layout in which results are fetched: as a whole, from the first device."""
    return TensorLayout(first_device(placement), (B,))


def assumed_itemsize(dtype: DType) -> int:
    """Return the number of bytes of an element, which is an estimate for objects."""
    return OBJECT if dtype.is_object else dtype.itemsize


def assumed_nbytes(type_: TensorType) -> int:
    """Return the number of bytes of a tensor, which is an estimate for objects."""
    return type_.size * assumed_itemsize(type_.dtype)


def local_type(type_: TensorType, layout: TensorLayout) -> TensorType:
    """Return the type of the first device's part, which is the largest."""
    return tensor_type(region_shape(layout.region(type_.shape, 0)), type_.dtype)


def local_types(
    types: Sequence[TensorType], placement: Placement, sbps: Sequence[NdSbp]
) -> tuple[TensorType, ...]:
    """Return the types of the first device's parts of several tensors."""
    pairs = zip(types, sbps, strict=True)
    return tuple(local_type(t, TensorLayout(placement, sbp)) for t, sbp in pairs)
