"""The search for the cheapest form of a job that fits into the memory of its devices.

Forms are combinations of the changes of `flow_core.frontend.job.forms.table`.  Each is compiled,
and its step is simulated.  A change that only adds work is made only to a form that does not fit,
whose time is a lower bound on that of the changed form; the other changes are also made to forms
that fit, because they may be faster.  The form with the least bound is compiled next, until no
bound is below the time of the best form that fits (best-first branch and bound), or the budget is
spent.  If none fits by then, changes are added one by one until one does.

Stages of a pipeline are tried after all other forms.  Their bound is the arithmetic of the busiest
device, and without micro-batches that of the longest chain of ops; micro-batches let stages
overlap, and then the bound is what the busiest device of the form without them computes.

Where devices share no memory, forms are compiled for one device of each class; only the best one is
compiled for all devices, and the search goes on if that plan does not fit.

The budget counts work, as that of the SBP selection does, so that the result does not depend on the
speed of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from flow_core.base.errors import CompatibilityWarning, FlowError, OutOfMemoryError
from flow_core.compiler.limits import fits, needed_bytes
from flow_core.compiler.replicas import may_share
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.compiler.searched import Searched
from flow_core.compiler.stage_cache import StageCache
from flow_core.costs.clock import Step, simulate_step
from flow_core.costs.task_costs import TaskCosts
from flow_core.frontend.config.function_config import micro_batches
from flow_core.frontend.job.forms.form import Form, Levels
from flow_core.frontend.job.forms.queue import AS_IT_IS, Entry, Queue
from flow_core.frontend.job.forms.source import Source
from flow_core.frontend.job.forms.stages import common_placement, least_seconds
from flow_core.frontend.job.forms.table import (
    GRIDS,
    KINDS,
    LAYOUTS,
    MICRO,
    STAGES,
    Change,
    Kind,
)
from flow_core.ir.graph import Graph
from flow_core.sharding.topology import Device

SAVING = 0.02
"""The part of the memory that a change must save for others to be added to it."""

TASK = 250_000
"""The nanoseconds of work that the budget counts for compiling and simulating a task or an op."""


@dataclass(frozen=True, slots=True)
class Steps:
    """How a search takes a job through the stages."""

    retrace: Callable[[int, int], Source] | None  # in micro-batches and stages; None if impossible
    request: Callable[[Source], CompileRequest]
    compiled: Callable[[CompileRequest], Compiled]
    agreed: Callable[[Form], Form] = lambda form: form  # with numbers that all processes share
    alone: bool = True  # whether there is a single process
    show: Callable[[str], object] = lambda _: None  # is called with a text before each form


def simulated(compiled: Compiled) -> Step:
    """Simulate a step of a plan whose devices run at the same time."""
    plan, request = compiled.plan, compiled.request
    options = request.options
    costs = TaskCosts(plan, request.registry.ops, options.costs, options.recording)
    return simulate_step(costs, max(1, len(plan.arenas), sum(plan.classes.values())))


class Search:
    """A search for forms of a job; see the module's docstring."""

    def __init__(self, source: Source, steps: Steps) -> None:
        self._steps = steps
        self._sources: dict[tuple[int, int], Source | None] = {(1, 1): source}
        self._as_it_is = source
        self._least: dict[int, tuple[float, float]] = {}  # by stages
        self.cache = StageCache()  # of stages that forms share
        self._parts = micro_batches(source.build.config, source.build.kind)
        self._spent = 0
        self._known: dict[Levels, Form | None] = {}
        self._bound, self._overlaps = 0.0, False
        self.notes: list[str] = []  # why some forms were not tried
        self.left = 0  # the number of forms that were not compiled because the budget was spent

    @property
    def tried(self) -> list[Form]:
        """The forms that were compiled, in that order."""
        return [form for form in self._known.values() if form is not None]

    @property
    def fitting(self) -> list[Form]:
        """The forms that fit, the cheapest first."""
        found = [form for form in self.tried if form.fits]
        return sorted(found, key=lambda form: (form.seconds, form.nbytes))

    def run(self, kinds: Collection[Kind], seconds: float, prune: bool = True) -> Form | None:
        """Return the cheapest form that fits, None if none was found.

        Args:
            kinds: the kinds of changes to combine.
            seconds: the budget, in nominal seconds.
            prune: whether to omit forms that cannot be cheaper than one that fits.
        """
        most, is_pipeline = self._most(kinds), common_placement(self._as_it_is.build) is None
        self._overlaps = is_pipeline or self._parts > 1 or most[KINDS.index(MICRO)] > 0
        queue = Queue(most, self._least_of, is_pipeline)
        self._spent = 0
        while True:
            self._explore(queue, seconds, prune)
            found = next(iter(self.fitting), None)
            if found is None and self.left:
                found = self._first(queue.ladder())
            if found is None:
                return None
            complete = self._completed(found)
            if complete.fits:
                return complete
            queue.follow(complete, adds_work=True, free=True)

    def _explore(self, queue: Queue, seconds: float, prune: bool) -> None:
        """Compile forms until none can be better than the best one, or the budget is spent."""
        later, left = list[Entry](), list[float]()
        while (entry := queue.pop()) is not None:
            best = next((form.seconds for form in self.fitting), inf)
            is_spent = bool(left) or self._spent > seconds * 1e9
            whole = entry.in_stages and not entry.levels[KINDS.index(MICRO)]
            if whole and entry.bound < best < inf and not is_spent:
                entry = replace(entry, bound=max(entry.bound, self._least_of(entry.levels, True)))
            is_beaten = entry.bound >= best and (prune or entry.in_stages)
            if is_beaten or is_spent:
                later.append(entry)
                left += () if is_beaten else (entry.bound,)
            else:
                self._extend(queue, entry)
        for entry in later:
            queue.put(entry)
        self.left = len(left)
        self._bound = min([*left, *(form.seconds for form in self.fitting)], default=0.0)

    def _least_of(self, levels: Levels, traced: bool = False) -> float:
        """Return a lower bound on a form before it is compiled, and on it in micro-batches.

        Args:
            traced: whether to trace the job in its stages, for a larger bound.
        """
        level = levels[KINDS.index(STAGES)]
        if not level:
            return 0.0
        count = STAGES.levels[level - 1].stages
        key = count if traced else 1
        if key not in self._least:
            source = self._traced(1, key)
            self._least[key] = least_seconds(source.build) if source else (0.0, 0.0)
        busy, chain = self._least[key]
        chain *= 1 if traced else count
        return busy * self._parts if self._overlaps else max(busy * self._parts, chain)

    def _completed(self, form: Form) -> Form:
        """Compile a form that fits for all devices; it does not fit if that plan does not."""
        request = None if form.compiled else self.request(form.levels)
        if request is None:
            return form
        try:
            compiled = self._compiled(replace(request, memory_price=form.price))
        except OutOfMemoryError:
            compiled = None
        form = self._steps.agreed(replace(form, fits=compiled is not None, compiled=compiled))
        self._known[form.levels] = form
        return form

    def _most(self, kinds: Collection[Kind]) -> Levels:
        """Return the strongest level of each kind that is applicable to the job."""
        build = self._as_it_is.build
        return tuple(
            next((n for n in range(len(kind.levels), 0, -1) if kind.changed(build, n)), 0)
            if kind in kinds
            else 0
            for kind in KINDS
        )

    def _extend(self, queue: Queue, entry: Entry) -> None:
        """Compile a form, and add those to the queue that may follow it."""
        form, before = self.form(entry.levels), entry.before
        if form is None:
            queue.skip(entry)
            return
        is_new = not self._has_twin(form)
        if form.fits and not is_new:
            return
        saves = before is None or form.nbytes <= (1 - SAVING) * before.nbytes
        free = form.limit is None or form.variables <= form.limit
        queue.follow(form, adds_work=not form.fits and saves and free and is_new, free=free)

    def _has_twin(self, form: Form) -> bool:
        """Return whether an earlier form with other layouts has the same numbers."""
        layouts = (KINDS.index(GRIDS), KINDS.index(LAYOUTS))

        def key(form: Form) -> tuple[object, ...]:
            others = [n for i, n in enumerate(form.levels) if i not in layouts]
            return *others, form.nbytes, form.variables, form.seconds

        known = {key(other) for other in self.tried if other is not form}
        return key(form) in known

    def _first(self, ladder: Iterator[Levels]) -> Form | None:
        """Return the first form that fits."""
        forms = (self.form(levels) for levels in ladder)
        return next((form for form in forms if form is not None and form.fits), None)

    def form(self, levels: Levels) -> Form | None:
        """Compile a form; None if its changes are not applicable to the job."""
        if levels not in self._known:
            self._known[levels] = self._made(levels)
            for beaten in self.fitting[1:]:
                self._known[beaten.levels] = replace(beaten, compiled=None)
        return self._known[levels]

    def _made(self, levels: Levels) -> Form | None:
        changed = self._changed(levels)
        if changed is None:
            return None
        source, made = changed
        names = tuple(self._name(change) for _, change in made)
        self._steps.show(f"compiling {', '.join(names) or 'the job as it is'}")
        prices = max((change.prices for _, change in made), default=(1.0,))
        try:
            form = self._cheapest_price(levels, made, self._steps.request(source), prices)
        except FlowError as error:
            if levels == AS_IT_IS:
                raise
            self._note(names, error)
            return None
        how = tuple(self._text(change) for _, change in made)
        stages = tuple(map(str, source.build.stages)) if levels[KINDS.index(STAGES)] else ()
        return replace(form, changes=names, how=how, stages=stages)

    def request(self, levels: Levels) -> CompileRequest | None:
        """Return the request of a form; None if its changes are not applicable to the job."""
        changed = self._changed(levels) if _are_levels(levels) else None
        return None if changed is None else self._steps.request(changed[0])

    def _changed(self, levels: Levels) -> tuple[Source, list[tuple[Kind, Change]]] | None:
        """Return the job with the changes of a form; None if one of them is not applicable."""
        source, made = self._source(levels), list[tuple[Kind, Change]]()
        if source is None:
            return None
        for kind, level in zip(KINDS, levels, strict=True):
            traced_again = kind in (STAGES, MICRO)
            found = kind.changed((self._as_it_is if traced_again else source).build, level)
            if found is None:
                return None
            source = source if traced_again else replace(source, build=found[0])
            made += ((kind, change) for change in found[1])
        return source, made

    def _cheapest_price(
        self,
        levels: Levels,
        made: Sequence[tuple[Kind, Change]],
        request: CompileRequest,
        prices: Sequence[float],
    ) -> Form:
        """Return a form at the lowest price of memory at which it fits, else at the highest."""

        def at(price: float) -> Form:
            planned, is_fitting, compiled = self._plan(replace(request, memory_price=price))
            found = self._steps.agreed(_form(levels, made, planned, is_fitting, compiled))
            self._spent += found.work
            return found

        *lower, highest = prices
        form = at(highest)
        found = (at(price) for price in lower) if form.fits else ()
        return next((milder for milder in found if milder.fits), form)

    def _plan(self, request: CompileRequest) -> tuple[Compiled, bool, Compiled | None]:
        """Compile a request without its limits; return whether it fits, and the plan to run.

        Where devices share no memory, the plan has only one device of each class, and there is no
        plan to run yet.
        """
        graph, several = request.graph, request.devices is None
        by_class = several and _is_distributed(graph) and not may_share(request, graph)
        if by_class:
            request = replace(request, devices=())
        limits = replace(request.limits, memory=_unlimited)
        found = self._compiled(replace(request, limits=limits))
        found = replace(found, request=replace(found.request, limits=request.limits))
        compiled = found if fits(found.plan, request) else None
        if compiled is None and found.plan.micro_batches > 1 and self._steps.alone:
            with suppress(OutOfMemoryError):  # the order of a pipeline depends on the limits
                found = compiled = self._compiled(request)
        return found, compiled is not None, None if by_class else compiled

    def _compiled(self, request: CompileRequest) -> Compiled:
        """Compile a request, and return the job without the results of other forms."""
        found = self._steps.compiled(replace(request, cache=self.cache))
        return replace(found, request=replace(found.request, cache=None))

    def _source(self, levels: Levels) -> Source | None:
        """Return the job, traced in the stages and micro-batches of a form."""
        micro, stages = (levels[KINDS.index(kind)] for kind in (MICRO, STAGES))
        return self._traced(
            MICRO.levels[micro - 1].micro_batches if micro else 1,
            STAGES.levels[stages - 1].stages if stages else 1,
        )

    def _traced(self, factor: int, stages: int) -> Source | None:
        """Return the job in a multiple of its micro-batches and in stages; None if it has none."""
        key = factor, stages
        if key not in self._sources:
            parts = factor * self._parts
            whole = self._sources.get((factor, 1), self._as_it_is)  # None if it has no such parts
            self._sources[key] = None
            try:
                if self._steps.retrace is not None and whole is not None:
                    self._sources[key] = self._steps.retrace(parts, stages)
            except (FlowError, CompatibilityWarning) as error:
                names = (f"{stages} stages", f"{parts} micro-batches")
                self._note(
                    [n for n, count in zip(names, key[::-1], strict=True) if count > 1], error
                )
        return self._sources[key]

    def _note(self, names: Sequence[str], error: Exception) -> None:
        reason = " ".join(str(error).splitlines()[:2])
        self.notes.append(f"{', '.join(names)}: {reason}")

    def _name(self, change: Change) -> str:
        parts = change.micro_batches * self._parts
        return f"{parts} micro-batches" if change.micro_batches > 1 else change.name

    def _text(self, change: Change) -> str:
        if change.micro_batches > 1 and change.setting is not None:
            return f"function_config.{change.setting[0]}({change.micro_batches * self._parts})"
        return change.text

    def report(self, form: Form, kinds: Collection[Kind]) -> Searched:
        """Return the report on a form that the search among some kinds of changes has found."""
        others = [other for other in self.fitting if other is not form]
        return Searched(
            form=form.name,
            how=form.how,
            levels=form.levels,
            device=form.device,
            nbytes=form.nbytes,
            limit=form.limit or 0,
            seconds=form.seconds,
            kinds=tuple(
                kind.name for kind, most in zip(KINDS, self._most(kinds), strict=True) if most
            ),
            tried=len(self.tried),
            fitting=len(others) + 1,
            left=self.left,
            bound=min(self._bound, form.seconds),
            runner_up=(others[0].name, others[0].seconds) if others else None,
            stages=form.stages,
        )


