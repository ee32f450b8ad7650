"""Job functions: ``@flow.global_function`` and what it makes of a Python function."""

from __future__ import annotations

import dis
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from flow_core.dtypes import tensor_buffer
from flow_core.errors import FeedError, JobError, SourceLine, UnsupportedError, nearest, user_line
from flow_core.frontend.blob import BlobDef
from flow_core.frontend.compile import (
    STEP_VARIABLE,
    Compiled,
    add_training,
    compile_graph,
    input_attrs,
    micro_shape,
    updated_variables,
)
from flow_core.frontend.function_config import FunctionConfig, default_placement, default_view
from flow_core.frontend.jobs import JobBuild, Watch, defining, maybe_current_job
from flow_core.frontend.results import FORMS, Pending
from flow_core.frontend.session import Session, default_session
from flow_core.ir import Value
from flow_core.plan import Plan
from flow_core.runtime.executable import Executable
from flow_core.runtime.pipeline import Credit, Step
from flow_core.shapes import num_elements

KINDS = ("train", "predict")


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
        functools.update_wrapper(self, function)
        self.function = function
        self.kind = kind
        self.name = function.__name__
        self.config = (config or FunctionConfig()).copy()
        self.session: Session | None = session or default_session()
        specs = tuple(self.session.registry.annotations.values())
        self.signature: JobSignature = parse_signature(function, specs, job=self.name)
        self._join(self.session)
        self._traced: _Traced | None = None
        self._compiled: Compiled | None = None
        self._executable: Executable | None = None

    @property
    def line(self) -> SourceLine | None:
        """Where the function is defined."""
        return self.signature.at

    def detach(self) -> None:
        """Forgets everything about a session that is closed; the next call starts anew."""
        self.session = None
        self._traced = self._compiled = self._executable = None

    def _session(self) -> Session:
        if self.session is None:
            session = default_session()
            self._join(session)
            self.session = session
        return self.session

    def _join(self, session: Session) -> None:
        """Makes this one of the session's jobs; train jobs keep their state under their names.

        In eager mode programs define a job anew for every step: it takes the place of the last
        one of its name, and goes on with its variables and its step counter.
        """
        if session.eager:
            session.jobs[:] = [job for job in session.jobs if job.name != self.name]
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
        """Traces the function, once; declares its variables."""
        if self._traced is None:
            session = self._session()
            with session.compiling, session.declaring():
                if self._traced is None:
                    self._traced = _trace(self, self._build(session))
        return self._traced

    def _build(self, session: Session) -> JobBuild:
        placement = default_placement(self.config) or session.default_placement
        return JobBuild(self.name, self.kind, session.registry.ops, placement, self.config, session)

    def compile(self) -> Compiled:
        """Traces and compiles, once."""
        if self._compiled is None:
            with self._session().compiling:
                traced = self.prepare()
                self._compiled = self._compiled or compile_graph(
                    traced.build, traced.results, traced.inputs
                )
        return self._compiled

    @property
    def compiled(self) -> Compiled | None:
        """What compilation has given, None before it."""
        return self._compiled

    def plan(self) -> Plan:
        """The physical plan; compiles when that has not happened yet."""
        return self.compile().plan

    def executable(self) -> Executable:
        """The bound plan; compiles and binds when that has not happened yet."""
        if self._executable is None:
            session = self._session()
            with session.compiling:
                self._executable = self._executable or self._bind(session, self.plan())
        return self._executable

    def _bind(self, session: Session, plan: Plan) -> Executable:
        registry = session.registry
        finished = registry.observers("flow_step_finished")
        executable = Executable(
            plan, registry, session.driver, session.variable, finished, registry.comm
        )
        session.check_replicas(self.name, updated_variables(plan, registry.ops))
        executable.step[...] = self._steps_done(session)
        for observer in registry.observers("flow_plan_ready"):
            observer(plan)
        return executable

    def resume(self) -> None:
        """Goes on at the step that the job's counter says: random ops count steps, too."""
        if self._executable is not None and self.session is not None:
            self._executable.step[...] = self._steps_done(self.session)

    def _steps_done(self, session: Session) -> int:
        """The step counter of a train job, which checkpoints keep; else the executable's."""
        if self.kind == "train":
            return int(session.value(STEP_VARIABLE.format(job=self.name))[0])
        return 0 if self._executable is None else int(self._executable.step)

    def device_of(self, variable: str) -> str | None:
        """Text form of the device on which this job has a variable, None when it has not."""
        if self._traced is None:
            return None
        op = self._traced.build.builder.ops.get(variable)
        return None if op is None else str(op.placement.device(0))

    @property
    def peak_in_flight(self) -> int:
        """The most steps that were ever in flight at the same time."""
        return self._traced.credit.peak if self._traced else 0

    # -------------------------------------------------------------------- call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step; what it gives depends on the return annotation."""
        if maybe_current_job() is not None:
            raise JobError(
                f"calling job {self.name!r}",
                at=user_line(2),
                found="the definition of another job",
                allowed="calls outside of job functions",
            )
        executable = self._executable or self.executable()
        traced = self.prepare()
        session = self._session()
        session.pipeline.raise_pending()
        feeds = traced.feed(args, kwargs)
        if traced.blocking:
            step = Step(executable, feeds, traced.credit, traced.watcher)
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

        step = Step(executable, (), traced.credit, both, pending.release)
        pending.attach(step)
        try:
            pipeline.reserve(step)
            step.feeds = traced.stage(feeds)
            pipeline.enter(step)
        except BaseException:  # Ctrl-C most likely
            pipeline.give_up(step)
            raise
        return pending

    def __repr__(self) -> str:
        return f"<{self.kind} job {self.name!r} at {self.line}>"


