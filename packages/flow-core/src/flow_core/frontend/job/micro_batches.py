"""Jobs that compute in micro-batches: their tracing, and how values add up to those of the batch.

A job function is traced for one micro-batch, and for comparison for the whole batch.  The second
trace has no effect but this: reshapes to sizes of the whole batch are adapted to a micro-batch, and
comparing the two shows which axis of a value is the batch's.

A step minimizes the mean of the losses of its micro-batches.  SBP rules tell whether this equals
the loss of the whole batch: a micro-batch is to the batch what one device's part is to a tensor
that is split over devices.  A loss per row or a mean over rows needs no change; a sum over rows is
multiplied by the number of micro-batches.  If a value that is summed over the batch enters an op
that is not linear, the loss differs from that of the whole batch, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Literal
from warnings import catch_warnings

from flow_core.annotations import JobSignature
from flow_core.base.errors import CompatibilityWarning, FlowError
from flow_core.frontend.config.function_config import micro_batches
from flow_core.frontend.job.feeding import Shapes
from flow_core.frontend.job.tracing import Traced, trace
from flow_core.frontend.trace.job_build import JobBuild, TrainRequest
from flow_core.frontend.trace.resizing import reshaped
from flow_core.ir.graph import GraphBuilder, Op, TensorType, Value
from flow_core.plugins.specs import (
    LocalContext,
    OpSpec,
    Part,
    SbpContext,
    local_attrs,
    no_rules,
)
from flow_core.sharding.sbp import B, P, S, Sbp, Signature, Split, local_region

Function = Callable[..., object]


# ------------------------------------------------------------------ tracing


def trace_micro_batch(
    function: Function,  # as for `trace`; the shapes are those of the whole batch
    signature: JobSignature,
    shapes: Shapes,
    build: JobBuild,  # the job's graph, still empty
    fresh: Callable[[], JobBuild],  # returns another empty graph of the job
) -> Traced:
    """Trace a job's function for one micro-batch; for the whole batch if it is the only one."""
    if micro_batches(build.config, build.kind) == 1 or build.fed is not None:
        return trace(function, signature, build, shapes)
    session = build.session
    before = dict(session.declared)

    def whole() -> GraphBuilder | None:
        after, session.declared = session.declared, dict(before)
        try:
            return _traced_whole(function, signature, shapes, fresh())
        finally:
            session.declared = after

    def adapted(large: GraphBuilder) -> Traced:
        session.declared, again = dict(before), fresh()
        again.before = again.whole = large
        return trace(function, signature, again, shapes)

    try:
        traced = trace(function, signature, build, shapes)
    except FlowError:
        large = whole()
        if large is None:
            raise
        return adapted(large)
    large = whole()
    if large is not None and _has_constant_sizes(build.builder, large):
        return adapted(large)
    build.whole = large
    return traced


def _traced_whole(
    function: Function, signature: JobSignature, shapes: Shapes, build: JobBuild
) -> GraphBuilder | None:
    """Trace for the whole batch; return None if the function is only written for micro-batches."""
    build.sees_whole = True
    with catch_warnings(action="ignore"):
        try:
            trace(function, signature, build, shapes)
        except FlowError:
            return None
    return build.builder


def _has_constant_sizes(micro: GraphBuilder, whole: GraphBuilder) -> bool:
    """Return whether a reshape must be adapted to the micro-batch."""
    for name, op in micro.ops.items():
        other = whole.ops.get(name)
        if op.type != "reshape" or other is None or other.attrs != op.attrs:
            continue
        types = (whole.type_of(other.inputs[0]), micro.type_of(op.inputs[0]))
        wanted = op.attrs["shape"]
        if reshaped(wanted, types[0].shape, types[1].shape) != wanted:
            return True
    return False


def batch_axis(build: JobBuild, value: Value) -> int:
    """Return the axis along which a value of a micro-batch is a part of that of the whole batch.

    It is 0 for a value without such an axis, or if the job has no micro-batches.
    """
    if build.whole is None or value.op not in build.whole.ops:
        return 0
    axes = _scaled_axes(build.whole.type_of(value), build.builder.type_of(value))
    return axes[0] if len(axes) == 1 else 0


def _scaled_axes(whole: TensorType, micro: TensorType) -> list[int]:
    if len(whole.shape) != len(micro.shape):
        return []
    sizes = zip(whole.shape, micro.shape, strict=True)
    return [i for i, (large, small) in enumerate(sizes) if large != small]


# ------------------------------------------------------------------ losses


