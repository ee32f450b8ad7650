"""``flow fit``: the memory of a job's step, and the forms of the job that fit into a device.

The forms are those of `flow_core.frontend.job.forms`, whether or not the program allows them.  All
plans are for devices that share no memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from flow_core.base.errors import JobError
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.forms.form import Form
from flow_core.frontend.job.forms.search import Search, Steps
from flow_core.frontend.job.forms.source import Source
from flow_core.frontend.job.forms.stages import common_placement
from flow_core.frontend.job.forms.table import KINDS, consent
from flow_core.frontend.job.function import AnyJob
from flow_core.frontend.job.host_fallback import compile_with_fallback
from flow_core.frontend.trace.move import device_count, moved
from flow_core.observe.memory.measured import MeasuredMemory, measure_memory
from flow_core.observe.memory.parts import DeviceMemory, device_memory
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
from flow_core.sharding.topology import Device

SECONDS = 60.0
"""The budget of the search, in nominal seconds."""

LARGEST, REFUSED, FITTING = 3, 3, 8
"""The largest number of rows of a kind of contents, of forms that do not fit, and that do."""


@dataclass(frozen=True, slots=True)
class FormRow:
    """A form of a job."""

    changes: tuple[str, ...]  # the names of its changes; none for the job as it is
    how: tuple[str, ...]  # what to change in the program
    # The settings that allow a job to take this form by itself, if they are needed.
    settings: tuple[str, ...]
    nbytes: int  # the bytes of the device that has the least free memory
    variables: int  # the bytes of the variables of that device
    seconds: float  # the predicted duration of a step
    fits: bool  # whether each device has enough memory
    stages: tuple[str, ...] = ()  # its stages of a pipeline in words

    @property
    def name(self) -> str:
        """The changes in words."""
        return ", ".join(self.changes) or "as it is"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a job fits into its devices."""

    job: str
    kind: str
    line: str  # of the job's definition
    devices: tuple[str, ...]  # the devices of the plan, as text
    limit: int  # the bytes of each device
    memory: DeviceMemory  # the memory of the device that needs most, for the job as it is
    # The job as it is, followed by the other forms: those that fit before those that do not, the
    # fastest first.
    forms: tuple[FormRow, ...]
    notes: tuple[str, ...] = ()  # why some forms were not tried
    # The memory of a step of the job as it is, if it was measured.
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
    job: AnyJob,  # the job function; the job and its session do not change
    limit: int,  # the bytes of each device
    # The number of devices over which to distribute a job that is placed on one device.
    devices: int | None = None,
    progress: Callable[[str], object] = lambda _: None,
    measures: bool = False,  # whether to run a step of the job as it is, on random inputs
) -> Fit:
    """Compile a job for devices with a limited memory; if it does not fit, try other forms.

    Raises:
        JobError: the job is placed on several devices, and `devices` is another number.
    """
    return _Fitting(job, limit, devices, progress).result(measures)