class _Traced:
    """A traced job: its graph, and how calls are fed and answered."""

    __slots__ = (
        "_lock", "_staged", "_staging", "blocking", "build", "credit", "feeders", "inputs", "job",
        "python", "results", "returned", "watcher",
    )  # fmt: skip

    def __init__(self, job: JobFunction, build: JobBuild) -> None:
        self.job = job.name
        self.build = build
        self.python = job.signature.python
        self.credit = Credit(int(job.config.get("concurrency_width")))
        self.feeders: list[_Feeder] = []
        self.inputs: list[str] = []
        self.results: list[Value] = []
        self.returned = Returned(FetchNone(), ())
        self.watcher: Callable[[Step], None] | None = None
        self.blocking = True
        self._lock = threading.Lock()
        self._staging: list[list[Any]] = []
        self._staged = 0

    def feed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Checked host arrays of one call, in the order of the inputs."""
        if len(args) == len(self.feeders) and not kwargs:
            given: Sequence[Any] = args
        else:
            given = self._bind(args, kwargs)
        arrays: list[Any] = []
        for feeder, value in zip(self.feeders, given, strict=True):
            feeder.collect(value, arrays)
        return arrays

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        unfed = [
            p.replace(default=p.empty) for p in self.python.parameters.values()
        ]  # placeholders given as defaults are no values
        try:
            bound = self.python.replace(parameters=unfed).bind(*args, **kwargs)
        except TypeError as error:
            raise FeedError(
                f"calling job {self.job!r}",
                at=user_line(4),
                found=str(error),
                allowed=f"{self.job}({', '.join(self.python.parameters)})",
            ) from None
        return [bound.arguments[name] for name in self.python.parameters]

    def stage(self, arrays: Sequence[Any]) -> list[Any]:
        """Copies of fed arrays, in the slots of the step that left the pipeline longest ago."""
        with self._lock:
            if len(self._staging) < self.credit.width:
                self._staging.append([np.empty_like(x, order="C") for x in arrays])
            slot = self._staging[self._staged % self.credit.width]
            self._staged += 1
        for target, source in zip(slot, arrays, strict=True):
            np.copyto(target, source)
        return slot

    def arrange(self, step: Step) -> Any:
        """The results of a step in the structure that the job returns."""
        count = len(self.returned.blobs)
        results = (step.results or ())[:count]
        return structure(self.returned.structure, results, lambda kind, x: FORMS[kind](x))


class _Feeder:
    """Takes the argument of one parameter apart into arrays."""

    __slots__ = ("job", "leaves", "name", "shape")

    def __init__(self, job: str, name: str, placeholders: Any) -> None:
        self.job = job
        self.name = name
        self.shape = placeholders

    def collect(self, value: Any, arrays: list[Any]) -> None:
        """Appends the arrays of a fed value."""
        spec = self.shape
        if (
            isinstance(spec, PlaceholderSpec)
            and spec.kind == "numpy"
            and isinstance(value, np.ndarray)
            and value.shape == spec.shape
            and value.dtype == spec.dtype.numpy
        ):
            arrays.append(value)
        else:
            self._walk(spec, value, self.name, arrays)

    def _walk(self, spec: Any, value: Any, path: str, arrays: list[Any]) -> None:
        if isinstance(spec, PlaceholderSpec):
            arrays.append(self._leaf(spec, value, path))
        elif isinstance(spec, Mapping):
            if not isinstance(value, Mapping) or set(value) != set(spec):
                self._fail(path, _describe(value), f"a dict with keys {', '.join(spec)}")
            for key, part in spec.items():
                self._walk(part, value[key], f"{path}[{key!r}]", arrays)
        else:
            if not isinstance(value, list | tuple) or len(value) != len(spec):
                self._fail(path, _describe(value), f"{len(spec)} values")
            for i, part in enumerate(spec):
                self._walk(part, value[i], f"{path}[{i}]", arrays)

    def _tensors(self, spec: PlaceholderSpec, value: Any, path: str) -> Any:
        """Copies of the tensors of a list; each was fed with a leading axis of size 1."""
        if not isinstance(value, list | tuple) or len(value) != 1:
            self._fail(path, _describe(value), "a list with one list for the one device")
        tensors, count = value[0], spec.shape[0]
        if not isinstance(tensors, list | tuple) or len(tensors) != count:
            self._fail(f"{path}[0]", _describe(tensors), f"a list of {count} arrays")
        copies = np.empty(count, object)
        for i, x in enumerate(tensors):
            self._check_tensor(spec, x, f"{path}[0][{i}]")
            copies[i] = x[0].copy()
        return copies

    def _check_tensor(self, spec: PlaceholderSpec, x: Any, path: str) -> None:
        if not isinstance(x, np.ndarray) or x.dtype != spec.dtype.numpy:
            self._fail(path, _describe(x), f"an array of {spec.dtype}")
        bound = spec.shape[1:]
        fits = x.ndim == len(spec.shape) and len(x) == 1 and x.size <= num_elements(bound)
        if not fits:
            allowed = f"shape (1, ...) of rank {len(spec.shape)}, no larger than {(1, *bound)}"
            self._fail(path, f"shape {x.shape}", allowed)

    def _leaf(self, spec: PlaceholderSpec, value: Any, path: str) -> Any:
        if spec.kind == "list_list":
            return self._tensors(spec, value, path)
        depth = 1 if spec.kind == "list" else 0
        for _ in range(depth):
            if not isinstance(value, list | tuple) or len(value) != 1:
                self._fail(path, _describe(value), "a list with one array for the one device")
            value = value[0]
        if not isinstance(value, np.ndarray):
            hint = f"numpy.asarray({path}, numpy.{spec.dtype})"
            self._fail(path, _describe(value), f"a numpy array for {spec}", hint)
        if value.dtype != spec.dtype.numpy:
            hint = f"{path}.astype(numpy.{spec.dtype})"
            self._fail(path, f"an array of {value.dtype}", f"{spec.dtype}", hint)
        if value.shape != spec.shape:
            if depth and _smaller(value.shape, spec.shape):
                raise UnsupportedError(
                    f"feeding {path!r} of job {self.job!r}",
                    at=user_line(2),
                    found=f"shape {value.shape}",
                    allowed=f"shape {spec.shape}, until lists may hold smaller arrays",
                )
            self._fail(path, f"shape {value.shape}", f"shape {spec.shape}")
        return value

    def _fail(self, path: str, found: str, allowed: str, hint: str | None = None) -> None:
        raise FeedError(
            f"feeding {path!r} of job {self.job!r}",
            at=user_line(2),
            found=found,
            allowed=allowed,
            hint=hint,
        )


def _smaller(shape: tuple[int, ...], bound: tuple[int, ...]) -> bool:
    return len(shape) == len(bound) and all(a <= b for a, b in zip(shape, bound, strict=True))


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} and shape {value.shape}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__} {value!r:.60}"


# --------------------------------------------------------------------------- tracing


def _trace(job: JobFunction, build: JobBuild) -> _Traced:
    """Runs the function on placeholders."""
    traced = _Traced(job, build)
    with defining(build, default_view(job.config)):
        arguments = {
            name: _placeholders(traced, name, spec, job.line)
            for name, spec in job.signature.parameters.items()
        }
        returned = job.function(**arguments)
        traced.returned = check_returned(
            job.signature.result,
            returned,
            lambda value: isinstance(value, BlobDef) and value.job is build,
            job=job.name,
            at=_return_line(job.function) or job.line,
            is_dynamic=lambda blob: blob.is_dynamic or blob.dtype.is_object,
        )
    traced.feeders = [
        _Feeder(job.name, name, spec) for name, spec in job.signature.parameters.items()
    ]
    gradients = add_training(build, job.line) if job.kind == "train" else {}
    _collect_results(traced, gradients)
    nothing = isinstance(traced.returned.structure, FetchNone)
    unannotated = job.signature.python.return_annotation is job.signature.python.empty
    traced.blocking = not job.signature.is_async and (nothing or not unannotated)
    return traced


def _placeholders(traced: _Traced, path: str, spec: Any, line: SourceLine | None) -> Any:
    """Placeholder blobs in the structure of a parameter's annotation."""
    if isinstance(spec, PlaceholderSpec):
        shape = micro_shape(traced.build, path, spec.shape, line)
        attrs = input_attrs(shape, spec.dtype.name, spec.batch_axis)
        if spec.kind == "list_list":
            attrs = input_attrs(spec.shape[:1], tensor_buffer.name, 0)
        name = traced.build.builder.unique_name(f"Input_{path}")
        (value,) = traced.build.add("input", (), attrs, name=name, line=line)
        traced.inputs.append(value.op)
        blob = BlobDef(traced.build, value, spec.batch_axis)
        return blob.with_bound(spec.shape, spec.dtype) if spec.kind == "list_list" else blob
    if isinstance(spec, Mapping):
        return {k: _placeholders(traced, f"{path}-{k}", v, line) for k, v in spec.items()}
    parts = [_placeholders(traced, f"{path}-{i}", v, line) for i, v in enumerate(spec)]
    return parts if isinstance(spec, list) else tuple(parts)


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
    values = [blob.value for blob in traced.returned.blobs]
    traced.results = [*values, *(_watched(traced, w, gradients) for w in watches)]
    if watches:
        traced.watcher = functools.partial(_show, watches, len(values))


