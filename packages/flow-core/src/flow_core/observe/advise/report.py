"""``flow plan --advise``: the changes of a job, ranked by the cost model."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from types import FunctionType

from flow_core.base.errors import CompatibilityWarning, FlowWarning
from flow_core.compiler.limits import needed_bytes
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.compiler.stage_cache import StageCache
from flow_core.costs.clock import simulate_step
from flow_core.costs.task_costs import TaskCosts
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.function import AnyJob
from flow_core.frontend.job.host_fallback import compile_with_fallback
from flow_core.frontend.job.variant import Variant
from flow_core.observe.advise.changes import Change, Program
from flow_core.observe.advise.edits import Edit, edited, functions_of
from flow_core.observe.summary.screen import place
from flow_core.observe.tables import Row, Table, count_bytes, duration

FASTER, SMALLER = 0.005, 0.02
"""The parts of the time, and of the memory or traffic, from which a change is worth naming."""

SHOWN = 12
"""The largest number of changes that are printed."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the cost model says of a plan."""

    seconds: float  # the time of a simulated step
    nbytes: int  # the bytes of the device that needs most
    traffic: int  # the bytes that a step sends between devices


@dataclass(frozen=True, slots=True)
class Option:
    """A change with its numbers."""

    kind: str
    name: str
    edit: Edit  # the line to write
    numbers: Numbers  # of the job with it


@dataclass(frozen=True, slots=True)
class Advice:
    """The ranked changes of a job."""

    job: str
    kind: str
    line: str  # of the job's definition
    model: str
    devices: int
    now: Numbers  # the job as it is
    # The changes that help, the fastest first; then those that only save bytes, the smallest first.
    options: tuple[Option, ...]
    others: tuple[Option, ...]  # the changes that do not help
    # The changes with which the job does not compile, or has another loss, and why.
    refused: tuple[tuple[str, str], ...]

    def to_json(self) -> str:
        """Return everything as JSON text."""
        return json.dumps(asdict(self), indent=2)


def advise(job: AnyJob, progress: Callable[[str], object] = lambda _: None) -> Advice:
    """Compile a job with each change of one line, and rank the changes by their simulated steps.

    All plans are for devices that share no memory.  The job, its session and the program's files do
    not change.
    """
    progress("compiling the job as it is")
    variant, stages = job.traced_with(job.config), StageCache()
    compiled = _compiled(variant, stages)
    find = cache(functions_of)
    now, tried, refused = _numbers(job, compiled), list[Option](), list[tuple[str, str]]()
    for change in Program(job, variant.traced.build, compiled).changes():
        progress(f"compiling with {change.name}")
        try:
            numbers = _numbers(job, _changed(job, change, variant, stages, find))
        except Exception as error:  # noqa: BLE001 - any error of the changed program
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            refused.append((change.edit.code, reason))
        else:
            tried.append(Option(change.kind, change.name, change.edit, numbers))
    helpful = [option for option in tried if _helps(option.numbers, now)]
    helpful.sort(key=lambda option: _rank(option.numbers, now))
    return Advice(
        job=job.name,
        kind=variant.traced.build.kind,
        line=str(job.line or ""),
        model=str(job.active_session().costs),
        devices=len(compiled.plan.arenas),
        now=now,
        options=tuple(helpful),
        others=tuple(option for option in tried if option not in helpful),
        refused=tuple(refused),
    )


def numbers_of(job: AnyJob) -> Numbers:
    """Return the numbers of a job as it is."""
    return _numbers(job, _compiled(job.traced_with(job.config), StageCache()))


def _numbers(job: AnyJob, compiled: Compiled) -> Numbers:
    session, plan = job.active_session(), compiled.plan
    recording = compiled.request.options.recording
    costs = TaskCosts(plan, session.registry.ops, session.costs, recording)
    needed = max(needed_bytes(plan).values())
    return Numbers(simulate_step(costs).seconds, needed, plan.bytes_per_step)


def _compiled(
    variant: Variant,
    stages: StageCache,
    change: Callable[[CompileRequest], CompileRequest] | None = None,
) -> Compiled:
    """Compile a traced job for devices that share no memory, without a limit."""
    traced = variant.traced
    request = compile_request(traced.build, variant.fetches.values, traced.inputs)
    limits = replace(request.limits, memory=lambda _: None)
    request = replace(request, share_replicas=False, shared={}, limits=limits, cache=stages)
    return compile_with_fallback(change(request) if change else request)


def _changed(
    job: AnyJob,
    change: Change,
    variant: Variant,
    stages: StageCache,
    find: Callable[[str], Sequence[FunctionType]],
) -> Compiled:
    """Compile a job with a change."""
    if change.request is not None:
        return _compiled(variant, stages, change.request)
    config = job.config.copy()
    if change.config is not None:
        change.config(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FlowWarning)
        if change.same_loss:
            warnings.simplefilter("error", CompatibilityWarning)
        with edited(change.edit, find) if change.edits_source else nullcontext():
            return _compiled(job.traced_with(config), stages)


def _is_faster(found: Numbers, now: Numbers) -> bool:
    return found.seconds < (1 - FASTER) * now.seconds


def _helps(found: Numbers, now: Numbers) -> bool:
    return _is_faster(found, now) or _saved(found, now) > SMALLER


def _saved(found: Numbers, now: Numbers) -> float:
    """Return the saved part of the memory, or of the traffic if that is larger."""
    pairs = ((found.nbytes, now.nbytes), (found.traffic, now.traffic))
    return max((1 - a / b for a, b in pairs if b), default=0.0)


def _rank(found: Numbers, now: Numbers) -> tuple[bool, float, float]:
    faster = _is_faster(found, now)
    return not faster, found.seconds if faster else found.nbytes, found.seconds


# --------------------------------------------------------------------------------------- report


def advice_tables(found: Advice) -> Iterator[Table]:
    """Yield the tables that ``flow plan --advise`` prints."""
    now = found.now
    devices = f"{found.devices} device{'s' if found.devices > 1 else ''}"
    text = f"{found.kind} job {found.job!r} at {place(found.line)} on {devices}: a step takes "
    text += f"{duration(now.seconds)} and {count_bytes(now.nbytes)} per device,\n"
    text += f"and sends {count_bytes(now.traffic)}, by the cost model {found.model}"
    yield Table(text, (), ())
    shown = found.options[:SHOWN]
    tried = len(found.options) + len(found.others)
    if not shown:
        yield Table(f"none of {tried} changes of one line makes a step faster or smaller", (), ())
        return
    columns = ("", "change", "step", "", "memory", "", "traffic", "")
    rows = tuple(_row(i, option, now) for i, option in enumerate(shown, 1))
    title = f"what helps: {len(found.options)} of {tried} changes of one line"
    yield Table(f"{title}, the fastest first", columns, rows)
    lines = tuple((f"{i} {_where(o.edit)}", o.edit.code) for i, o in enumerate(shown, 1))
    yield Table("the line to write", (), lines)


def _where(edit: Edit) -> str:
    return replace(edit, file=place(edit.file)).where


def _row(number: int, option: Option, now: Numbers) -> Row:
    found = option.numbers
    return (
        str(number),
        option.name,
        duration(found.seconds),
        _difference(found.seconds, now.seconds),
        count_bytes(found.nbytes),
        _difference(found.nbytes, now.nbytes),
        count_bytes(found.traffic),
        _difference(found.traffic, now.traffic),
    )


def _difference(found: float, now: float) -> str:
    return f"{100 * (found / now - 1):+.1f} %" if now else ""