def _form(
    levels: Levels,
    made: Sequence[tuple[Kind, Change]],
    planned: Compiled,
    is_fitting: bool,
    compiled: Compiled | None,
) -> Form:
    """Return a form with the numbers of its plan, and the plan to run if there is one."""
    plan, limits = planned.plan, planned.request.limits
    needed = needed_bytes(plan, limits.held)
    allowed = {device: limits.memory(device) for device in needed}
    limited = [device for device in needed if allowed[device] is not None] or [*needed]
    step = simulated(planned)
    device = max(limited, key=lambda d: needed[d] - (allowed[d] or 0))
    (arena,) = (arena.nbytes for arena in plan.arenas if arena.device == device)
    return Form(
        levels=levels,
        changes=(),
        how=(),
        kinds=tuple(dict.fromkeys(kind for kind, _ in made)),
        device=str(device),
        nbytes=needed[device],
        variables=needed[device] - arena,
        limit=allowed[device],
        seconds=step.seconds,
        busiest=max((lane.computing for lane in step.lanes), default=0.0),
        fits=is_fitting,
        price=planned.request.memory_price,
        work=TASK * (len(plan.tasks) + len(planned.request.graph)),
        compiled=compiled,
    )


def _unlimited(_: Device) -> None:
    """Return no limit of memory; requests with the same function are equal."""


def _are_levels(levels: Levels) -> bool:
    """Return whether each kind of change has its level."""
    return len(levels) == len(KINDS) and all(
        level in range(len(kind.levels) + 1) for kind, level in zip(KINDS, levels, strict=True)
    )


def _is_distributed(graph: Graph) -> bool:
    return any(op.placement.size > 1 for op in graph.ops.values())
