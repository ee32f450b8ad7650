"""A job being traced: the graph to which a job function adds ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, TypeAlias

from flow_core.base.errors import CompatibilityWarning, JobError, SourceLine, user_line
from flow_core.frontend.config.function_config import FunctionConfig, micro_batches
from flow_core.frontend.config.scope import Scope, current_scope, enter, outside
from flow_core.frontend.trace.blob import BlobDef, MirroredBlob
from flow_core.frontend.trace.job_session import JobSession
from flow_core.frontend.trace.repeat_acc import PeriodBlob, innermost
from flow_core.frontend.trace.resizing import resized
from flow_core.frontend.trace.sbp_request import over_placement
from flow_core.frontend.trace.valid_rows import all_rows
from flow_core.ir.graph import AttrValue, GraphBuilder, Value
from flow_core.ops.build import Emitter
from flow_core.plugins.emission import emit
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.sbp import B, NdSbp, Sbp, Split
from flow_core.sharding.topology import Placement

Kind: TypeAlias = Literal["train", "predict"]
"""The types of jobs."""


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """A call of ``minimize``."""

    optimizer: Any
    losses: tuple[Value, ...]  # to minimize; in the mirrored view, those of all devices
    line: SourceLine | None
    # The divisor of the sum of the losses; None: each is divided by its size.
    elements: float | None = None
    placement: Placement | None = None  # of the mirrored view; None for that of the first loss


@dataclass(frozen=True, slots=True)
class Watch:
    """A call to ``watch`` or ``watch_diff``, to show a blob or its gradient after every step."""

    blob: BlobDef
    handler: Callable[[Any], None]  # its argument is the fetched array, or the list of arrays
    gradient: bool = False
    line: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class BlobMethods:
    """Methods of blobs whose implementations are in layers above this one."""

    evaluate: Callable[[BlobDef], Any]  # in the call that defines the job
    cast: Callable[..., BlobDef]  # to a distribution, of a blob or of its gradient
    cast_nd: Callable[..., BlobDef]  # to an SBP for each dimension of the hierarchy


class JobBuild:
    """The graph of one job while its function runs."""

    def __init__(
        self,
        name: str,
        kind: Kind,
        specs: Mapping[str, OpSpec],
        default_placement: Placement,
        config: FunctionConfig,
        session: JobSession,
        methods: BlobMethods | None = None,
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.builder = GraphBuilder()
        self.emitter = Emitter(self.builder, specs)
        self.default_placement = default_placement
        self.config = config
        self.session = session
        self.variables: dict[str, Value] = {}
        self.train_requests: list[TrainRequest] = []  # calls of ``minimize``
        self.losses: list[Any] = []  # of programs that set the optimizer in the function config
        self.watches: list[Watch] = []  # of ``watch`` and ``watch_diff``
        self.distributions: dict[tuple[Value, NdSbp], Value] = {}  # values that were converted
        self.mirrored: dict[tuple[Value, Placement, Any], tuple[Value, ...]] = {}  # by device
        self.unnamed_layers: Counter[str] = Counter()  # by their default name
        self._copies: Counter[str] = Counter()
        self.segments: dict[int, list[str]] = {}  # whose activations are recomputed
        self.stages: tuple[Any, ...] = ()  # of a pipeline (`forms.stages.Stage`)
        self.rounded: dict[Value, Value] = {}  # in quantization-aware training
        self.observed: dict[str, tuple[Value, Value]] = {}  # lowest and highest, for calibration
        self.gradient_sums: list[str] = []  # ops whose input is accumulated over the micro-batches
        self.forward: frozenset[str] = frozenset()  # once the backward pass is added
        self.inputs: list[str] = []  # in the order in which arrays are fed to them
        self.fed: Sequence[Any] | None = None  # in eager mode, to the call that defines the job
        self.step: Any = 0  # the job's step counter
        self.stale: dict[Value, BlobDef] = {}  # instead of the variable's value (see `Scope.stale`)
        self.evaluated = False  # whether the job function has read values of blobs
        self.methods = methods  # methods of blobs that need more than the graph
        self.before: GraphBuilder | None = None  # of the first trace, if a job is traced again
        self.sees_whole = False  # whether the function sees all micro-batches as one batch
        # The ops of a trace for the whole batch if the job is traced for a micro-batch; None if the
        # function cannot be traced for it.
        self.whole: GraphBuilder | None = None
        self.packed: dict[Value, int] = {}  # the axis of concatenation if not 0

    def add(
        self,
        op_type: str,
        inputs: Sequence[Value],
        attrs: Mapping[str, AttrValue],
        *,
        name: str | None = None,  # the op's name within the name scope; made unique if it is taken
        line: SourceLine | None = None,
        sbp: tuple[NdSbp | None, ...] = (),  # requested SBP of the outputs
        full: str | None = None,  # the op's full name, instead of ``name``
        placement: Placement | None = None,  # the op's devices, instead of those of the scope
    ) -> tuple[Value, ...]:
        """Add an op at the current scope."""
        if name is not None and not isinstance(name, str):
            raise JobError(f"name of a {op_type}", at=line, found=repr(name), allowed="str, None")
        scope = current_scope()
        full = self.builder.unique_name(full or scope.prefix + (name or op_type))
        if scope.checkpointing:
            self.segments.setdefault(scope.checkpointing, []).append(full)
        placement = placement or scope.placement or self.default_placement
        spec = self.emitter.specs.get(op_type)
        if spec is not None and spec.host:
            placement = placement.on_host()
            sbp = sbp or _source_sbp(spec, placement)
        literals: Mapping[str, AttrValue] = {k: _literal(v) for k, v in attrs.items()}
        if self.before is not None and op_type == "reshape":
            shape = self.builder.type_of(inputs[0]).shape
            literals = resized(self.before, full, literals, shape)
        return self.emitter.emit(
            op_type, inputs, literals, placement=placement, name=full, line=line, sbp=sbp
        )

    def free_name(self, name: str) -> str:
        """Return an unused full name within the name scope."""
        return self.builder.unique_name(current_scope().prefix + name)

    def names_per_device(self, name: str, devices: int) -> list[str]:
        """Return the full names of an op's copies on the devices of the mirrored view."""
        base = full = current_scope().prefix + name
        while f"{full}#0" in self.builder.ops:
            self._copies[base] += 1
            full = f"{base}_{self._copies[base]}"
        return [f"{full}#{rank}" for rank in range(devices)]

    def returns_many(self, op_type: str) -> bool:
        """Return whether `emit` returns a tuple for this op type."""
        outputs = self.emitter.specs[op_type].outputs
        return len(outputs) != 1 or outputs[0].endswith("*")

    def distributed(self, value: Value, sbp: Sbp, line: SourceLine | None) -> Value:
        """Return a value converted to a requested SBP over the devices in scope."""
        placement = current_scope().placement or self.default_placement
        wanted = over_placement(sbp, placement)
        if not wanted or self.requested_sbp(value) == wanted[0]:
            return value
        known = self.distributions.get((value, wanted[0]))
        if known is None:
            name = self.builder.unique_name(f"{value.op}/cast")
            (known,) = self.emitter.emit(
                "identity", [value], placement=placement, name=name, line=line, sbp=wanted
            )
            self.distributions[value, wanted[0]] = known
        return known

    def requested_sbp(self, value: Value) -> NdSbp | None:
        """Return the SBP that the program requests for a value, None if it requests none."""
        sbp = self.builder.ops[value.op].sbp
        return sbp[value.index] if sbp else None

    def request_broadcast(self, variable: str) -> None:
        """Request B over all devices for a variable."""
        op = self.builder.ops[variable]
        self.builder.ops[variable] = replace(op, sbp=((B,) * len(op.placement.hierarchy),))

    def evaluate(self, blob: BlobDef, line: SourceLine | None) -> Any:
        """Return the value of a blob in the eager call for which this job is traced.

        Raises `JobError` if the session is not in eager mode, or the job is traced without a call.
        """
        if self.fed is None or self.methods is None:
            raise JobError(
                f"value of {blob!r}",
                at=line,
                found="a placeholder, which has no data while a job is defined",
                allowed="flow.enable_eager_execution() before, and a call of the job",
                hint="return the blob from the job, or show it with flow.watch(blob, handler)",
            )
        self.evaluated = True
        return self.methods.evaluate(blob)

    def add_loss(self, loss: object) -> None:
        """Record a call of ``losses.add_loss``."""
        self.losses.append(_checked_loss(self, loss, user_line(3)))

    def train(self, *, optimizer: object, losses: Sequence[object]) -> None:
        """Record a call of ``minimize``."""
        line = user_line(3)
        if self.kind != "train":
            self._become_train_job(line)
        if not losses:
            allowed = "a blob of this job, or a list of them"
            raise JobError(
                f"minimize in job {self.name!r}", at=line, found="no loss", allowed=allowed
            )
        blobs = [_checked_loss(self, loss, line) for loss in losses]
        request = train_request(optimizer, blobs, line)
        for earlier in self.train_requests:
            self._check_other(request, earlier)
        self.train_requests.append(request)

    def _check_other(self, request: TrainRequest, earlier: TrainRequest) -> None:
        """Raise `JobError` if two requests update a variable by the gradient of one loss."""
        losses = [loss for loss in request.losses if loss in earlier.losses]
        own, others = _updated(request), _updated(earlier)
        if losses and (own is None or others is None or own & others):
            raise JobError(
                f"minimize in job {self.name!r}",
                at=request.line,
                found=f"the loss {losses[0].op!r}, which minimize at {earlier.line} already has: "
                "its gradient would be applied twice",
                allowed="one minimize for a loss and a variable",
                hint="remove one; or limit both optimizers by variables=[...]",
            )

    def _become_train_job(self, line: SourceLine | None) -> None:
        """Turn a predict job into a train job, as OneFlow does at a call of ``minimize``."""
        advice = 'decorate the job function with @flow.global_function(type="train")'
        parts = micro_batches(self.config)
        if parts > 1:
            raise JobError(
                f"minimize in job {self.name!r}",
                at=line,
                found=f'a job of type "predict", to be trained in {parts} micro-batches',
                allowed='micro-batches in jobs of type "train"',
                hint=advice,
            )
        self.session.warn(
            f'job {self.name!r} has type "predict", but minimize makes it train, as in OneFlow; '
            f"ops before that call, such as dropout, act as in prediction\n  next:    {advice}",
            CompatibilityWarning,
            line,
        )
        self.kind = "train"