class _Fitting:
    """The search for the forms of a job that fit into devices with a limited memory."""

    def __init__(
        self, job: AnyJob, limit: int, devices: int | None, progress: Callable[[str], object]
    ) -> None:
        self.job, self.limit, self.devices, self.progress = job, limit, devices, progress
        self.variant = job.traced_with(job.config)
        self.source = self._spread(self.variant.source)
        steps = Steps(self._in_form, self._request, compile_with_fallback, show=progress)
        self.search = Search(self.source, steps)

    def result(self, measures: bool) -> Fit:
        build = self.source.build
        self.progress("compiling the job as it is")
        request = self._request(self.source)
        limits = replace(request.limits, memory=lambda _: None)
        request = replace(request, limits=limits, cache=self.search.cache)
        compiled = compile_with_fallback(request)
        self.search.run((), SECONDS)
        first, *_ = self.search.tried
        if not first.fits:
            self.search.run(KINDS, SECONDS, prune=False)
        others = [form for form in self.search.tried if form.levels != first.levels]
        others.sort(key=lambda form: (not form.fits, form.seconds if form.fits else form.nbytes))
        notes = [*self.search.notes]
        if self.search.left:
            notes.append(f"{self.search.left} forms, which would have taken too long to compile")
        return Fit(
            job=self.job.name,
            kind=build.kind,
            line=str(self.job.line or ""),
            devices=tuple(str(arena.device) for arena in compiled.plan.arenas),
            limit=self.limit,
            memory=device_memory(compiled, build, Device.parse(first.device)),
            forms=tuple(map(self._row, (first, *others))),
            notes=tuple(notes),
            measured=self._measured(compiled) if measures else None,
        )

    def _measured(self, compiled: Compiled) -> MeasuredMemory:
        self.progress("running a step on random inputs")
        session = self.job.active_session()
        self.job.prepare()  # declares the variables
        return measure_memory(session, compiled)

    def _in_form(self, parts: int, stages: int) -> Source:
        onto = common_placement(self.source.build) if stages > 1 else None
        return self._spread(self.variant.in_form(parts, stages, onto).source)

    def _spread(self, source: Source) -> Source:
        """Distribute a job that is placed on one device over several devices."""
        used = device_count(source.build)
        if self.devices is None or self.devices == used:
            return source
        if used > 1:
            raise JobError(
                f"fitting job {self.job.name!r} into {self.devices} devices",
                at=self.job.line,
                found=f"a job that is placed on {used} devices",
                allowed=f"--devices {used}, or a job on one device",
            )
        return replace(source, build=moved(source.build, self.devices))

    def _request(self, source: Source) -> CompileRequest:
        """Return a request in which only accelerators, if there are any, have limits."""
        request = compile_request(source.build, source.values, source.inputs)
        types = {op.placement.device_type for op in request.graph.ops.values()}
        limited = types - {"cpu"} or types

        def memory(device: Device) -> int | None:
            return self.limit if device.type in limited else None

        limits = replace(request.limits, memory=memory, held={})
        return replace(request, share_replicas=False, shared={}, limits=limits)

    def _row(self, form: Form) -> FormRow:
        settings = dict.fromkeys(consent(self.source.build, kind) for kind in form.kinds)
        return FormRow(
            changes=form.changes,
            how=form.how,
            settings=tuple(filter(None, settings)),
            nbytes=form.nbytes,
            variables=form.variables,
            seconds=form.seconds,
            fits=form.fits,
            stages=form.stages,
        )


# --------------------------------------------------------------------------------------- report


def fit_tables(found: Fit, width: int = WIDTH) -> Iterator[Table]:
    """Yield the tables that ``flow fit`` prints, each at most ``width`` characters wide."""
    for table in _tables(found):
        yield fitted(table, width)


def _tables(found: Fit) -> Iterator[Table]:
    memory, first = found.memory, found.forms[0]
    over = memory.nbytes - found.limit
    verdict = f"{count_bytes(abs(over))} {'more than' if over > 0 else 'below'}"
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
    if first.fits and not found.notes:
        return
    fitting = [form for form in found.forms if form.fits]
    refused = [form for form in found.forms[1:] if not form.fits][:REFUSED] or [first]
    columns = ("form", "bytes", "predicted step", "")
    if fitting:
        rows = tuple(_row(form, first) for form in fitting[:FITTING])
        more = len(fitting) - FITTING
        rows += ((f"and {more:,} more", "", "", ""),) if more > 0 else ()
        yield Table("forms that fit, the fastest first", columns, rows)
        yield Table("how to get the first one", (), tuple((text,) for text in _how(fitting[0])))
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


def _how(form: FormRow) -> Iterator[str]:
    yield from form.how
    folder = os.getcwd() + os.sep
    for i, stage in enumerate(form.stages, 1):
        yield f"  stage {i} on {stage.replace(folder, '')}"
    if form.changes:
        allowed = f", once {' and '.join(form.settings)} allows it" if form.settings else ""
        yield f"or none of it: a call of the job takes the fastest form that fits{allowed}"


def _row(form: FormRow, first: FormRow) -> Row:
    slower = 100 * (form.seconds / first.seconds - 1) if first.seconds else 0.0
    return (
        form.name,
        count_bytes(form.nbytes),
        duration(form.seconds),
        f"{slower:+.0f} %" if form.changes else "",
    )
