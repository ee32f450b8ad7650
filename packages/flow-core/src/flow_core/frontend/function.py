"""Job functions: ``@flow.global_function`` and what it makes of a Python function."""

from __future__ import annotations

import dis
import functools
import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flow_core.annotations import (
    FetchNone,
    JobSignature,
    PlaceholderSpec,
    Returned,
    check_returned,
    parse_signature,
    structure,
)
from flow_core.compiler.select import Selector
from flow_core.dtypes import tensor_buffer
from flow_core.errors import FeedError, JobError, SourceLine, nearest, user_line
from flow_core.frontend.blob import BlobDef, MirroredBlob
from flow_core.frontend.compile import (
    STEP_VARIABLE,
    Compiled,
    compile_graph,
    complete,
    input_attrs,
    micro_shape,
    updated_variables,
)
from flow_core.frontend.feeding import RAGGED, Feeding, Shapes, is_list
from flow_core.frontend.function_config import FunctionConfig, default_placement, default_view
from flow_core.frontend.jobs import JobBuild, Watch, defining, maybe_current_job
from flow_core.frontend.mirrored import flat
from flow_core.frontend.redefinition import takes_place
from flow_core.frontend.results import FORMS, Fetched, Pending
from flow_core.frontend.session import Session, default_session
from flow_core.frontend.together import compiled_alike
from flow_core.ir import Value
from flow_core.plan import Plan
from flow_core.runtime.executable import Executable
from flow_core.runtime.pipeline import Credit, Step
from flow_core.shapes import Shape
from flow_core.topology import Placement

KINDS = ("train", "predict")

PLANS_KEPT = 16
"""How many plans a job that is fed lists keeps, for as many combinations of shapes."""

_log = logging.getLogger("flow_core")


