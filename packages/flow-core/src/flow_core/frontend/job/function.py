"""Job functions: the decorator ``@flow.global_function``, and the `JobFunction` that it returns."""

from __future__ import annotations

import functools
import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)

import numpy as np

from flow_core.annotations import JobSignature, Placeholders, parse_signature
from flow_core.base.arrays import Array
from flow_core.base.errors import JobError, SourceLine, nearest
from flow_core.base.planning import end_script, is_planning
from flow_core.compiler.request import Compiled
from flow_core.device import AgreedJob
from flow_core.frontend.config.function_config import FunctionConfig, default_placement
from flow_core.frontend.job.differentiate import STEP_VARIABLE, differentiate
from flow_core.frontend.job.eager import evaluate_blob
from flow_core.frontend.job.feeding import Feeding, Shapes
from flow_core.frontend.job.plan_agreement import (
    feed_check_policy,
)
from flow_core.frontend.job.redefinition import replaces
from flow_core.frontend.job.tracing import Traced, trace
from flow_core.frontend.job.variant import Variant
from flow_core.frontend.session.session import Session, default_session
from flow_core.frontend.trace.foreign_attributes import JOB, missing_attribute
from flow_core.frontend.trace.job_build import (
    BlobMethods,
    JobBuild,
    Kind,
    maybe_current_job,
)
from flow_core.frontend.trace.results import Pending as PendingStep
from flow_core.frontend.trace.sbp_hints import hierarchical_parallel_cast, parallel_cast
from flow_core.ir.graph import GraphBuilder, Value
from flow_core.passes.optimizer_placement import Owned
from flow_core.plan import Plan
from flow_core.runtime.executable import Executable
from flow_core.runtime.pipeline import Credit, Step
from flow_core.sharding.topology import Device, Placement

if TYPE_CHECKING:
    from flow_core.annotations import Callback, Pending

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

KINDS: tuple[Kind, ...] = get_args(Kind)

PLANS_KEPT = 16
"""How many plans a job keeps if shapes differ between calls; each combination has a plan."""

_log = logging.getLogger("flow_core")


