"""``flow verify --resume``: a train job is saved on some devices and resumed on others.

One run trains without interruption, and saves a checkpoint halfway.  For each number of devices,
two runs continue from there: one loads the checkpoint, the other one gets the same values in
memory.  Batches of fed arrays are drawn for the step that the job's counter names, so a wrong
counter loses or repeats samples; of jobs that read their data themselves, the records are compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from flow_core.base.errors import JobError
from flow_core.checkpoint import store
from flow_core.compiler.request import Compiled
from flow_core.frontend.job.function import AnyJob
from flow_core.frontend.session.default import clear_default_session
from flow_core.frontend.trace.move import device_count, moved
from flow_core.ir.graph import Value
from flow_core.observe.feeds import draw_feeds, whole_batches
from flow_core.observe.isolated_run import same_bits
from flow_core.observe.rounding import allowed, drift
from flow_core.observe.tables import Row, Table

State = Mapping[str, Any]
"""The values of variables, by name."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run that continues from the checkpoint."""

    devices: int
    start: int  # the step at which the job's counter says that it continues
    state: bool  # whether all variables have the bits that were saved
    samples: bool  # whether its steps get the batches of the uninterrupted run
    # Whether its results and final variables have the bits of a run that continues on the same
    # devices without the checkpoint; on as many devices as the first run, also those of the
    # uninterrupted run.
    same: bool
    # The largest difference of the first step's results from those of the uninterrupted run,
    # relative to the largest element.
    drift: float
    ok: bool  # whether all this holds, and rounding explains the drift


@dataclass(frozen=True, slots=True)
class ResumeMatrix:
    """The runs of a job that continue from a checkpoint."""

    job: str
    line: str  # of the job's definition
    devices: int  # the number of devices on which the checkpoint was saved
    steps: int  # the number of steps before the checkpoint, and after it
    runs: tuple[Resumed, ...]  # a run for each number of devices

    @property
    def ok(self) -> bool:
        """Whether all runs continue as if nothing had happened."""
        return all(run.ok for run in self.runs)

    def to_json(self) -> str:
        return json.dumps({"ok": self.ok, **asdict(self)}, indent=2)


@dataclass(slots=True)
class _Run:
    """A part of a training run: for each step, the digest of its batch, and its results."""

    samples: list[str]
    results: list[Sequence[Any]]
    final: State


def resume_matrix(
    job: AnyJob,
    devices: int,
    others: Sequence[int],
    *,
    steps: int = 2,  # the number of steps before the checkpoint, and after it
    seed: int = 0,
    progress: Callable[[str], object] = lambda _: None,
) -> ResumeMatrix:
    """Train a job on some devices, save it, and resume it on other numbers of devices.

    The default session is cleared, and the job is compiled again for each run.

    Raises:
        JobError: the job does not train.
    """
    if job.prepare().build.kind != "train":
        raise JobError(
            f"resuming job {job.name!r}",
            at=job.line,
            found=f"a job of type {job.kind!r}",
            allowed='a job of type "train", whose checkpoint has its step',
        )
    trials = _Trials(job, steps, seed)
    with TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint")
        progress(f"training on {devices} devices")
        trials.start(devices)
        trials.run()
        saved = trials.save(path)
        after = trials.run()
        runs = []
        for count in others:
            progress(f"resuming on {count} devices")
            trials.start(count)
            trials.session.assign(saved)
            plain = trials.run()
            trials.start(count)
            trials.load(path)
            start, loaded = job.step, trials.state()
            found = trials.run()
            same = _same(found, plain) and (count != devices or _same(found, after))
            apart = max(map(drift, found.results[0], after.results[0]), default=0.0)
            limit = allowed(chain.from_iterable(trials.compiled.logical.types.values()))
            state, samples = _equal(loaded, saved), found.samples == after.samples
            ok = state and samples and same and start == steps and apart <= limit
            runs.append(Resumed(count, start, state, samples, same, apart, ok))
        clear_default_session()
    return ResumeMatrix(job.name, str(job.line or ""), devices, steps, tuple(runs))


class _Trials:
    """A job that each run traces and compiles again, in a session of its own."""

    def __init__(self, job: AnyJob, steps: int, seed: int) -> None:
        self.job, self.steps, self.seed = job, steps, seed

    @property
    def compiled(self) -> Compiled:
        """The job, compiled for the devices of the present run."""
        return self.job.compile()

    @property
    def session(self) -> Any:
        return self.job.active_session()

    def start(self, devices: int) -> None:
        """Compile the job for a number of devices, in a new session."""
        clear_default_session()
        build = self.job.prepare().build
        if devices != device_count(build):
            build.builder = moved(build, devices).builder
        ops = self.session.registry.ops
        sources = [
            Value(name, i)
            for name, op in build.builder.ops.items()
            if ops[op.type].host
            for i, type_ in enumerate(build.builder.types[name])
            if not type_.dtype.is_object
        ]
        self.shown = len(self.job.results)
        self.job.results.extend(sources)
        self.job.executable()

    def run(self) -> _Run:
        """Run some steps; each gets the batch of the step that the job's counter names."""
        run = _Run([], [], {})
        for _ in range(self.steps):
            rng = np.random.default_rng([self.seed, self.job.step])
            drawn = draw_feeds(self.compiled.optimized_logical, self.compiled.inputs, rng)
            feeds = whole_batches(drawn, self.compiled.plan.micro_batches)
            results = self.job.executable().run(feeds)
            run.samples.append(_digest([*feeds, *results[self.shown :]]))
            run.results.append(results[: self.shown])
        run.final = self.state()
        return run

    def state(self) -> State:
        return {name: self.session.value(name) for name in self.session.stored()}

    def save(self, path: Path) -> State:
        """Write a checkpoint, and return what it should have."""
        state = self.state()
        store.save(path, state, self.session.registry.formats.values())
        return state

    def load(self, path: Path) -> None:
        formats = self.session.registry.formats.values()
        self.session.assign({**store.load(path, formats, types=self.session.types())})


def _digest(arrays: Sequence[Any]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _equal(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


def _same(a: _Run, b: _Run) -> bool:
    """Return whether the results and final variables of two runs have the same bits."""
    pairs = ((x, y) for one, other in zip(a.results, b.results, strict=True)
             for x, y in zip(one, other, strict=True))  # fmt: skip
    return all(same_bits(x, y) for x, y in pairs) and _equal(a.final, b.final)


# --------------------------------------------------------------------------------------- report

COLUMNS = ("devices", "goes on at", "variables", "samples", "further steps", "first step", "")


def resume_tables(found: ResumeMatrix) -> Iterator[Table]:
    """Yield the table that ``flow verify --resume`` prints."""
    title = (
        f"job {found.job!r} at {found.line}: {found.steps} steps on {found.devices} devices, "
        f"a checkpoint, {found.steps} further steps"
    )
    yield Table(title, COLUMNS, tuple(_row(found, run) for run in found.runs))


def _row(found: ResumeMatrix, run: Resumed) -> Row:
    bits = "of the same run" if run.devices == found.devices else "as without a checkpoint"
    return (
        str(run.devices),
        f"step {run.start}",
        "same bits" if run.state else "OTHER",
        "each once" if run.samples else "LOST OR TWICE",
        f"bits {bits}" if run.same else "OTHER BITS",
        "same bits" if not run.drift else f"{run.drift:.1e} apart",
        "ok" if run.ok else "WRONG",
    )