class JobFunction:
    """A job: a Python function that is traced once, compiled, and run at every call.

    The function is traced and compiled at the first call (or when a checkpoint asks for the
    variables); from then on a call only feeds, runs and fetches.

    Args:
        function: the Python function.
        kind: "train" or "predict".
        config: its settings; a copy is kept.
        session: where it belongs; the default session when None.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        kind: str,
        config: FunctionConfig | None = None,
        session: Session | None = None,
    ) -> None:
        if not inspect.isroutine(inspect.unwrap(function)):
            raise _wrong_use(f"{function!r:.60}", "a function written with def")
        functools.update_wrapper(self, function)
        self.function = function
        self.kind = kind
        self.name = function.__name__
        self.config = (config or FunctionConfig()).copy()
        self.session: Session | None = session or default_session()
        specs = tuple(self.session.registry.annotations.values())
        self.signature: JobSignature = parse_signature(function, specs, job=self.name)
        self._join(self.session)
        self._forget()

    @property
    def line(self) -> SourceLine | None:
        """Where the function is defined."""
        return self.signature.at

    def detach(self) -> None:
        """Forgets everything about a session that is closed; the next call starts anew."""
        self.session = None
        self._forget()

    def _forget(self) -> None:
        self._feeding: Feeding | None = None
        self._variants: OrderedDict[Shapes, _Variant] = OrderedDict()
        self._last: _Variant | None = None
        self._credit = Credit(int(self.config.get("concurrency_width")))
        self._step = np.zeros((), np.int64)
        self._bound = self._dropped = False

    def _session(self) -> Session:
        if self.session is None:
            session = default_session()
            self._join(session)
            self.session = session
        return self.session

    def _join(self, session: Session) -> None:
        """Makes this one of the session's jobs; train jobs keep their state under their names.

        A job that is defined anew, in eager mode or by a cell of a notebook, takes the place of
        the last one of its name, and goes on with its variables and its step counter.
        """
        eager = session.eager
        session.jobs[:] = [job for job in session.jobs if not takes_place(self, job, eager)]
        for other in session.jobs if self.kind == "train" else ():
            if other.kind == "train" and other.name == self.name:
                raise JobError(
                    f"defining train job {self.name!r}",
                    at=self.line,
                    found=f"another train job of that name at {other.line}",
                    allowed="one train job of a name, as its step counter is saved under it",
                    hint="rename one of them, or call flow.clear_default_session() before",
                )
        session.jobs.append(self)

    # ------------------------------------------------------------------ phases

    def prepare(self) -> _Traced:
        """Traces the function, if that has not happened yet; declares its variables."""
        return self._variant().traced

    def compile(self) -> Compiled:
        """Traces and compiles; what the last call has run, where plans go by shapes."""
        return self._compiled(self._variant())

    @property
    def compiled(self) -> Compiled | None:
        """What compilation has given, None before it."""
        return None if self._last is None else self._last.compiled

    def plan(self) -> Plan:
        """The physical plan; compiles when that has not happened yet."""
        return self.compile().plan

    def executable(self) -> Executable:
        """The bound plan; compiles and binds when that has not happened yet."""
        return self._executable(self._variant())

    @property
    def plans(self) -> tuple[Shapes, ...]:
        """The shapes for which there is a plan, in the order of their last use.

        Jobs that are fed lists get a plan for each combination of shapes; at most
        `PLANS_KEPT` are kept.
        """
        return tuple(shapes for shapes, variant in self._variants.items() if variant.compiled)

    def _feed(self) -> Feeding:
        if self._feeding is None:
            session = self._session()
            placement = default_placement(self.config) or session.default_placement
            self._feeding = Feeding(self.name, self.signature, placement.size)
        return self._feeding

    def _variant(self, shapes: Shapes | None = None, fed: Sequence[Any] | None = None) -> _Variant:
        """The job for fed lists of some shapes, traced; by default the one used last."""
        last = self._last
        if last is not None and (shapes is None or shapes == last.shapes):
            return last
        session, wanted = self._session(), self._feed().declared if shapes is None else shapes
        with session.compiling, session.declaring():
            variant = self._variants.get(wanted)
            if variant is None:
                build = self._build(session)
                build.fed, build.step = fed, self._step
                variant = _Variant(wanted, _trace(self, build, wanted, self._credit.width))
                build.fed = None
                self._variants[wanted] = variant
                self._drop_oldest()
            self._variants.move_to_end(wanted)
            self._last = variant
        return variant

    def _drop_oldest(self) -> None:
        """Keeps the number of plans bounded; says so once."""
        if len(self._variants) <= PLANS_KEPT:
            return
        self._variants.popitem(last=False)
        if not self._dropped:
            self._dropped = True
            _log.warning(
                "job %r at %s was fed lists of more than %d combinations of shapes: plans are "
                "dropped and compiled again; pad the arrays to fewer sizes",
                self.name, self.line, PLANS_KEPT,
            )  # fmt: skip

    def _build(self, session: Session) -> JobBuild:
        placement = default_placement(self.config) or session.default_placement
        return JobBuild(self.name, self.kind, session.registry.ops, placement, self.config, session)

    def _compiled(self, variant: _Variant, select: Selector | None = None) -> Compiled:
        if variant.compiled is None:
            with self._session().compiling:
                traced = variant.traced
                variant.compiled = variant.compiled or compile_graph(
                    traced.build, traced.results, traced.inputs, select=select
                )
        return variant.compiled

    def _executable(self, variant: _Variant) -> Executable:
        if variant.executable is None:
            session = self._session()
            with session.compiling:
                compiled = compiled_alike(session, variant, self._compiled)
                variant.executable = variant.executable or self._bind(session, compiled.plan)
        return variant.executable

    def _bind(self, session: Session, plan: Plan) -> Executable:
        registry = session.registry
        executable = Executable(
            plan, registry, session.driver, session.variable,
            registry.observers("flow_step_finished"), registry.comm, self._step, session.world,
        )  # fmt: skip
        session.adopted()
        session.check_replicas(self.name, updated_variables(plan, registry.ops))
        if not self._bound:
            self._step[...] = self._steps_done(session)
            self._bound = True
        for observer in registry.observers("flow_plan_ready"):
            observer(plan)
        return executable

    def resume(self) -> None:
        """Goes on at the step that the job's counter says: random ops count steps, too."""
        if self._bound and self.session is not None:
            self._step[...] = self._steps_done(self.session)

    def _steps_done(self, session: Session) -> int:
        """The step counter of a train job, which checkpoints keep; else the job's own."""
        if self.kind == "train":
            return int(session.value(STEP_VARIABLE.format(job=self.name))[0])
        return int(self._step)

    def device_of(self, variable: str) -> str | None:
        """Text form of the device on which this job has a variable, None when it has not."""
        if self._last is None:
            return None
        op = self._last.traced.build.builder.ops.get(variable)
        return None if op is None else str(op.placement.device(0))

    @property
    def peak_in_flight(self) -> int:
        """The most steps that were ever in flight at the same time."""
        return self._credit.peak

    # -------------------------------------------------------------------- call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step; what it gives depends on the return annotation."""
        if maybe_current_job() is not None:
            raise JobError(
                f"calling job {self.name!r}",
                at=user_line(2),
                found="the definition of another job",
                allowed="calls outside of job functions",
                hint="share a plain Python function between jobs; it may call itself on numbers",
            )
        feeding = self._feeding or self._feed()
        session = self._session()
        if session.eager:
            return self._call_eagerly(session, feeding.feed(args, kwargs), feeding)
        variant = None if feeding.declared else self._variant()
        if variant is not None:  # errors of compilation come before those of arguments
            self._executable(variant)
        session.before_call(self.name)
        feeds = feeding.feed(args, kwargs)
        return self._run(session, variant or self._variant(feeding.shapes(feeds)), feeds)

    def _call_eagerly(self, session: Session, feeds: Sequence[Any], feeding: Feeding) -> Any:
        """A call in the eager mode, where the function may look at values of blobs."""
        if self._last is not None and self._last.traced.build.looked_at:
            self._variants.clear()
            self._last = None
        session.before_call(self.name)
        return self._run(session, self._variant(feeding.shapes(feeds), feeds), feeds)

    def _run(self, session: Session, variant: _Variant, feeds: Sequence[Any]) -> Any:
        executable = variant.executable or self._executable(variant)
        traced = variant.traced
        if traced.blocking:
            step = Step(executable, feeds, self._credit, traced.watcher)
            session.pipeline.run(step)
            return traced.arrange(step)
        return self._launch(session, executable, traced, feeds)

    def _launch(
        self, session: Session, executable: Executable, traced: _Traced, feeds: Sequence[Any]
    ) -> Pending:
        pipeline = session.pipeline
        pending = Pending(pipeline, traced.arrange)
        deliver, watcher = pending.deliverer(), traced.watcher

        def both(step: Step) -> None:
            if watcher is not None:
                watcher(step)
            deliver(step)

        step = Step(executable, (), self._credit, both, pending.release)
        pending.attach(step)
        try:
            pipeline.reserve(step)
            step.feeds = traced.stage(feeds, executable.windows)
            pipeline.enter(step)
        except BaseException:  # Ctrl-C most likely
            pipeline.give_up(step)
            raise
        return pending

    def __repr__(self) -> str:
        return f"<{self.kind} job {self.name!r} at {self.line}>"