def _source_sbp(spec: OpSpec, placement: Placement) -> tuple[NdSbp | None, ...]:
    """Return the SBP in which each device reads its own part of a data source."""
    if spec.inputs or "region" not in spec.attrs or placement.size == 1:
        return ()
    return ((Split(0), *(B,) * (len(placement.hierarchy) - 1)),)


def _literal(value: object) -> AttrValue:
    if isinstance(value, list | tuple):
        return tuple(map(_literal, value))
    if hasattr(value, "item") and not hasattr(value, "__len__"):
        return value.item()
    return value


def described(value: object) -> str:
    """Return the text of a value for a message; the text of a blob names its job."""
    text = f"{value!r:.80}"
    return f"{text} of job {value.job.name!r}" if isinstance(value, BlobDef) else text


def _checked_loss(job: JobBuild, loss: object, line: SourceLine | None) -> BlobDef:
    if not isinstance(loss, BlobDef) or loss.job is not job:
        raise JobError(
            f"minimize in job {job.name!r}",
            at=line,
            found=described(loss),
            allowed="a blob of this job, or a list of them",
        )
    if loss.dtype.is_object or loss.dtype.kind == "b":
        raise JobError(
            f"minimize in job {job.name!r}",
            at=line,
            found=f"a loss of type {loss.dtype}",
            allowed="a numeric type; gradients of whole numbers are whole numbers",
        )
    return _whole_loss(loss, line)