@dataclass(frozen=True, slots=True)
class Relation:
    """The relation of a value of the whole batch to the values of the micro-batches."""

    # "fixed" if the value does not depend on the batch; "rows" if it is ``weight`` times the
    # concatenation of theirs; "sum" if it is ``weight`` times their sum, apart from terms that are
    # the same in all; "mixed" if it is none of these.
    kind: Literal["fixed", "rows", "sum", "mixed"]
    axis: int | None = None  # the batch's; a "sum" has one if it was added to rows
    weight: float = 1.0
    # For "fixed", whether the value depends on variables; for "sum", whether such a value was
    # added.
    trained: bool = False
    source: str = ""  # for "sum", the op that summed
    culprit: str = ""  # for "mixed", the op that is not linear; "" if unknown

    @property
    def sbp(self) -> Sbp:
        """The SBP to which the relation corresponds if micro-batches are seen as devices."""
        if self.kind == "rows":
            return S(self.axis or 0)
        return P if self.kind == "sum" else B


FIXED, MIXED = Relation("fixed"), Relation("mixed")


def scale_losses(build: JobBuild, requests: Sequence[TrainRequest]) -> None:
    """Scale losses so that the mean over the micro-batches is the loss of the whole batch.

    If this is impossible, issue a warning.
    """
    parts = micro_batches(build.config, build.kind)
    if build.whole is None or parts == 1:
        return
    known = Relations(build.builder, build.whole, build.emitter.specs, parts).all()
    for i, request in enumerate(requests):
        losses = []
        for loss in request.losses:
            relation = known.get(loss, FIXED)
            scale = relation.weight * (parts if relation.kind == "sum" else 1)
            problem = _problem(build, relation, scale)
            if problem:
                _warn(build, loss, problem, parts)
            elif relation.kind in ("rows", "sum") and not isclose(scale, 1.0):
                loss = _scaled(build, loss, scale)
            losses.append(loss)
        build.train_requests[i] = replace(request, losses=tuple(losses))


def _scaled(build: JobBuild, loss: Value, scale: float) -> Value:
    op, floating = build.builder.ops[loss.op], build.builder.type_of(loss).dtype.is_floating
    name = build.builder.unique_name(f"{loss.op}/of_micro_batches")
    attrs = {"operand": scale if floating else round(scale)}
    (scaled,) = build.emitter.emit(
        "scalar_mul", [loss], attrs, placement=op.placement, name=name,
        line=build.builder.lines.get(loss.op),
    )  # fmt: skip
    return scaled


def _problem(build: JobBuild, found: Relation, scale: float) -> str:
    """Say why the mean of the losses of micro-batches is not the loss of the batch; "" if it is."""
    if found.kind == "sum" and found.trained and not isclose(scale, 1.0):
        return (
            f"{_where(build, found.source)} sums over the rows of the batch, and a term that is "
            "the same for every batch is added"
        )
    if not found.culprit:
        return ""
    if found.source == found.culprit:
        return f"{_where(build, found.culprit)} combines all rows of the batch"
    return (
        f"{_where(build, found.culprit)} is not linear in the result of "
        f"{_where(build, found.source)}, which is computed from all rows of the batch"
    )


def _where(build: JobBuild, name: str) -> str:
    line = build.builder.lines.get(name)
    return f"{build.builder.ops[name].type} {name!r}" + (f" at {line}" if line else "")


def _warn(build: JobBuild, loss: Value, problem: str, parts: int) -> None:
    build.session.warn(
        f"job {build.name!r} computes the loss {loss.op!r} for each of {parts} micro-batches; "
        f"their mean is not the loss of the whole batch:\n    {problem}\n"
        "  next:    let the loss be a value per row, or a sum or mean of such values; or do "
        "without micro-batches",
        CompatibilityWarning,
        build.builder.lines.get(loss.op),
    )