class _Variant:
    """A job for fed lists of some shapes: traced; compiled and bound when it is run."""

    __slots__ = ("compiled", "executable", "shapes", "traced")

    def __init__(self, shapes: Shapes, traced: _Traced) -> None:
        self.shapes = shapes
        self.traced = traced
        self.compiled: Compiled | None = None
        self.executable: Executable | None = None


class _Traced:
    """A traced job: its graph, and how calls are answered."""

    __slots__ = (
        "_lock", "_staged", "_staging", "_width", "blobs", "blocking", "build", "inputs", "job",
        "results", "returned", "watcher",
    )  # fmt: skip

    def __init__(self, job: str, build: JobBuild, width: int) -> None:
        self.job = job
        self.build = build
        self.inputs = build.inputs
        self.results: list[Value] = []
        self.blobs: list[Fetched] = []
        self.returned = Returned(FetchNone(), ())
        self.watcher: Callable[[Step], None] | None = None
        self.blocking = True
        self._width = width
        self._lock = threading.Lock()
        self._staging: list[list[Any]] = []
        self._staged = 0

    def stage(self, arrays: Sequence[Any], windows: Sequence[tuple[int, Any]]) -> list[Any]:
        """Copies of windows of fed arrays, in the slots of the step that left longest ago."""
        with self._lock:
            if len(self._staging) < self._width:
                self._staging.append([np.empty_like(x, order="C") for x in arrays])
            slot = self._staging[self._staged % self._width]
            self._staged += 1
        for index, window in windows:
            np.copyto(slot[index][window], arrays[index][window])
        return slot

    def arrange(self, step: Step) -> Any:
        """The results of a step in the structure that the job returns."""
        results = step.results or ()
        found = [blob.of(results) for blob in self.blobs[: len(self.returned.blobs)]]
        return structure(self.returned.structure, found, lambda kind, x: FORMS[kind](x))

    def fetch(self, blob: BlobDef, parts: Sequence[Value]) -> None:
        """Adds a blob (or its gradient) to what is fetched."""
        first = len(self.results)
        self.results.extend(self.build.rounded.get(part, part) for part in parts)
        where = slice(first, len(self.results))
        if blob.rows is not None:
            self.results.extend(blob.rows.count.parts)
        self.blobs.append(Fetched(where, blob))