def _watched(traced: _Traced, watch: Watch, gradients: Mapping[Value, Value]) -> Value:
    if not watch.gradient:
        return watch.value
    if watch.value not in gradients:
        raise JobError(
            f"watch_diff of {watch.value.op!r} in job {traced.job!r}",
            at=watch.line,
            found="a blob that no loss depends on",
            allowed="floating point blobs from which the losses are computed",
        )
    return gradients[watch.value]


def _show(watches: Sequence[Watch], first: int, step: Step) -> None:
    for watch, array in zip(watches, (step.results or ())[first:], strict=True):
        watch.handler(array)


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
        raise JobError(
            "use of global_function",
            at=user_line(2),
            found=f"type={type!r}",
            allowed='"train" or "predict"',
            hint=nearest(str(type), KINDS) or None,
        )
    kind: str = type
    return lambda function: JobFunction(function, kind, function_config)


def _kind_of(config: FunctionConfig) -> str:
    """Older programs give the settings alone; those that train say how."""
    return "train" if any(name.startswith("train.") for name in config.settings) else "predict"


def _check_config(config: object) -> None:
    if config is not None and not isinstance(config, FunctionConfig):
        raise JobError(
            "use of global_function",
            at=user_line(3),
            found=f"function_config={config!r:.60}",
            allowed="settings made by flow.function_config()",
        )


def defined_jobs(session: Session | None = None) -> Iterator[JobFunction]:
    """The jobs of a session, in the order of their definition."""
    yield from (session or default_session()).jobs