class Relations:
    """Computes the `Relation` of each value of a job's forward pass."""

    def __init__(
        self,
        micro: GraphBuilder,  # the job for one micro-batch, and for the whole batch
        whole: GraphBuilder,
        specs: Mapping[str, OpSpec],
        parts: int,  # the number of micro-batches
    ) -> None:
        self._micro = micro
        self._whole = whole
        self._specs = specs
        self._parts = parts
        self._names: dict[str, str] = {}  # names of ops in the whole job by those in the other

    def all(self) -> dict[Value, Relation]:
        """Return the relations; none if the job has other ops for the whole batch.

        Ops are matched by their order, because a program may number its names.
        """
        known: dict[Value, Relation] = {}
        if len(self._micro.ops) != len(self._whole.ops):
            return {}
        for op, other in zip(self._micro.ops.values(), self._whole.ops.values(), strict=True):
            self._names[op.name] = other.name
            inputs = tuple(Value(self._names[v.op], v.index) for v in op.inputs)
            if (other.type, other.inputs) != (op.type, inputs):
                return {}
            given = [known[v] for v in op.inputs]
            for i, relation in enumerate(self._results(op, other, given)):
                known[Value(op.name, i)] = relation
        return known

    def _results(self, op: Op, whole: Op, given: Sequence[Relation]) -> Sequence[Relation]:
        """Return the relations of an op's results, given those of its inputs."""
        types = self._whole.types[whole.name]
        mixed = next((r for r in given if r.kind == "mixed" and r.culprit), None)
        if mixed is not None or any(r.kind == "mixed" for r in given):
            return [mixed or MIXED] * len(types)
        if all(r.kind == "fixed" for r in given):
            return [self._fixed(op, whole, i, given) for i in range(len(types))]
        if op.type in IDENTITIES:
            return given
        # A micro-batch is to the batch as the part on a device is to a tensor, so the SBP rules of
        # the op say what its results are.
        rules = self._rules(whole)
        wanted = tuple(r.sbp for r in given)
        for rule in rules:
            if rule.inputs == wanted and self._is_part(op, whole, rule):
                weight = self._weight(op, whole, given, rules)
                if weight is None:
                    return [MIXED] * len(types)
                return [self._ruled(op, given, s, weight, i) for i, s in enumerate(rule.outputs)]
        if _is_additive(op, rules):
            return [self._added(op, given)] * len(types)
        return [self._unruled(op, given, i) for i in range(len(types))]

    def _rules(self, whole: Op) -> tuple[Signature, ...]:
        """Return the SBP rules of an op of the whole batch that is split into micro-batches."""
        spec, types = self._specs[whole.type], self._whole
        inputs = tuple(map(types.type_of, whole.inputs))
        context = SbpContext(inputs, types.types[whole.name], whole.attrs, self._parts)
        return tuple(spec.sbp(context))

    def _is_part(self, op: Op, whole: Op, rule: Signature) -> bool:
        """Return whether the op of a micro-batch computes what a device would compute by a rule."""
        types = self._whole
        inputs, outputs = [types.type_of(v) for v in whole.inputs], types.types[whole.name]

        def local(sbps: Sequence[Sbp], whole_types: Sequence[TensorType], k: int) -> list[Part]:
            pairs = zip(sbps, whole_types, strict=True)
            return [Part(t, local_region(t.shape, (s,), (self._parts,), k)) for s, t in pairs]

        for k in (0, self._parts - 1):
            parts = tuple(local(rule.inputs, inputs, k)), tuple(local(rule.outputs, outputs, k))
            attrs = local_attrs(self._specs[op.type], LocalContext(whole.attrs, *parts))
            if any(op.attrs[n] != attrs[n] for n in op.attrs if n not in OWN.get(op.type, SHAPE)):
                return False
        return True

    def _axis(self, op: Op, output: int) -> int | None:
        """Return the batch's axis of an output, None if there is none, -1 if there are several."""
        whole = self._whole.types[self._names[op.name]][output]
        axes = _scaled_axes(whole, self._micro.types[op.name][output])
        return (axes[0] if len(axes) == 1 else -1) if axes else None

    def _fixed(self, op: Op, whole: Op, output: int, given: Sequence[Relation]) -> Relation:
        """Return the relation of a value that does not depend on fed arrays, or is fed."""
        axis = self._axis(op, output)
        if axis is not None:
            return MIXED if axis < 0 else Relation("rows", axis)
        weight = 1.0
        if op.type in NUMBERS and op.attrs != whole.attrs:
            weight = _ratio(op, whole, NUMBERS[op.type])
        elif op.attrs != whole.attrs or any(r.weight != 1.0 for r in given):
            return MIXED
        trained = op.type == "variable" or any(r.trained for r in given)
        return Relation("fixed", weight=weight, trained=trained)

    def _ruled(
        self, op: Op, given: Sequence[Relation], sbp: Sbp, weight: float, output: int
    ) -> Relation:
        source = next((r.source for r in given if r.kind == "sum"), op.name)
        trained = any(r.trained for r in given if r.kind == "sum")
        if isinstance(sbp, Split):
            return Relation("rows", sbp.axis, weight)
        if sbp == P:
            rows = any(r.kind == "sum" and r.axis is not None for r in given)
            axis = self._axis(op, output) if rows else None
            return Relation("sum", axis, weight, trained, source)
        return FIXED if sbp == B else Relation("mixed", source=op.name, culprit=op.name)

    def _weight(
        self, op: Op, whole: Op, given: Sequence[Relation], rules: Sequence[Signature]
    ) -> float | None:
        """Return the weight of an op's results; None if the op is not linear in an input."""
        if _is_additive(op, rules):
            weights = {r.weight for r in given if r.kind != "fixed"}
            return weights.pop() if len(weights) == 1 else None
        weight = 1.0
        for i, relation in enumerate(given):
            if relation.weight != 1.0 and not _is_linear(rules, i):
                return None
            weight *= relation.weight
        if op.attrs != whole.attrs and op.type in FACTORS:
            weight *= _ratio(op, whole, FACTORS[op.type])
        return weight * self._of_reduction(op, given)

    def _of_reduction(self, op: Op, given: Sequence[Relation]) -> float:
        """Return by how much a reduction over the batch's axis changes the weight."""
        (first, *_), lost = given, self._axis(op, 0) is None
        if not lost or first.axis is None:
            return 1.0
        if first.kind == "rows":
            return 1.0 / self._parts if op.type == "reduce_mean" else 1.0
        return 1.0 if op.type == "reduce_mean" else float(self._parts)

    def _added(self, op: Op, given: Sequence[Relation]) -> Relation:
        """Return the relation of a sum of values of several kinds."""
        sums = [r for r in given if r.kind == "sum"]
        if not sums:
            return self._unruled(op, given, 0)
        axis, weight = self._axis(op, 0), sums[0].weight
        rows = [r for r in given if r.kind == "rows"]
        fits = all(isclose(r.weight, weight) for r in sums)
        if axis is not None or rows:  # a mean, added to each row
            fits = fits and isclose(weight * self._parts, 1.0) and all(r.weight == 1 for r in rows)
        if not fits or axis == -1:
            return Relation("mixed", source=sums[0].source, culprit=op.name)
        trained = any(r.trained for r in given)
        return Relation("sum", axis, weight, trained, sums[0].source)

    def _unruled(self, op: Op, given: Sequence[Relation], output: int) -> Relation:
        """Return the relation of an output for which there is no fitting SBP rule.

        An op without any rules, such as one that calls a function of the program, is assumed to
        compute row by row.
        """
        source = next((r.source for r in given if r.kind == "sum"), None)
        if source is not None:
            return Relation("mixed", source=source, culprit=op.name)
        axis, has_rules = self._axis(op, output), self._specs[op.type].sbp is not no_rules
        if axis == -1 or (has_rules and op.type not in STATISTICS):
            return Relation("mixed", source=op.name, culprit=op.name)
        if axis is None or any(r.weight != 1.0 for r in given):
            return MIXED
        return Relation("rows", axis)


