"""``flow fit``: the memory of a job's step, and the forms of the job that fit into a device.

A form is the job with changes that trade time for memory: those that the error of a job that does
not fit names (`flow_core.frontend.job.memory_fallback`), and micro-batches.  All plans are for
devices that share no memory.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, combinations

from flow_core.base.errors import (
    CompatibilityWarning,
    FlowError,
    JobError,
    OutOfMemoryError,
    ZeroWeightsWarning,
)
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.frontend.config.function_config import MICRO_BATCHES, micro_batches
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.function import AnyJob
from flow_core.frontend.job.host_fallback import compile_with_fallback
from flow_core.frontend.job.memory_fallback import CHANGES, Change, changed_job, cheapest
from flow_core.frontend.job.variant import Variant
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.frontend.trace.move import device_count, moved
from flow_core.observe.measure import arranged
from flow_core.observe.memory.measured import MeasuredMemory, measure_memory
from flow_core.observe.memory.parts import DeviceMemory, device_bytes, device_memory
from flow_core.observe.summary.op_times import task_seconds
from flow_core.observe.summary.screen import LINE, NAME, WIDTH, place
from flow_core.observe.tables import (
    Row,
    Table,
    count_bytes,
    duration,
    fitted,
    share,
    shortened,
)
from flow_core.plan import Plan
from flow_core.sharding.topology import Device

COUNTS = (2, 4, 8, 16)
"""The numbers of micro-batches that are tried."""

SAVING = 0.05
"""The part of the memory below which more micro-batches save too little to go on."""

LARGEST, REFUSED = 3, 3
"""The largest number of rows of a kind of contents, and of forms that do not fit."""


@dataclass(frozen=True, slots=True)
class Form:
    """A job with some changes.

    Attributes:
        changes: short names of the changes; none for the job as it is.
        how: what to change in the program.
        nbytes: the bytes of the device that needs most.
        variables: the bytes of the variables of that device.
        seconds: the predicted duration of a step.
        fits: whether each device has enough memory.
        price: the factor on the price of memory with which layouts were chosen, as a job does by
            itself that would not fit otherwise.
    """

    changes: tuple[str, ...]
    how: tuple[str, ...]
    nbytes: int
    variables: int
    seconds: float
    fits: bool
    price: float = 1.0

    @property
    def name(self) -> str:
        """The changes in words."""
        chosen = (SMALLER,) if self.price > 1 else ()
        return ", ".join((*self.changes, *chosen)) or "as it is"


SMALLER = "layouts chosen for less memory"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a job fits into its devices.

    Attributes:
        job, kind, line: name, kind and source line of the job.
        devices: the devices of the plan, as text.
        limit: the bytes of each device.
        memory: the memory of the device that needs most, for the job as it is.
        forms: the job as it is, followed by the other forms: those that fit before those that do
            not, the fastest first.
        notes: why micro-batches were not tried.
        measured: the memory of a step of the job as it is, if it was measured.
    """

    job: str
    kind: str
    line: str
    devices: tuple[str, ...]
    limit: int
    memory: DeviceMemory
    forms: tuple[Form, ...]
    notes: tuple[str, ...] = ()
    measured: MeasuredMemory | None = None

    @property
    def ok(self) -> bool:
        """Whether some form fits."""
        return any(form.fits for form in self.forms)

    def to_json(self) -> str:
        """Return everything as JSON text."""
        kinds = {"by_kind": self.memory.by_kind(), "nbytes": self.memory.nbytes}
        data = asdict(self)
        data["memory"] |= kinds
        return json.dumps({"ok": self.ok, **data}, indent=2)


def fit(
    job: AnyJob,
    limit: int,
    devices: int | None = None,
    progress: Callable[[str], object] = lambda _: None,
    measures: bool = False,
) -> Fit:
    """Compile a job for devices with a limited memory; if it does not fit, try other forms.

    Args:
        job: the job function; the job and its session do not change.
        limit: the bytes of each device.
        devices: the number of devices over which to distribute a job that is placed on one device.
        progress: a function that is called with a text before each form.
        measures: whether to run a step of the job as it is, on random inputs.

    Raises:
        JobError: the job is placed on several devices, and `devices` is another number.
    """
    forms = _Forms(job, limit, devices, progress)
    return forms.result(measures)


