"""Gradient accumulation: a step runs its batch in micro-batches and updates once.

The graph is traced for one micro-batch.  All that depends on what is fed (or is drawn anew)
becomes one copy per micro-batch; gradients are added up in the order of the micro-batches, each
as soon as it exists; what comes after the sums, the updates, stays single.  Results that depend
on what is fed are packed along axis 0, numbers to one number per micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flow_core.base.errors import GraphError
from flow_core.ir.graph import Attrs, Graph, GraphBuilder, Op, Origin, Value
from flow_core.ops.build import Emitter
from flow_core.passes.base import PassContext
from flow_core.sharding.topology import Placement

ONCE = -1
"""Stands for the number of a micro-batch of what runs once per step."""


def draws_by_place(op: Op) -> bool:
    """Whether an op draws numbers that go by where they lie in a larger tensor.

    Its copies then draw under one name, each its own rows of the whole batch's numbers: the
    same as without micro-batches, where the batch is the outermost of what axis 0 is made of.
    """
    return "place" in op.attrs


@dataclass(frozen=True)
class GradientAccumulation:
    """Makes a step of several micro-batches.

    Attributes:
        steps: how many.
        sums: names of the ``identity`` ops whose input is to be added up over them.
    """

    steps: int
    sums: tuple[str, ...]
    name: str = "gradient_accumulation"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph of a whole step."""
        copied = self._copied(graph, context)
        state = _Expansion(graph, Emitter(GraphBuilder(), context.specs), copied, self.steps)
        later = state.later(self.sums)
        single = set(graph.ops) - copied - later - set(self.sums)
        state.keep(single)
        for index in range(self.steps):
            self._micro_batch(state, index)
        state.keep(later)
        builder = state.emitter.builder
        builder.results = tuple(self._packed(state, v) for v in graph.results)
        return builder.build()

    def _copied(self, graph: Graph, context: PassContext) -> set[str]:
        """The ops that each micro-batch has copies of; the sums are where this ends."""
        found: set[str] = set()
        for op in graph.ops.values():
            spec = context.specs[op.type]
            fresh = op.type == "input" or spec.random
            depends = any(v.op in found for v in op.inputs)
            if (fresh or depends) and op.name not in self.sums:
                found.add(op.name)
                _refuse_update(graph, context, op)
        return found

    def _micro_batch(self, state: _Expansion, index: int) -> None:
        """One copy of the ops; each gradient is added as soon as it is there."""
        sums: dict[str, list[str]] = {}
        for name in self.sums:
            sums.setdefault(state.graph.ops[name].inputs[0].op, []).append(name)
        for op in list(state.graph.ops.values()):
            if op.name in state.copied:
                state.copy(op, index)
                for name in sums.get(op.name, ()):
                    self._add_up(state, state.graph.ops[name], index)

    def _add_up(self, state: _Expansion, marker: Op, index: int) -> None:
        gradient = state.micro[index, marker.inputs[0]]
        total = state.same.get(marker.output())
        if total is None:
            state.same[marker.output()] = gradient
            return
        last = index == self.steps - 1
        (state.same[marker.output()],) = state.emitter.emit(
            "add_n",
            (total, gradient),
            placement=marker.placement,
            name=marker.name if last else f"{marker.name}/sum_{index}",
            line=state.graph.lines.get(marker.name),
        )

    def _packed(self, state: _Expansion, value: Value) -> Value:
        """A result: the micro-batches' values in one."""
        if value.op not in state.copied:
            return state.same.get(value, value)
        parts = [state.micro[index, value] for index in range(self.steps)]
        name, line = f"{value.op}/packed_{value.index}", state.graph.lines.get(value.op)
        placement = _first_device(state.graph.ops[value.op].placement)
        if not state.graph.type_of(value).shape:
            parts = [
                state.emitter.emit(
                    "reshape", (v,), {"shape": (1,)}, placement=placement, name=f"{name}/{i}"
                )[0]
                for i, v in enumerate(parts)
            ]
        known = state.emitter.builder.ops.get(name)
        if known is not None:
            return known.output()
        (packed,) = state.emitter.emit(
            "concat", parts, {"axis": 0}, placement=placement, name=name, line=line
        )
        return packed