class JobFunction(Generic[P, R]):
    """A job: a Python function that is traced and compiled once, and run at every call.

    The stages are trace, differentiate, compile and bind.  They run at the first call (the first
    two also when a checkpoint needs the variables before that); later calls only feed, run and
    fetch.

    Args:
        function: the Python function.
        kind: "train" or "predict".
        config: the job's settings, which are copied.
        session: the job's session; the default session if None.
        name: the job's name; that of the function if None.
    """

    def __init__(
        self,
        function: Callable[P, R],
        kind: Kind,
        config: FunctionConfig | None = None,
        session: Session | None = None,
        name: str | None = None,
    ) -> None:
        if not inspect.isroutine(inspect.unwrap(function)):
            raise _wrong_use(f"{function!r:.60}", "a function written with def")
        functools.update_wrapper(self, function)
        self.function = function
        self._declared_kind = kind
        self.name = name or function.__name__
        self.config = (config or FunctionConfig()).copy()
        self.session: Session | None = session or default_session()
        specs = tuple(self.session.registry.annotations.values())
        self.signature: JobSignature = parse_signature(function, specs, job=self.name)
        self._reset()
        self._join(self.session)

    @property
    def line(self) -> SourceLine | None:
        """The line where the function is defined."""
        return self.signature.at

    def detach(self) -> None:
        """Drop all state of a closed session; the next call compiles again."""
        self.session = None
        self._reset()

    def forget(self) -> None:
        """Drop what was traced and compiled; the next call traces the job again."""
        self._reset()

    def _reset(self) -> None:
        self.kind = self._declared_kind
        self._feeding: Feeding | None = None
        self._variants: OrderedDict[Shapes, Variant] = OrderedDict()
        self._last: Variant | None = None
        self._credit = Credit(int(self.config.get("concurrency_width")))
        self._step = np.zeros((), np.int64)
        self._bound = self._dropped = False
        self._agreed: AgreedJob | None = None

    def active_session(self) -> Session:
        """Return the job's session; the default session if the job's session was closed."""
        if self.session is None:
            session = default_session()
            self._join(session)
            self.session = session
        return self.session

    def _join(self, session: Session) -> None:
        """Register the job with a session; names of train jobs must be unique.

        A job that is redefined, in eager mode or by a cell of a notebook, replaces the last job of
        its name, and continues with that job's variables and step counter.
        """
        eager = session.eager
        session.jobs[:] = [job for job in session.jobs if not replaces(self, job, eager)]
        self._check_name(session)
        session.jobs.append(self)

    def _check_name(self, session: Session) -> None:
        """Raise an error if this is a train job and another train job has its name."""
        for other in session.jobs if self.kind == "train" else ():
            if other is not self and other.kind == "train" and other.name == self.name:
                raise JobError(
                    f"defining train job {self.name!r}",
                    at=self.line,
                    found=f"another train job of that name at {other.line}",
                    allowed="one train job per name, since the name identifies its step counter",
                    hint="rename one of the jobs, or first call flow.clear_default_session()",
                )

    # ------------------------------------------------------------------ phases

    def prepare(self) -> Traced:
        """Trace and differentiate the job, which declares its variables; later calls do nothing."""
        return self._variant().traced

    @property
    def results(self) -> list[Value]:
        """The values that each step computes for its caller; reports may append to them.

        What is appended before the job is compiled, the executable returns as well.
        """
        return self._variant().fetches.values

    def retraced(self, parameters: Mapping[str, Placeholders], before: GraphBuilder) -> Traced:
        """Trace the job for other placeholders, without any effect on the job and its session.

        Args:
            before: the ops of the job as it is, to which constant batch sizes are adapted; see
                `flow_core.frontend.trace.resizing`.
        """
        session, signature = self.active_session(), replace(self.signature, parameters=parameters)
        with session.compiling:
            declared = dict(session.declared)
            try:
                build = self._build(session)
                build.before = before
                shapes = Feeding(self.name, signature, build.default_placement.size).declared
                traced = trace(self.function, signature, build, shapes)
                differentiate(traced)
            finally:
                session.declared = declared
        return traced

    def traced_with(self, config: FunctionConfig, feeds: Sequence[Array] | None = None) -> Variant:
        """Trace the job with other settings, without any effect on the job and its session.

        Args:
            feeds: arrays whose shapes the job is traced for; None for the declared shapes.

        Raises:
            FlowError: the job cannot be traced with these settings.
        """
        return self._retraced(
            config, self._feed().declared if feeds is None else self._feed().shapes(feeds)
        )

    def _retraced(
        self,
        config: FunctionConfig,
        shapes: Shapes,
        signature: JobSignature | None = None,  # the placeholders; None for those of the job
        before: GraphBuilder | None = None,  # as for `retraced`
        onto: Placement | None = None,  # as for `Variant`
    ) -> Variant:
        """Trace the job again, without any effect on the job and its session."""
        session = self.active_session()
        with session.compiling:
            declared = dict(session.declared)
            try:
                build = self._build(session, config)
                build.before = before
                return Variant(
                    session, self.function, signature or self.signature, build,
                    lambda: self._build(session, config), shapes, lambda *_: None,
                    lambda config, onto: self._retraced(config, shapes, signature, before, onto),
                    onto,
                )  # fmt: skip
            finally:
                session.declared = declared

    def compile(self) -> Compiled:
        """Trace and compile the job; of several plans, return that of the last call.

        A process of several compiles the tasks of its own devices and of one device of each class;
        see `flow_core.frontend.session.own_devices` for jobs of which it compiles all devices.
        """
        return self._variant().compile()

    def compile_classes(self, *devices: Device) -> Compiled:
        """Compile the job for one device of each class of devices that do the same.

        The time and the memory that this takes hardly depend on the number of devices.  The plan
        describes devices with separate memories.

        Args:
            devices: further devices that the plan has tasks for.
        """
        variant, session = self._variant(), self.active_session()
        with session.compiling:
            return variant.compile_classes(devices)

    def compile_scaled(self, factor: int, devices: Collection[Device] | None = None) -> Compiled:
        """Compile the job for batches of another size, without any effect on the job's plan.

        Args:
            factor: how many times as large a batch is.
            devices: as for `compile_classes`; None for a plan of all devices.
        """
        session, signature = self.active_session(), self.signature.scaled(factor)
        with session.compiling:
            before = self.prepare().build.builder if factor != 1 else None
            size = (default_placement(self.config) or session.default_placement).size
            shapes = Feeding(self.name, signature, size).declared
            return self._retraced(self.config, shapes, signature, before).compile_classes(devices)

    @property
    def compiled(self) -> Compiled | None:
        """The compiled job, None before compilation."""
        return None if self._last is None else self._last.compiled

    @property
    def owners(self) -> Mapping[str, Owned]:
        """The owners of the variables with gathered copies; empty before compilation."""
        return {} if self.compiled is None else self.compiled.owners

    def plan(self) -> Plan:
        """Return the physical plan; compile the job if needed."""
        return self.compile().plan

    def executable(self) -> Executable:
        """Return the bound plan; compile and bind the job if needed."""
        return self._executable(self._variant())

    @property
    def plans(self) -> tuple[Shapes, ...]:
        """The combinations of shapes that have a plan, in the order of their last use.

        A job with open sizes, or to which lists are fed, gets a plan for each combination of
        shapes; at most `PLANS_KEPT` plans are kept.
        """
        return tuple(shapes for shapes, variant in self._variants.items() if variant.compiled)

    def _feed(self) -> Feeding:
        if self._feeding is None:
            session = self.active_session()
            placement = default_placement(self.config) or session.default_placement
            self._feeding = Feeding(self.name, self.signature, placement.size)
        return self._feeding

    def _variant(self, shapes: Shapes | None = None, fed: Sequence[Array] | None = None) -> Variant:
        """Return the differentiated job for given shapes of arrays; the last used by default."""
        last = self._last
        if last is not None and (shapes is None or shapes == last.shapes):
            return last
        session, wanted = self.active_session(), self._feed().declared if shapes is None else shapes
        with session.compiling, session.declaring():
            variant = self._variants.get(wanted)
            if variant is None:
                build = self._build(session)
                build.fed, build.step = fed, self._step
                variant = Variant(
                    session, self.function, self.signature, build,
                    lambda: self._build(session), wanted, self._check_kind,
                    lambda config, onto: self._retraced(config, wanted, onto=onto),
                )  # fmt: skip
                self._variants[wanted] = variant
                self._drop_oldest()
            self._variants.move_to_end(wanted)
            self._last = variant
        return variant

    def _check_kind(self, session: Session, kind: Kind) -> None:
        """Set the kind of the traced job, which settings of older programs may determine."""
        self.kind = kind
        self._check_name(session)

    def _drop_oldest(self) -> None:
        """Drop the plan used least recently if there are too many; warn once."""
        if len(self._variants) <= PLANS_KEPT:
            return
        self._variants.popitem(last=False)
        if not self._dropped:
            self._dropped = True
            _log.warning(
                "job %r at %s was fed arrays of more than %d combinations of shapes: plans are "
                "dropped and compiled again; pad the arrays to fewer sizes",
                self.name, self.line, PLANS_KEPT,
            )  # fmt: skip

    def _build(self, session: Session, config: FunctionConfig | None = None) -> JobBuild:
        config = config or self.config
        placement = default_placement(config) or session.default_placement
        methods = BlobMethods(evaluate_blob, parallel_cast, hierarchical_parallel_cast)
        ops, kind = session.registry.ops, self._declared_kind
        return JobBuild(self.name, kind, ops, placement, config, session, methods)

    def _executable(self, variant: Variant) -> Executable:
        return variant.bind(self._step, self._ready)

    def _ready(self, session: Session, plan: Plan) -> None:
        """Set the number of the next step, and call the observers of a bound plan."""
        if not self._bound:
            self._step[...] = self._steps_done(session)
            self._agreed = self._agreement(session)
            if self._agreed is not None:
                self._agreed.step = int(self._step)
            self._bound = True
        for observer in session.registry.observers("flow_plan_ready"):
            observer(plan)

    def _agreement(self, session: Session) -> AgreedJob | None:
        """Return the check that all processes of a program run the same steps."""
        if session.world is None:
            return None
        policy = feed_check_policy(session, self.config)
        return session.world.agree(self.name, self._feed().names, policy)

    def resume(self) -> None:
        """Continue at the step number in the job's counter; random ops depend on that number."""
        if self._bound and self.session is not None:
            self._step[...] = self._steps_done(self.session)
            if self._agreed is not None:
                self._agreed.step = int(self._step)

    @property
    def step(self) -> int:
        """The number of steps done; of a train job, including those before its checkpoint."""
        session = self.active_session()
        self.prepare()
        session.sync()
        session.stored()
        return self._steps_done(session)

    def _steps_done(self, session: Session) -> int:
        """Return the number of steps done: of a train job, from a variable, else from a counter."""
        if self.kind == "train":
            return int(session.value(STEP_VARIABLE.format(job=self.name))[0])
        return int(self._step)

    def device_of(self, variable: str) -> Device | None:
        """Return the first device on which this job has a variable, or None."""
        if self._last is None:
            return None
        op = self._last.traced.build.builder.ops.get(variable)
        return None if op is None else op.placement.device(0)

    @property
    def peak_in_flight(self) -> int:
        """The largest number of steps that were in flight at the same time."""
        return self._credit.peak

    # -------------------------------------------------------------------- call

    @overload
    def __call__(
        self: JobFunction[P, Callback[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[T]: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run one step; the return annotation determines the type of the result."""
        if maybe_current_job() is not None:
            raise JobError.at_caller(
                f"calling job {self.name!r}",
                found="the definition of another job",
                allowed="calls outside of job functions",
                hint="move the shared code to a plain Python function, and call it in both jobs",
            )
        if is_planning():
            end_script(f"a call of job {self.name!r}")
        feeding = self._feeding or self._feed()
        session = self.session or self.active_session()
        if session.eager:
            feeds = [feed[...] for feed in feeding.feed(args, kwargs)]  # all rows of partial feeds
            return self._call_eagerly(session, feeds, feeding)
        variant = None if feeding.declared else self._last or self._variant()
        if variant is not None and variant.executable is None:  # errors precede those of feeds
            self._executable(variant)
        session.before_call(self.name)
        arrays = feeding.feed(args, kwargs)
        return self._run(session, variant or self._variant(feeding.shapes(arrays)), arrays)

    def _call_eagerly(self, session: Session, feeds: Sequence[Array], feeding: Feeding) -> Any:
        """Run a call in eager mode, where the function may read values of blobs."""
        if self._last is not None and self._last.traced.build.evaluated:
            self._variants.clear()
            self._last = None
        session.before_call(self.name)
        return self._run(session, self._variant(feeding.shapes(feeds), feeds), feeds)

    def _run(self, session: Session, variant: Variant, feeds: Sequence[Array]) -> Any:
        executable = variant.executable or self._executable(variant)
        if self._agreed is not None:
            self._agreed(feeds)
        if variant.traced.blocking:
            step = Step(executable, feeds, self._credit, variant.fetches.watcher)
            session.pipeline.run(step)
            return variant.fetches.arrange(step)
        return self._launch(session, executable, variant, feeds)

    def _launch(
        self, session: Session, executable: Executable, variant: Variant, feeds: Sequence[Array]
    ) -> PendingStep:
        pipeline, fetches = session.pipeline, variant.fetches
        pending = PendingStep(pipeline, fetches.arrange)
        deliver, watcher = pending.deliverer(), fetches.watcher

        def both(step: Step) -> None:
            if watcher is not None:
                watcher(step)
            deliver(step)

        step = Step(executable, (), self._credit, both, pending.release)
        pending.attach(step)
        try:
            pipeline.reserve(step)
            step.feeds = variant.staging.copy(step.slot, feeds, executable.windows)
            pipeline.enter(step)
        except BaseException:  # probably Ctrl-C
            pipeline.give_up(step)
            raise
        return pending

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise JobError.at_caller(
            f"pickling or copying job {self.name!r}",
            found="a job function, which cannot leave the session of this process",
            allowed="a job that is defined in each process that calls it",
            hint="move the definition to a module that each process imports",
        )

    def _repr_html_(self) -> str:
        """Return the job's parameters, and the sizes of its plan if it has one, for notebooks."""
        from flow_core.base.formats.html_table import html_table

        rows: list[tuple[str, object]] = [("defined at", self.line)]
        if self._last is not None:
            inputs = self._last.traced.build.builder
            rows += [(op.name.removeprefix("Input_"), inputs.types[op.name][0])
                     for op in inputs.ops.values() if op.type == "input"]  # fmt: skip
            rows.append(("variables", len(self._last.traced.build.variables)))
        title = f"{self.kind} job {self.name!r}"
        if self.compiled is None:
            return html_table(title, rows, note="not compiled yet: the first call compiles it")
        return html_table(title, rows) + self.compiled.plan._repr_html_()

    def __repr__(self) -> str:
        return f"<{self.kind} job {self.name!r} at {self.line}>"

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, "a job", name, JOB)


AnyJob: TypeAlias = JobFunction[..., Any]
"""A job of any parameters and results."""


# ------------------------------------------------------------------------- decorator


@overload
def global_function(type: Callable[P, R]) -> JobFunction[P, R]: ...


@overload
def global_function(
    type: Kind | FunctionConfig = "predict", function_config: FunctionConfig | None = None
) -> Callable[[Callable[P, R]], JobFunction[P, R]]: ...


def global_function(
    type: Kind | FunctionConfig | Callable[P, R] = "predict",
    function_config: FunctionConfig | None = None,
) -> JobFunction[P, R] | Callable[[Callable[P, R]], JobFunction[P, R]]:
    """Turn a Python function into a job function.

    Use the decorator with arguments, ``@flow.global_function(type="train")``, or without,
    ``@flow.global_function``, for a predict job.

    Args:
        type: "train" (the function must call ``minimize``) or "predict".
        function_config: settings made by ``flow.function_config()``.

    Returns:
        A decorator, which returns a `JobFunction`.

    Example:
        >>> @flow.global_function()
        ... def double(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        ...     return 2 * x
        >>> double([1, 2])
        array([2., 4.], dtype=float32)
    """
    if isinstance(type, FunctionConfig):
        settings = type
        type, function_config = _kind_of(settings), settings
    _check_config(function_config)
    if callable(type) and not isinstance(type, str):
        return JobFunction(type, "predict", function_config)
    if type not in KINDS:
        raise _wrong_use(f"type={type!r}", '"train" or "predict"', nearest(str(type), KINDS))
    kind: Kind = type
    return lambda function: JobFunction(function, kind, function_config)


def _wrong_use(found: str, allowed: str, hint: str = "") -> JobError:
    what = "use of global_function"
    return JobError.at_caller(what, found=found, allowed=allowed, hint=hint or None)


def _kind_of(config: FunctionConfig) -> Kind:
    """Return the kind of a job for which an older program gives only settings."""
    return "train" if any(name.startswith("train.") for name in config.settings) else "predict"


def _check_config(config: object) -> None:
    if config is not None and not isinstance(config, FunctionConfig):
        raise _wrong_use(
            f"function_config={config!r:.60}", "settings made by flow.function_config()"
        )


def defined_jobs(session: Session | None = None) -> Iterator[AnyJob]:
    """Yield the jobs of a session, in the order of their definition."""
    yield from (session or default_session()).jobs