# --------------------------------------------------------------------------- tracing


def _trace(job: JobFunction, build: JobBuild, shapes: Shapes, width: int) -> _Traced:
    """Runs the function on placeholders, those of lists in the given shapes."""
    traced, listed = _Traced(job.name, build, width), iter(shapes)
    with defining(build, default_view(job.config)):
        arguments = {
            name: _placeholders(traced, name, spec, job.line, listed)
            for name, spec in job.signature.parameters.items()
        }
        returned = job.function(**arguments)
        traced.returned = check_returned(
            job.signature.result,
            returned,
            lambda value: isinstance(value, BlobDef) and value.job is build,
            job=job.name,
            at=_return_line(job.function) or job.line,
            is_dynamic=_is_no_array,
        )
    seen = [part for blob in traced.returned.blobs for part in blob.parts]
    _collect_results(traced, complete(build, job.line, seen))
    nothing = isinstance(traced.returned.structure, FetchNone)
    unannotated = job.signature.python.return_annotation is job.signature.python.empty
    traced.blocking = not job.signature.is_async and (nothing or not unannotated)
    return traced


def _is_no_array(blob: BlobDef) -> bool:
    """Whether a blob's values cannot be had as one array."""
    if isinstance(blob, MirroredBlob):
        return blob.is_dynamic or blob.batch_axis is None
    return blob.is_tensor_list or blob.dtype.is_object


def _placeholders(
    traced: _Traced,
    path: str,
    spec: Any,
    line: SourceLine | None,
    listed: Iterator[tuple[Shape, ...]],
) -> Any:
    """Placeholder blobs in the structure of a parameter's annotation."""
    if isinstance(spec, PlaceholderSpec):
        if is_list(spec):
            return _list_placeholder(traced, path, spec, line, next(listed))
        value = _placeholder(traced, path, spec, line, spec.shape)
        return BlobDef(traced.build, value, spec.batch_axis)
    if isinstance(spec, Mapping):
        return {k: _placeholders(traced, f"{path}-{k}", v, line, listed) for k, v in spec.items()}
    parts = [_placeholders(traced, f"{path}-{i}", v, line, listed) for i, v in enumerate(spec)]
    return parts if isinstance(spec, list) else tuple(parts)


def _list_placeholder(
    traced: _Traced,
    path: str,
    spec: PlaceholderSpec,
    line: SourceLine | None,
    shapes: tuple[Shape, ...],
) -> BlobDef:
    """The blob of a list of arrays: a value per device, or the only one."""
    build = traced.build
    if any(RAGGED in shape for shape in shapes):
        return _tensor_list_placeholder(traced, path, spec, line, shapes)
    if len(shapes) == 1:
        value = _placeholder(traced, path, spec, line, shapes[0])
        return BlobDef(build, value, spec.batch_axis, is_dynamic=True)
    devices = flat(build.default_placement)
    values = [
        _placeholder(traced, f"{path}#{rank}", spec, line, shape, devices.only(rank))
        for rank, shape in enumerate(shapes)
    ]
    return MirroredBlob(
        build, values, devices, differs=True, batch_axis=spec.batch_axis, is_dynamic=True
    )


