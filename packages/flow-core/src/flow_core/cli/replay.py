"""``flow replay``: run a recorded step again, and read the values of its ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flow_core.cli.progress import Progress, progress
from flow_core.cli.render import show_report
from flow_core.cli.scripts import job_of

if TYPE_CHECKING:  # load the compiler only if needed
    from flow_core.observe.replay.report import ReplayReport


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``flow replay``."""

    step: int  # the number of the step, or a negative number that counts from the last one
    until: str | None  # the op after which no values are kept; None for all ops
    devices: int | None  # the number of devices on which the step runs once more; None for none
    without: str | None  # the plugin without which it runs once more; None for none
    as_json: bool  # whether to print JSON
    shell: bool  # whether to open a Python shell in which the values can be read


def status(file: str, target: str, args: Sequence[str], options: Options) -> int:
    """Replay a step, print the report, and return the exit status."""
    from flow_core.observe.replay.report import replay_tables

    with progress() as show_progress:
        found = report(file, target, args, options, show_progress)
    show_report(found, replay_tables, options.as_json)
    if options.shell:
        _open_shell(found)
    return 0 if found.ok else 1


def report(
    file: str, target: str, args: Sequence[str], options: Options, show_progress: Progress
) -> ReplayReport:
    """Replay a step and, if the options say so, run it on other devices or without a plugin."""
    from flow_core.base.config import Settings
    from flow_core.base.formats.recorded_steps import read_recording
    from flow_core.frontend.job.function import defined_jobs
    from flow_core.frontend.session.default import open_session_without
    from flow_core.observe.replay.report import ReplayReport
    from flow_core.observe.replay.run import (
        first_difference,
        job_named,
        position_of,
        replay_step,
        variables_before,
    )

    recording, job = read_recording(Path(file)), job_of(target, args)
    position = position_of(recording, job.name, options.step)
    recorded = recording.steps[position]
    show_progress(f"running the steps before step {recorded.step}")
    values = variables_before(recording, position, job_named(defined_jobs()))
    show_progress(f"running step {recorded.step}")
    found = replay_step(job, recorded, values, options.until)
    kept = tuple(s.step for s in recording.steps if s.job == job.name)
    if options.devices is None and options.without is None:
        return ReplayReport(found, kept)
    other = ""
    if options.without is not None:
        other += f" without {options.without}"
        open_session_without((options.without,), Settings.from_env())
        job = job_of(target, args)
    if options.devices is not None:
        other += f" on {options.devices} device{'s' if options.devices > 1 else ''}"
    show_progress(f"running step {recorded.step}{other}")
    again = replay_step(job, recorded, values, options.until, options.devices)
    names = {op.name for op in again.ops}
    compared = sum(op.name in names for op in found.ops)
    return ReplayReport(found, kept, other.strip(), first_difference(found, again), compared)


def _open_shell(found: ReplayReport) -> None:
    """Open a Python shell with the replay as ``replay``."""
    import code

    text = "replay[NAME] is the value of an op, replay.names are the names."
    code.interact(text, local={"replay": found.replay}, exitmsg="")
