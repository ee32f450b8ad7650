"""Gradient accumulation: a step processes its batch in micro-batches and updates variables once.

The graph is traced for one micro-batch.  Ops that depend on fed values or draw random numbers get
one copy per micro-batch.  Gradients are added in the order of the micro-batches, each as soon as it
is computed.  Ops that depend on the sums of gradients, such as updates, run once.  Results that
depend on fed values are concatenated along the batch's axis, or along axis 0 if they have none;
scalar results form a vector with one element per micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from flow_core.base.errors import GraphError
from flow_core.ir.graph import Attrs, Graph, Op, Origin, Value
from flow_core.ops.build import Emitter
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.rewriter import Rewriter

ONCE = -1
"""Micro-batch index of ops that run once per step."""


def draws_by_place(op: Op) -> bool:
    """Return whether the random numbers of an op depend on their position in a larger tensor.

    The copies of such an op use the same name for seeding, and each copy draws its own rows of the
    whole batch.  The numbers are the same as without micro-batches if the batch is the outermost
    factor of axis 0.
    """
    return "place" in op.attrs


@dataclass(frozen=True)
class GradientAccumulation:
    """A pass that expands a step into several micro-batches."""

    steps: int  # the number of micro-batches
    # Names of the ``identity`` ops whose inputs are summed over the micro-batches.
    sums: tuple[str, ...]
    # For each result of the graph, the axis along which it is concatenated; 0 if absent.
    axes: tuple[int, ...] = ()
    name: str = "gradient_accumulation"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        copied = self._copied(graph, context)
        later = self._later(graph)
        rewriter = Rewriter(graph)
        work = _Expansion(rewriter, Emitter(rewriter, context.specs), copied, self.steps)
        for name in (*copied, *self.sums):
            rewriter.drop(graph.ops[name])
        rewriter.at_end()
        for index in range(self.steps):
            self._micro_batch(work, index)
        for name in self.sums:
            self._multiply(work, graph.ops[name])
        for op in later:
            rewriter.move(op)
        rewriter.results = tuple(
            [self._packed(work, v, axis) for v, axis in zip_longest(graph.results, self.axes)]
        )
        return rewriter.finish()

    def _later(self, graph: Graph) -> list[Op]:
        """Return the ops that depend on the sums and run once, after all micro-batches."""
        found = set(self.sums)
        for op in graph.ops.values():
            if any(v.op in found for v in op.inputs) or any(c in found for c in op.control):
                found.add(op.name)
        return [op for op in graph.ops.values() if op.name in found - set(self.sums)]

    def _copied(self, graph: Graph, context: PassContext) -> set[str]:
        """Return the names of the ops to copy for each micro-batch, excluding the sums."""
        found: set[str] = set()
        for op in graph.ops.values():
            spec = context.specs[op.type]
            fresh = op.type == "input" or spec.random
            depends = any(v.op in found for v in op.inputs)
            if (fresh or depends) and op.name not in self.sums:
                found.add(op.name)
                _refuse_update(graph, context, op)
        return found

    def _micro_batch(self, work: _Expansion, index: int) -> None:
        """Copy the ops for one micro-batch; add each gradient as soon as it exists."""
        sums: dict[str, list[Op]] = {}
        for marker in (work.graph.ops[name] for name in self.sums):
            sums.setdefault(marker.inputs[0].op, []).append(marker)
        for op in work.graph.ops.values():
            if op.name in work.copied:
                work.copy(op, index)
                for marker in sums.get(op.name, ()):
                    self._add_up(work, marker, index)

    def _add_up(self, work: _Expansion, marker: Op, index: int) -> None:
        total, gradient = work.totals.get(marker.name), work.micro[index, marker.inputs[0]]
        if total is not None:
            last = index == self.steps - 1
            (gradient,) = work.emitter.emit(
                "add_n",
                (total, gradient),
                placement=marker.placement,
                name=marker.name if last else f"{marker.name}/sum_{index}",
                line=work.graph.lines.get(marker.name),
            )
        work.totals[marker.name] = gradient
        if self.steps == 1:
            work.rewriter.replace_value(marker.output(), gradient)

    def _multiply(self, work: _Expansion, marker: Op) -> None:
        """Sum a gradient that is the same for every micro-batch, such as that of a bias."""
        (gradient,) = marker.inputs
        if gradient.op not in work.copied:
            work.emitter.emit(
                "scalar_mul", (gradient,), {"operand": float(self.steps)},
                placement=marker.placement, name=marker.name,
                line=work.graph.lines.get(marker.name),
            )  # fmt: skip

    def _packed(self, work: _Expansion, value: Value, axis: int | None) -> Value:
        """Return a result of the whole step: its values for all micro-batches, concatenated."""
        if value.op not in work.copied:
            return value
        parts = [work.micro[index, value] for index in range(self.steps)]
        name, line = f"{value.op}/packed_{value.index}", work.graph.lines.get(value.op)
        known = work.rewriter.ops.get(name)
        if known is not None:
            return known.output()
        placement = work.graph.ops[value.op].placement.only(0)
        if not work.graph.type_of(value).shape:
            parts = [
                work.emitter.emit(
                    "reshape", (v,), {"shape": (1,)}, placement=placement, name=f"{name}/{i}"
                )[0]
                for i, v in enumerate(parts)
            ]
        (packed,) = work.emitter.emit(
            "concat", parts, {"axis": axis or 0}, placement=placement, name=name, line=line
        )
        return packed


@dataclass(slots=True)
class _Expansion:
    """The state of an expansion into micro-batches."""

    rewriter: Rewriter  # of the graph of one micro-batch
    emitter: Emitter  # which adds ops to that graph
    copied: set[str]  # names of the ops that are copied for each micro-batch
    steps: int  # the number of copies
    # The copy of each value, by micro-batch index and original value.
    micro: dict[tuple[int, Value], Value] = field(default_factory=dict)
    # The running sums over micro-batches, by the name of the ``identity`` op whose input is summed.
    totals: dict[str, Value] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.rewriter.graph

    def copy(self, op: Op, index: int) -> None:
        """Add the copy of an op for one micro-batch."""
        origin = self._origin(op.name, index)
        name = str(origin)
        inputs = tuple([self.micro.get((index, v), v) for v in op.inputs])
        control = tuple(
            [str(self._origin(c, index)) if c in self.copied else c for c in op.control]
        )
        attrs, types = self._placed(op, index), self.graph.types[op.name]
        self.rewriter.add(
            replace(op, name=name, inputs=inputs, control=control, attrs=attrs),
            types,
            line=self.graph.lines.get(op.name),
            effect=op.name in self.graph.effects,
            origin=origin,
        )
        for k in range(len(types)):
            self.micro[index, Value(op.name, k)] = Value(name, k)

    def _origin(self, name: str, index: int) -> Origin:
        return self.graph.origin(name)._replace(micro_batch=index)

    def _placed(self, op: Op, index: int) -> Attrs:
        """Return a copy's attributes, by which a random op draws its rows of the whole batch."""
        types = self.graph.types[op.name]
        if not draws_by_place(op) or not types[0].shape or op.attrs["place"] is not None:
            return op.attrs
        rows, *rest = types[0].shape
        start = (index * rows, *(0 for _ in rest))
        return op.attrs.with_(place=((self.steps * rows, *rest), start))


def _refuse_update(graph: Graph, context: PassContext, op: Op) -> None:
    """Reject an update that depends on fed values other than through a gradient.

    Such an update cannot run once per step.
    """
    mutated = [op.inputs[i] for i in context.specs[op.type].mutates if i < len(op.inputs)]
    trained = [v for v in mutated if graph.ops[v.op].attrs.get("trainable")]
    if trained and op.type.endswith("_update"):
        raise GraphError(
            f"accumulating the gradient of {trained[0].op!r}",
            at=graph.lines.get(op.name),
            found="an update that depends on fed values other than through a gradient",
            allowed="learning rates and steps that do not depend on the job's parameters",
        )


def micro_inputs(inputs: Sequence[str], steps: int) -> list[str]:
    """Return the names of the placeholders of all micro-batches, grouped by parameter.

    >>> micro_inputs(["x", "y"], 2)
    ['x/micro_0', 'x/micro_1', 'y/micro_0', 'y/micro_1']
    """
    return [str(Origin(name, micro_batch=i)) for name in inputs for i in range(steps)]
