"""Recorded steps that run again: on the devices of the program, on others, and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from flow_core.base.arrays import Array
from flow_core.base.errors import FlowError, ReplayError, nearest
from flow_core.base.formats.recorded_steps import RecordedStep, Recording
from flow_core.compiler.request import Compiled
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.function import AnyJob
from flow_core.frontend.job.host_fallback import compile_with_fallback
from flow_core.frontend.trace.move import moved
from flow_core.ir.graph import Value
from flow_core.observe.isolated_run import Variables, bound, same_bits
from flow_core.observe.oracle import local_values
from flow_core.observe.parts import assemble
from flow_core.plan import Plan
from flow_core.runtime.captured import CapturingExecutable
from flow_core.runtime.executable import Executable


@dataclass(frozen=True, slots=True)
class ReplayedOp:
    """An op of a replayed step."""

    name: str
    type: str
    line: str
    outputs: tuple[Array, ...]


@dataclass(frozen=True, repr=False)
class Replay:
    """A step that ran again, with the values of its ops.

    ``replay["loss"]`` is the first result of op ``loss``, ``replay["split:1"]`` the second one of
    op ``split``; fed arrays and variables have the names of their ops, too.
    """

    job: str
    step: int
    ops: tuple[ReplayedOp, ...]  # the ops, in the order in which they ran
    start: Mapping[str, Array]  # the fed arrays, and the variables before the step
    # The variables after it; empty if values are kept until an op only.
    after: Mapping[str, Array] = field(default_factory=dict)
    results: tuple[Array, ...] = ()
    # Whether the recorded results have the same bits; None if none was recorded.
    same: bool | None = None
    error: str = ""  # the error with which the step failed, if it did

    def __getitem__(self, name: str) -> Array:
        """Return the value of an op; raise `ReplayError` if no op has that name."""
        results = {op.name: op.outputs for op in self.ops}
        results |= {start: (value,) for start, value in self.start.items()}
        found = {op: outputs[0] for op, outputs in results.items() if outputs}
        for op, outputs in results.items():
            found |= {str(Value(op, i)): value for i, value in enumerate(outputs)}
        if name not in found:
            raise unknown_op(f"reading {name!r} of step {self.step}", name, self.names)
        return found[name]

    def __repr__(self) -> str:
        return f"<step {self.step} of job {self.job!r} with the values of {len(self.ops)} ops>"

    @property
    def names(self) -> list[str]:
        """The names that have values."""
        return [*self.start, *(op.name for op in self.ops)]


def unknown_op(attempted: str, name: str, names: Sequence[str]) -> ReplayError:
    """Return the error for the name of an op that the step has not."""
    return ReplayError(
        attempted,
        found=f"no op of that name among {len(names)}",
        allowed="the name of an op, as `flow replay` prints it",
        hint=nearest(name, names) or None,
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """The first op whose results differ in two runs of a step."""

    op: ReplayedOp  # in the first run
    output: int  # the number of the result that differs
    count: int  # the number of elements that differ
    largest: float | None  # largest difference; None for numbers of other types than floating ones
    equal: int  # the number of ops before it, which have the same bits


def position_of(recording: Recording, job: str, step: int) -> int:
    """Return the position of a step in a recording.

    Args:
        step: the number of the step, or a negative number that counts from the last one.

    Raises:
        ReplayError: the step was not recorded.
    """
    own = [i for i, s in enumerate(recording.steps) if s.job == job]
    numbers = [recording.steps[i].step for i in own]
    if step < 0 and -step <= len(own):
        return own[step]
    if step in numbers:
        return own[numbers.index(step)]
    jobs = dict.fromkeys(s.job for s in recording.steps)
    raise ReplayError(
        f"replaying step {step} of job {job!r}",
        found=f"steps {numbers[0]} to {numbers[-1]}" if own else f"steps of {', '.join(jobs)}",
        allowed=f"one of these, or -1 to -{len(own)}" if own else "the name of one of these jobs",
    )


def job_named(jobs: Iterable[AnyJob]) -> Callable[[str], AnyJob]:
    """Return a function that returns the last of some jobs that has a name.

    The function raises `ReplayError` if no job has it.
    """
    found = {job.name: job for job in jobs}

    def named(name: str) -> AnyJob:
        if name not in found:
            raise ReplayError(
                f"replaying a step of job {name!r}",
                found="no job of that name in the program",
                allowed=", ".join(found) or "a program with the recorded jobs",
                hint=nearest(name, found) or None,
            )
        return found[name]

    return named


def variables_before(
    recording: Recording, position: int, jobs: Callable[[str], AnyJob]
) -> dict[str, Array]:
    """Run the steps before a step, and return the variables that it started with."""
    start = max(at for at in recording.variables if at <= position)
    values = recording.variables[start]
    variables: Variables | None = None
    executables: dict[tuple[str, tuple[tuple[int, ...], ...]], Executable] = {}
    layouts: dict[str, TensorLayout] = {}
    for recorded in recording.steps[start:position]:
        job = jobs(recorded.job)
        key = recorded.job, tuple(x.shape for x in recorded.feeds)
        variables = variables or Variables(job.active_session(), values)
        if key not in executables:
            compiled = _compiled(job, recorded, layouts=layouts)
            layouts.update(compiled.variables)
            executables[key] = bound(job.active_session(), compiled.plan, variables, Executable)
        executables[key].step[...] = recorded.step
        executables[key].run(recorded.feeds)
    return {**values, **(variables.values() if variables else {})}


def replay_step(
    job: AnyJob,
    recorded: RecordedStep,
    values: Mapping[str, Array],
    until: str | None = None,  # the op after which no values are kept; None for all ops
    devices: int | None = None,  # the number of devices to which the job is moved; None for its own
) -> Replay:
    """Run a step again, and keep the values of its ops.

    The step runs twice: by the plan of the job, whose results are compared with the recorded ones,
    and by a plan in which no ops are fused and devices share no memory, whose values are kept.

    Raises:
        ReplayError: the step has no op of that name.
    """
    session = job.active_session()
    compiled = _compiled(job, recorded, devices, apart=True)
    last = None if until is None else _last(compiled, until)
    variables, kind = Variables(session, values), partial(CapturingExecutable, last=last)
    executable = bound(session, compiled.plan, variables, kind)
    executable.step[...] = recorded.step
    error = _run(executable, recorded)
    feeds = dict(zip(_inputs(compiled), recorded.feeds, strict=False))
    ops = tuple(_ops(compiled, executable.values, until))
    after = {} if until or error else variables.values()
    found = Replay(job.name, recorded.step, ops, {**feeds, **values}, after, error=error)
    if error or devices is not None:
        return found
    plan = _compiled(job, recorded).plan
    real = bound(session, plan, Variables(session, values), Executable)
    real.step[...] = recorded.step
    results = real.run(recorded.feeds)
    return replace(found, results=results, same=_same(recorded, results))


def first_difference(one: Replay, other: Replay) -> Difference | None:
    """Return the first op of the first run whose results have other bits in the second run.

    Ops that only one of the two plans has are skipped.  If all ops are equal, the variables after
    the step are compared.
    """
    others = {op.name: op.outputs for op in other.ops}
    equal = 0
    for op in one.ops:
        for k, (a, b) in enumerate(zip(op.outputs, others.get(op.name, ()), strict=False)):
            if not same_bits(a, b):
                return _difference(op, k, a, b, equal)
        equal += op.name in others
    for name, array in one.after.items():
        if name in other.after and not same_bits(array, other.after[name]):
            variable = ReplayedOp(name, "variable", "", (array,))
            return _difference(variable, 0, array, other.after[name], equal)
    return None


def _difference(op: ReplayedOp, output: int, a: Array, b: Array, equal: int) -> Difference:
    if a.shape != b.shape:
        return Difference(op, output, max(a.size, b.size), None, equal)
    differing = (a != b) & ~((a != a) & (b != b))
    largest = None
    if a.dtype.kind not in "biuSUO":
        wide = abs(a[differing].astype("float64") - b[differing].astype("float64"))
        largest = float(wide.max(initial=0.0))
    return Difference(op, output, int(differing.sum()), largest, equal)


def _run(executable: Executable, recorded: RecordedStep) -> str:
    """Run a step; return the error of a step that failed when it was recorded, too."""
    try:
        executable.run(recorded.feeds)
    except FlowError as error:
        if recorded.results is not None:
            raise
        return str(error)
    return ""


def _same(recorded: RecordedStep, results: Sequence[Array]) -> bool | None:
    if recorded.results is None:
        return None
    pairs = [(a, b) for a, b in zip(recorded.results, results, strict=False) if a is not None]
    return all(same_bits(a, b) for a, b in pairs) if pairs else None


def _compiled(
    job: AnyJob,
    recorded: RecordedStep,
    devices: int | None = None,  # the number of devices to which it is moved
    apart: bool = False,  # whether each op is a task of its own, and devices share no memory
    layouts: Mapping[str, TensorLayout] | None = None,  # layouts of variables that other jobs use
) -> Compiled:
    """Compile a job for a step."""
    variant = job.traced_with(job.config, recorded.feeds)
    build = variant.traced.build if devices is None else moved(variant.traced.build, devices)
    request = compile_request(build, variant.fetches.values, variant.traced.inputs)
    limits = replace(request.limits, memory=lambda _: None)
    request = replace(request, limits=limits)
    if layouts:
        request = replace(request, layouts={**request.layouts, **layouts})
    if apart:
        settings = {**request.settings, "check_finite": "all"}  # which fuses no ops
        request = replace(request, settings=settings, share_replicas=False, shared={})
    return compile_with_fallback(request)


def _inputs(compiled: Compiled) -> list[str]:
    """Return the names of the fed inputs, without those of later micro-batches."""
    parts = compiled.plan.micro_batches
    return [*compiled.request.inputs] if parts == 1 else [*compiled.inputs[::parts]]


def _last(compiled: Compiled, until: str) -> int:
    """Return the position of the last task of an op."""
    plan: Plan = compiled.plan
    names = [str(compiled.graph.origin(task.op).unsharded) for task in plan.tasks]
    found = [i for i, name in enumerate(names) if name == until]
    if not found:
        raise unknown_op(f"replaying job {plan.job!r} until {until!r}", until, names)
    return found[-1]


def _ops(
    compiled: Compiled, values: Mapping[str, Array], until: str | None
) -> Iterator[ReplayedOp]:
    """Yield the ops whose values were kept, as ops of the whole tensors."""
    physical = compiled.physical
    graph = compiled.optimized_logical if physical.layouts else compiled.graph
    names = list(graph.ops)
    if until is not None and until in graph.ops:
        names = names[: names.index(until) + 1]
    for name in names:
        outputs: list[Array] = []
        for index, type_ in enumerate(graph.types[name]):
            value = Value(name, index)
            layout = physical.layouts.get(value)
            parts: Sequence[Value] = [value]
            if layout is not None:
                parts = physical.passed.get(value) or local_values(graph, value, layout)
            arrays = [values[f"{p.op}:{p.index}"] for p in parts if f"{p.op}:{p.index}" in values]
            if len(arrays) < len(parts) or not arrays:
                break
            whole = arrays[0] if layout is None else assemble(layout, type_.shape, arrays).array
            outputs.append(whole)
        if outputs:
            line = graph.lines.get(name)
            yield ReplayedOp(name, graph.ops[name].type, str(line or ""), tuple(outputs))