def _whole_loss(loss: BlobDef, line: SourceLine | None) -> BlobDef:
    """Concatenate a loss over the periods of a step, and check that all of its rows are valid."""
    if isinstance(loss, PeriodBlob):
        packed = innermost(loss, lambda blob: emit("concat", *blob.periods, axis=0))
        return _whole_loss(packed, line)
    return all_rows("minimize", loss, line)


def train_request(
    optimizer: object, losses: Sequence[BlobDef], line: SourceLine | None
) -> TrainRequest:
    """Return the request to minimize losses.

    As in OneFlow, the objective is the sum of all elements of the losses of all devices, divided
    by the number of elements (for dynamic shapes, of samples) in one device's loss.  If batch sizes
    differ between devices, the divisor is their mean, so that all samples have the same weight.
    """
    values = tuple(part for loss in losses for part in loss.parts)
    placements = [loss.placement for loss in losses if isinstance(loss, MirroredBlob)]
    if not placements and not any(loss.is_dynamic for loss in losses):
        return TrainRequest(optimizer, values, line)
    elements = {_elements(loss) for loss in losses}
    if len(elements) != 1 or len(placements) not in (0, len(losses)):
        raise JobError(
            "minimize",
            at=line,
            found=" and ".join(map(repr, losses)),
            allowed="losses of one view, with the same number of samples",
        )
    return TrainRequest(
        optimizer, values, line, elements.pop(), placements[0] if placements else None
    )


def _updated(request: TrainRequest) -> set[str] | None:
    """Return the names of the variables that a request updates, None for all."""
    groups = [group.variables for group in request.optimizer.options().groups]
    return None if None in groups else {name for names in groups for name in names}


def _elements(loss: BlobDef) -> float:
    """Return the divisor for the sum of a loss: its number of elements, or, if dynamic, samples."""
    shapes = [loss.job.builder.type_of(part).shape for part in loss.parts]
    counts = [prod(shape[:1] if loss.is_dynamic else shape) for shape in shapes]
    return float(max(1.0, sum(counts) / len(counts)))


OUTERMOST = Scope()

_current: ContextVar[JobBuild | None] = ContextVar("flow_job", default=None)


def current_job(attempted: str) -> JobBuild:
    """Return the job being traced; raise an error outside of job functions."""
    job = _current.get()
    if job is None:
        raise outside(attempted)
    return job


def maybe_current_job() -> JobBuild | None:
    """Return the job being traced, None outside of job functions."""
    return _current.get()


@contextmanager
def defining(job: JobBuild, scope: Scope = OUTERMOST) -> Iterator[JobBuild]:
    """Make a job the job being traced during a ``with`` block, in a new outermost scope."""
    token = _current.set(job)
    try:
        with enter(replace(scope, default=job.default_placement)):
            yield job
    finally:
        _current.reset(token)