SHAPE = frozenset({"shape", "place"})
"""Attributes that follow from the types, or that `GradientAccumulation` sets."""

OWN: Mapping[str, frozenset[str]] = {
    "one_hot": frozenset({"classes", "first"}),
    "reduce_mean": frozenset({"count"}),
    "scalar_mul": frozenset({"operand"}),
}
"""Attributes that may differ because their effect is known, by op type."""

IDENTITIES = frozenset({"tuple_identity"})
"""Ops whose results are their inputs."""

STATISTICS = frozenset({"normalization"})
"""Ops with statistics of the batch, which are known to be those of a micro-batch."""

NUMBERS = {"constant": "value"}
"""Ops whose result is a number times an array of ones, and the attribute with the number."""

FACTORS = {"scalar_mul": "operand"}
"""Ops that multiply by a number, and the attribute with the number."""

SHIFTS = frozenset({"scalar_add"})
"""Ops with one input that add a number."""


def _ratio(op: Op, whole: Op, attr: str) -> float:
    small, large = op.attrs[attr], whole.attrs[attr]
    return float(large) / float(small) if small else 1.0


def _is_additive(op: Op, rules: Sequence[Signature]) -> bool:
    """Return whether a result is the sum of terms that each depend on one input."""
    several = len(op.inputs) > 1 and any({*r.inputs, *r.outputs} == {P} for r in rules)
    return several or op.type in SHIFTS


def _is_linear(rules: Sequence[Signature], index: int) -> bool:
    return any(
        {*r.outputs} == {P} and all((s == P) == (i == index) for i, s in enumerate(r.inputs))
        for r in rules
    )