class _Forms:
    """The forms of a job, as far as they are compiled."""

    def __init__(
        self, job: AnyJob, limit: int, devices: int | None, progress: Callable[[str], object]
    ) -> None:
        self.job, self.limit, self.devices, self.progress = job, limit, devices, progress
        self.notes: list[str] = []
        self.variants = {1: job.traced_with(job.config)}
        self.builds = {1: self._spread(self.variants[1].traced.build)}

    def result(self, measures: bool) -> Fit:
        build = self.builds[1]
        self.progress("compiling the job as it is")
        compiled = self._compiled(self._request(1, build), prices=True)
        first = self._form(compiled, 1, ())
        needed = device_bytes(compiled.plan)
        most = max(self._limited(compiled.plan), key=needed.__getitem__)
        others = [] if first.fits else [*self._others(first)]
        others.sort(key=lambda form: (not form.fits, form.seconds if form.fits else form.nbytes))
        return Fit(
            job=self.job.name,
            kind=build.kind,
            line=str(self.job.line or ""),
            devices=tuple(str(arena.device) for arena in compiled.plan.arenas),
            limit=self.limit,
            memory=device_memory(compiled, build, most),
            forms=(first, *others),
            notes=tuple(self.notes),
            measured=self._measured(compiled) if measures else None,
        )

    def _measured(self, compiled: Compiled) -> MeasuredMemory:
        self.progress("running a step on random inputs")
        session = self.job.active_session()
        self.job.prepare()  # declares the variables
        return measure_memory(session, compiled)

    def _others(self, first: Form) -> Iterator[Form]:
        """Yield the other forms; a set of changes gets more micro-batches until it fits."""
        sets = chain.from_iterable(combinations(CHANGES, n) for n in range(len(CHANGES) + 1))
        for changes in sets:
            form: Form | None = None if changes else first
            for count in COUNTS if form else (1, *COUNTS):
                if (form and form.variables > self.limit) or not self._trace(count):
                    break
                before, form = form, self._try(count, changes)
                if form is None:
                    break
                yield form
                if form.fits or (before and form.nbytes > (1 - SAVING) * before.nbytes):
                    break

    def _try(self, count: int, changes: Sequence[Change]) -> Form | None:
        """Compile a form; return None if the changes are not applicable to the job."""
        changed = changed_job(self.builds[count], changes)
        if changed is None:
            return None
        names = [change.name for change in changes]
        self.progress(f"compiling with {', '.join([*names, f'{count} micro-batches'])}")
        try:
            compiled = self._compiled(self._request(count, changed), prices=count == 1)
        except FlowError:
            return None
        return self._form(compiled, count, changes)

    def _trace(self, count: int) -> bool:
        """Trace the job for a number of micro-batches; return whether its losses are the same."""
        if count in self.variants:
            return True
        parts = micro_batches(self.job.config, self.builds[1].kind)
        if self.notes or self.builds[1].kind != "train":
            return False
        config = self.job.config.copy()
        config.train.num_gradient_accumulation_steps(count * parts)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", CompatibilityWarning)
                warnings.simplefilter("ignore", ZeroWeightsWarning)
                self.variants[count] = self.job.traced_with(config)
        except (FlowError, CompatibilityWarning) as error:
            reason = str(error).splitlines()
            self.notes.append(f"{count * parts} micro-batches: {' '.join(reason[:2])}")
            return False
        self.builds[count] = self._spread(self.variants[count].traced.build)
        return True

    def _spread(self, build: JobBuild) -> JobBuild:
        """Distribute a job that is placed on one device over several devices."""
        used = device_count(build)
        if self.devices is None or self.devices == used:
            return build
        if used > 1:
            raise JobError(
                f"fitting job {self.job.name!r} into {self.devices} devices",
                at=self.job.line,
                found=f"a job that is placed on {used} devices",
                allowed=f"--devices {used}, or a job on one device",
            )
        return moved(build, self.devices)

    def _request(self, count: int, build: JobBuild) -> CompileRequest:
        variant: Variant = self.variants[count]
        request = compile_request(build, variant.fetches.values, variant.traced.inputs)
        return replace(request, share_replicas=False, shared={})

    def _compiled(self, request: CompileRequest, prices: bool) -> Compiled:
        """Compile a form; with `prices`, by layouts of less memory if that makes it fit."""
        unlimited = replace(request, limits=replace(request.limits, memory=lambda _: None))
        compiled = compile_with_fallback(unlimited)
        if not prices or self._fits(compiled.plan):
            return compiled
        limited = set(self._limited(compiled.plan))

        def memory(device: Device) -> int | None:
            return self.limit if device in limited else None

        try:
            return cheapest(replace(request, limits=replace(request.limits, memory=memory)))
        except OutOfMemoryError:
            return compiled

    def _limited(self, plan: Plan) -> list[Device]:
        """Return the devices whose memory is limited: CPUs only if there are no others."""
        devices = [arena.device for arena in plan.arenas]
        return [device for device in devices if device.type != "cpu"] or devices

    def _fits(self, plan: Plan) -> bool:
        needed = device_bytes(plan)
        return all(needed[device] <= self.limit for device in self._limited(plan))

    def _form(self, compiled: Compiled, count: int, changes: Sequence[Change]) -> Form:
        plan = compiled.plan
        needed = device_bytes(plan)
        most = max(self._limited(plan), key=needed.__getitem__)
        (arena,) = (arena.nbytes for arena in plan.arenas if arena.device == most)
        names = [change.name for change in changes]
        how = [change.text for change in changes]
        if count > 1:
            parts = count * micro_batches(self.job.config, self.builds[1].kind)
            names.append(f"{parts} micro-batches")
            how.append(f"function_config.{MICRO_BATCHES}({parts})")
        return Form(
            changes=tuple(names),
            how=tuple(how),
            nbytes=needed[most],
            variables=needed[most] - arena,
            seconds=step_seconds(plan),
            fits=self._fits(plan),
            price=compiled.request.memory_price,
        )