def _tensor_list_placeholder(
    traced: _Traced,
    path: str,
    spec: PlaceholderSpec,
    line: SourceLine | None,
    shapes: tuple[Shape, ...],
) -> BlobDef:
    """The blob of lists of tensors: a value of objects per device, or the only one."""
    if not all(RAGGED in shape for shape in shapes):
        raise FeedError(
            f"feeding {path!r} of job {traced.job!r}",
            at=user_line(2),
            found="one array for one device and several for another",
            allowed="as many arrays for each device",
        )
    objects = replace(spec, dtype=tensor_buffer, batch_axis=0)
    kept = tuple(shape[:1] for shape in shapes)
    return _list_placeholder(traced, path, objects, line, kept).with_bound(spec.shape, spec.dtype)


def _placeholder(
    traced: _Traced,
    path: str,
    spec: PlaceholderSpec,
    line: SourceLine | None,
    shape: Shape,
    placement: Placement | None = None,
) -> Value:
    shape = micro_shape(traced.build, path, shape, line)
    attrs = input_attrs(shape, spec.dtype.name, spec.batch_axis)
    name = traced.build.builder.unique_name(f"Input_{path}")
    (value,) = traced.build.add("input", (), attrs, name=name, line=line, placement=placement)
    traced.inputs.append(value.op)
    return value


def _return_line(function: Callable[..., Any]) -> SourceLine | None:
    """The line of a function's only ``return``, None when it has several."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    lines = {
        i.positions.lineno
        for i in dis.get_instructions(code)
        if i.opname.startswith("RETURN_") and i.opname != "RETURN_GENERATOR" and i.positions
    } - {None}
    (line,) = lines if len(lines) == 1 else (None,)
    return None if line is None else SourceLine(code.co_filename, line)


def _collect_results(traced: _Traced, gradients: Mapping[Value, Value]) -> None:
    """What is fetched: the returned blobs, then the watched ones."""
    watches = traced.build.watches
    for blob in traced.returned.blobs:
        traced.fetch(blob, blob.parts)
    for watch in watches:
        traced.fetch(watch.blob, _watched(traced, watch, gradients))
    if watches:
        shown = traced.blobs[len(traced.returned.blobs) :]
        traced.watcher = functools.partial(_show, watches, shown)


def _watched(traced: _Traced, watch: Watch, gradients: Mapping[Value, Value]) -> tuple[Value, ...]:
    parts: tuple[Value, ...] = watch.blob.parts
    if not watch.gradient:
        return parts
    if any(part not in gradients for part in parts):
        raise JobError(
            f"watch_diff of {watch.blob.op_name!r} in job {traced.job!r}",
            at=watch.line,
            found="a blob that no loss depends on",
            allowed="floating point blobs from which the losses are computed",
        )
    return tuple(gradients[part] for part in parts)


def _show(watches: Sequence[Watch], shown: Sequence[Fetched], step: Step) -> None:
    for watch, blob in zip(watches, shown, strict=True):
        watch.handler(blob.of(step.results or ()))


# ------------------------------------------------------------------------- decorator


def global_function(type: Any = "predict", function_config: FunctionConfig | None = None) -> Any:
    """Makes a job function of a Python function.

    Args:
        type: "train" (the function must call ``minimize``) or "predict".
        function_config: settings made by ``flow.function_config()``.

    Use it with arguments, ``@flow.global_function(type="train")``, or bare,
    ``@flow.global_function``, for a predict job.
    """
    if isinstance(type, FunctionConfig):
        type, function_config = _kind_of(type), type
    _check_config(function_config)
    if callable(type) and not isinstance(type, str):
        return JobFunction(type, "predict", function_config)
    if type not in KINDS:
        raise _wrong_use(f"type={type!r}", '"train" or "predict"', nearest(str(type), KINDS))
    kind: str = type
    return lambda function: JobFunction(function, kind, function_config)


def _wrong_use(found: str, allowed: str, hint: str = "") -> JobError:
    what = "use of global_function"
    return JobError(what, at=user_line(), found=found, allowed=allowed, hint=hint or None)


def _kind_of(config: FunctionConfig) -> str:
    """Older programs give the settings alone; those that train say how."""
    return "train" if any(name.startswith("train.") for name in config.settings) else "predict"


def _check_config(config: object) -> None:
    if config is not None and not isinstance(config, FunctionConfig):
        raise _wrong_use(
            f"function_config={config!r:.60}", "settings made by flow.function_config()"
        )


def defined_jobs(session: Session | None = None) -> Iterator[JobFunction]:
    """The jobs of a session, in the order of their definition."""
    yield from (session or default_session()).jobs
