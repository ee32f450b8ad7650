"""A job under definition: the graph that a job function's ops are added to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from flow_core.errors import JobError, SourceLine, user_line
from flow_core.frontend.scope import Scope, current_scope, enter
from flow_core.ir import GraphBuilder, Value
from flow_core.ops.build import Emitter
from flow_core.plugins.specs import OpSpec
from flow_core.sbp import B, NdSbp, Split
from flow_core.shapes import Shape, normal_axis
from flow_core.topology import Placement


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """A call of ``minimize``: the optimizer, the losses and the user's line."""

    optimizer: Any
    losses: tuple[Value, ...]
    line: SourceLine | None


@dataclass(frozen=True, slots=True)
class Watch:
    """A request to see a value (or its gradient) at every step."""

    value: Value
    handler: Callable[[Any], None]
    gradient: bool = False
    line: SourceLine | None = None


class JobBuild:
    """The graph of one job while its function runs.

    Attributes:
        name: the job's name.
        kind: "train" or "predict".
        builder: the graph under construction.
        default_placement: where ops go outside any placement scope.
        variables: variable values by name.
        train_requests: calls of ``minimize``.
        losses: losses of older programs, whose optimizer is in the function config.
        watches: calls of ``watch`` and ``watch_diff``.
        distributions: values in requested distributions, by value and SBP.
        forward: names of the ops of the forward pass, once the backward pass is there.
        segments: names of the ops whose activations are recomputed, by segment.
        gradient_sums: ops whose input is to be added up over the micro-batches.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        specs: Mapping[str, OpSpec],
        default_placement: Placement,
        config: Any = None,
        session: Any = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.builder = GraphBuilder()
        self.emitter = Emitter(self.builder, specs)
        self.default_placement = default_placement
        self.config = config
        self.session = session
        self.variables: dict[str, Value] = {}
        self.train_requests: list[TrainRequest] = []
        self.losses: list[Value] = []
        self.watches: list[Watch] = []
        self.distributions: dict[tuple[Value, NdSbp], Value] = {}
        self.segments: dict[int, list[str]] = {}
        self.gradient_sums: list[str] = []
        self.forward: frozenset[str] = frozenset()

    def add(
        self,
        op_type: str,
        inputs: Sequence[Value],
        attrs: Mapping[str, Any],
        *,
        name: str | None = None,
        line: SourceLine | None = None,
        sbp: tuple[NdSbp | None, ...] = (),
    ) -> tuple[Value, ...]:
        """Adds an op at the current scope; ``name`` is below the name scope."""
        scope = current_scope()
        full = scope.prefix + (name or op_type)
        if name is None or full in self.builder.ops:
            full = self.builder.unique_name(full)
        if scope.checkpointing:
            self.segments.setdefault(scope.checkpointing, []).append(full)
        placement = scope.placement or self.default_placement
        spec = self.emitter.specs.get(op_type)
        if spec is not None and spec.host:
            placement = on_host(placement)
            sbp = sbp or _source_sbp(spec, placement)
        return self.emitter.emit(
            op_type,
            inputs,
            {k: _literal(v) for k, v in attrs.items()},
            placement=placement,
            name=full,
            line=line,
            sbp=sbp,
        )

    def returns_many(self, op_type: str) -> bool:
        """Whether `emit` gives a tuple for this op type."""
        outputs = self.emitter.specs[op_type].outputs
        return len(outputs) != 1 or outputs[0].endswith("*")

    def requested_sbp(
        self, distribute: Any, shape: Shape, name: str, line: SourceLine | None
    ) -> tuple[NdSbp, ...]:
        """The SBP that a requested distribution asks for; empty when it asks for nothing.

        A split asks for S(axis) over the first hierarchy dimension of the devices in scope; on
        a single device, and for the compiler's choice, nothing is asked for.
        """
        placement = current_scope().placement or self.default_placement
        if distribute is None or placement.size == 1 or distribute.kind == "auto":
            return ()
        try:
            axis = distribute.axis
            first = B if axis is None else Split(normal_axis(axis, len(shape)))
        except ValueError as error:
            raise JobError(
                f"distribution of {name!r} in job {self.name!r}", at=line, found=str(error)
            ) from None
        return ((first, *(B,) * (len(placement.hierarchy) - 1)),)

    def distributed(self, value: Value, distribute: Any, line: SourceLine | None) -> Value:
        """The value in a requested distribution."""
        shape = self.builder.type_of(value).shape
        wanted = self.requested_sbp(distribute, shape, value.op, line)
        if not wanted or self._lies(value, wanted[0]):
            return value
        known = self.distributions.get((value, wanted[0]))
        if known is None:
            name = self.builder.unique_name(f"{value.op}/cast")
            placement = current_scope().placement or self.default_placement
            (known,) = self.emitter.emit(
                "identity", [value], placement=placement, name=name, line=line, sbp=wanted
            )
            self.distributions[value, wanted[0]] = known
        return known

    def _lies(self, value: Value, wanted: NdSbp) -> bool:
        op = self.builder.ops[value.op]
        return bool(op.sbp) and op.sbp[value.index] == wanted

    def add_loss(self, loss: Any) -> None:
        """Takes a call of ``losses.add_loss``."""
        self.losses.append(_loss_value(self, loss, user_line(3)))

    def train(self, *, optimizer: Any, losses: Sequence[Any]) -> None:
        """Takes a call of ``minimize``."""
        line = user_line(3)
        if self.kind != "train":
            raise JobError(
                f"minimize in job {self.name!r}",
                at=line,
                found='a job of type "predict"',
                allowed='minimize in jobs of type "train"',
                hint='decorate it with @flow.global_function(type="train")',
            )
        values = tuple(_loss_value(self, loss, line) for loss in losses)
        self.train_requests.append(TrainRequest(optimizer, values, line))


def on_host(placement: Placement) -> Placement:
    """The CPUs of the machines of some devices, one per device."""
    if placement.device_type == "cpu":
        return placement
    return Placement("cpu", placement.devices, placement.hierarchy)


def _source_sbp(spec: OpSpec, placement: Placement) -> tuple[NdSbp | None, ...]:
    """Each device reads its own part of what a source reads."""
    if spec.inputs or "region" not in spec.attrs or placement.size == 1:
        return ()
    return ((Split(0), *(B,) * (len(placement.hierarchy) - 1)),)


def _literal(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_literal, value))
    if hasattr(value, "item") and not hasattr(value, "__len__"):
        return value.item()
    return value


def _loss_value(job: JobBuild, loss: Any, line: SourceLine | None) -> Value:
    value = getattr(loss, "value", None)
    if not isinstance(value, Value) or getattr(loss, "job", None) is not job:
        raise JobError(
            f"minimize in job {job.name!r}",
            at=line,
            found=f"{loss!r:.80}",
            allowed="a floating point blob of this job, or a list of them",
        )
    if not loss.dtype.is_floating:
        raise JobError(
            f"minimize in job {job.name!r}",
            at=line,
            found=f"a loss of type {loss.dtype}",
            allowed="float16, bfloat16, float32 or float64",
        )
    return value


OUTERMOST = Scope()

_current: ContextVar[JobBuild | None] = ContextVar("flow_job", default=None)


def current_job(attempted: str) -> JobBuild:
    """The job under definition; an error outside of job functions."""
    job = _current.get()
    if job is None:
        raise JobError(
            attempted,
            at=user_line(2),
            found="no job function under definition",
            allowed="inside a function decorated with @flow.global_function",
        )
    return job


def maybe_current_job() -> JobBuild | None:
    """The job under definition, None outside of job functions."""
    return _current.get()


@contextmanager
def defining(job: JobBuild, scope: Scope = OUTERMOST) -> Iterator[JobBuild]:
    """Makes a job the one under definition, with an outermost scope of its own."""
    token = _current.set(job)
    try:
        with enter(scope):
            yield job
    finally:
        _current.reset(token)