def step_seconds(plan: Plan) -> float:
    """Return the predicted duration of a step whose streams run side by side, in seconds."""
    predicted = dict(enumerate(task_seconds(plan)))
    beside = replace(plan, workers=max(2, len(plan.streams)))
    return max((span.stop for span in arranged(beside, predicted)), default=0.0)


# --------------------------------------------------------------------------------------- report


def fit_tables(found: Fit, width: int = WIDTH) -> Iterator[Table]:
    """Yield the tables that ``flow fit`` prints, each at most ``width`` characters wide."""
    for table in _tables(found):
        yield fitted(table, width)


def _tables(found: Fit) -> Iterator[Table]:
    memory, first = found.memory, found.forms[0]
    over = memory.nbytes - found.limit
    verdict = f"{count_bytes(abs(over))} {'more than' if over > 0 else 'below'}"
    verdict += f", with {SMALLER}" if first.price > 1 else ""
    yield Table(
        f"{found.kind} job {found.job!r} at {place(found.line)} needs "
        f"{count_bytes(memory.nbytes)} on {memory.device}, {verdict} {count_bytes(found.limit)}",
        (), (),
    )  # fmt: skip
    yield Table(
        "memory at the peak of a step",
        ("what", "bytes", "share", "largest", "", "line"),
        tuple(_parts(memory)),
    )
    if found.measured:
        yield Table("measured in a step", MEASURED, tuple(_measured_rows(found.measured)))
    if len(found.forms) == 1 and not found.notes:
        return
    fitting = [form for form in found.forms if form.fits]
    refused = [form for form in found.forms[1:] if not form.fits][:REFUSED]
    columns = ("form", "bytes", "predicted step", "")
    if fitting:
        rows = tuple(_row(form, first) for form in fitting)
        yield Table("forms that fit, the fastest first", columns, rows)
        yield Table("how to get the first one", (), tuple((text,) for text in fitting[0].how))
    else:
        rows = tuple(_row(form, first) for form in refused)
        yield Table("no form that was tried fits; the smallest ones", columns, rows)
    if found.notes:
        yield Table("not tried", (), tuple((note,) for note in found.notes))


MEASURED = ("what", "measured", "predicted", "measured / predicted")


def _measured_rows(found: MeasuredMemory) -> Iterator[Row]:
    pairs = {
        "arenas, as allocated": (found.allocated, found.arenas),
        "resident memory of all devices": (found.resident, found.predicted),
    }
    for what, (measured, predicted) in pairs.items():
        if measured is not None:
            ratio = f"{measured / predicted:.3f}" if predicted else ""
            yield what, count_bytes(measured), count_bytes(predicted), ratio


def _parts(memory: DeviceMemory) -> Iterator[Row]:
    for kind, nbytes in memory.by_kind().items():
        parts = [part for part in memory.parts if part.kind == kind and part.name]
        start = (kind, count_bytes(nbytes), share(nbytes, memory.nbytes))
        if not parts:
            yield (*start, "", "", "")
        for part in parts[:LARGEST]:
            size, name = count_bytes(part.nbytes), shortened(part.name, NAME)
            yield (*start, size, name, shortened(place(part.line), LINE))
            start = ("", "", "")


def _row(form: Form, first: Form) -> Row:
    slower = 100 * (form.seconds / first.seconds - 1) if first.seconds else 0.0
    return (
        form.name,
        count_bytes(form.nbytes),
        duration(form.seconds),
        f"{slower:+.0f} %" if form.changes else "",
    )