@dataclass(slots=True)
class _Expansion:
    """The graph under construction.

    Attributes:
        graph: the graph of one micro-batch.
        emitter: where the new one arises.
        copied: the ops that there are copies of.
        steps: how many copies.
        micro: the copies' values, by micro-batch and value.
        same: what stands for a value that is not copied, where that is another value.
    """

    graph: Graph
    emitter: Emitter
    copied: set[str]
    steps: int
    micro: dict[tuple[int, Value], Value] = field(default_factory=dict)
    same: dict[Value, Value] = field(default_factory=dict)

    def later(self, sums: tuple[str, ...]) -> set[str]:
        """The ops that depend on the sums: they run once, after all micro-batches."""
        found = set(sums)
        for op in self.graph.ops.values():
            if any(v.op in found for v in op.inputs) or any(c in found for c in op.control):
                found.add(op.name)
        return found - set(sums)

    def keep(self, names: set[str]) -> None:
        """Adds ops that stay single."""
        for op in self.graph.ops.values():
            if op.name in names:
                inputs = tuple(self.same.get(v, v) for v in op.inputs)
                self._add(op.with_inputs(inputs), op.name, self.graph.origins.get(op.name))

    def copy(self, op: Op, index: int) -> None:
        """Adds the copy of an op for one micro-batch."""
        origin = self._origin(op.name, index)
        name = str(origin)
        inputs = tuple(self.micro.get((index, v), v) for v in op.inputs)
        control = tuple(str(self._origin(c, index)) if c in self.copied else c for c in op.control)
        attrs = self._placed(op, index)
        copy = replace(op, name=name, inputs=inputs, control=control, attrs=attrs)
        self._add(copy, op.name, origin)
        for k in range(len(self.graph.types[op.name])):
            self.micro[index, Value(op.name, k)] = Value(name, k)

    def _origin(self, name: str, index: int) -> Origin:
        return self.graph.origin(name)._replace(micro_batch=index)

    def _placed(self, op: Op, index: int) -> Attrs:
        """The attributes of a copy; random ones draw their rows of the whole batch's numbers."""
        types = self.graph.types[op.name]
        if not draws_by_place(op) or not types[0].shape or op.attrs["place"] is not None:
            return op.attrs
        rows, *rest = types[0].shape
        start = (index * rows, *(0 for _ in rest))
        return op.attrs.with_(place=((self.steps * rows, *rest), start))

    def _add(self, op: Op, like: str, origin: Origin | None) -> None:
        effect = like in self.graph.effects
        line = self.graph.lines.get(like)
        types = self.graph.types[like]
        self.emitter.builder.add(op, types, line=line, effect=effect, origin=origin)


def _first_device(placement: Placement) -> Placement:
    return Placement(placement.device_type, placement.devices[:1])


def _refuse_update(graph: Graph, context: PassContext, op: Op) -> None:
    """An update that depends on what is fed other than by a gradient cannot run once."""
    mutated = [op.inputs[i] for i in context.specs[op.type].mutates if i < len(op.inputs)]
    trained = [v for v in mutated if graph.ops[v.op].attrs.get("trainable")]
    if trained and op.type.endswith("_update"):
        raise GraphError(
            f"accumulating the gradient of {trained[0].op!r}",
            at=graph.lines.get(op.name),
            found="an update that reads what is fed by another way than a gradient",
            allowed="learning rates and steps that do not depend on the job's parameters",
        )


def micro_inputs(inputs: Sequence[str], steps: int) -> list[str]:
    """The names of the placeholders of all micro-batches: those of one parameter together.

    >>> micro_inputs(["x", "y"], 2)
    ['x/micro_0', 'x/micro_1', 'y/micro_0', 'y/micro_1']
    """
    return [str(Origin(name, micro_batch=i)) for name in inputs for i in range(steps)]
