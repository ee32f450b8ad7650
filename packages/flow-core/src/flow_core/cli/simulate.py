"""``flow plan --simulate``: the simulated step of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flow_core.base.formats import trace_file
from flow_core.cli.progress import Progress, progress
from flow_core.cli.render import show
from flow_core.cli.scripts import job_of

if TYPE_CHECKING:  # load the compiler only if needed
    from flow_core.compiler.request import Compiled
    from flow_core.costs.model import CostModel
    from flow_core.costs.task_costs import TaskCosts
    from flow_core.frontend.job.function import AnyJob
    from flow_core.observe.simulator.report import Simulated
    from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``flow plan --simulate``."""

    # The topology file; None for the one of FLOW_TOPOLOGY, or the default model.
    topology: str | None = None
    # The machines and the devices of each; None for those of the program.
    devices: tuple[int, int] | None = None
    processes: int = 1  # the number of processes over which the devices of the host are distributed
    trace: str | None = None  # the file of the trace to write, if any
    as_json: bool = False  # whether to print JSON


def devices_of(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> tuple[int, int] | None:
    """Return the machines and the devices of each that an option such as "128x8" names."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not MACHINESxDEVICES, such as 128x8", ctx, option)
    return int(match[1]), int(match[2])


def run(target: str, args: Sequence[str], options: Options) -> None:
    """Simulate a step of a job, and print the report."""
    if options.topology is not None:
        os.environ["FLOW_TOPOLOGY"] = options.topology
    with progress() as show_progress:
        found = simulated(job_of(target, args), options, show_progress)
    if options.trace is not None:
        from flow_core.observe.simulator.report import trace_events

        trace_file.write(Path(options.trace), trace_events(found))
    if options.as_json:
        click.echo(found.to_json())
        return
    show(found.tables())
    if options.trace is not None:
        click.echo(f"{options.trace}: open it in https://ui.perfetto.dev")


def simulated(job: AnyJob, options: Options, show_progress: Progress) -> Simulated:
    """Compile a job, measure its kernels if the cost model asks for that, and simulate a step."""
    from flow_core.costs.clock import simulate_step
    from flow_core.costs.task_costs import TaskCosts
    from flow_core.observe.simulator.memory import memory_of
    from flow_core.observe.simulator.report import Simulated
    from flow_core.observe.simulator.what_if import what_if

    session = job.active_session()
    classes: tuple[Device, ...] | None = None
    if options.devices is not None:
        machines, each = options.devices
        session.resources.machine_num = machines
        session.resources.gpu_device_num = session.resources.cpu_device_num = each
        classes = ()
    show_progress(f"tracing and compiling job {job.name!r}")
    if options.processes > 1 and classes is None:  # processes share no memory
        classes = tuple(arena.device for arena in job.compile().plan.arenas)
    compiled = job.compile() if classes is None else job.compile_classes(*classes)
    recording = compiled.request.options.recording
    costs = TaskCosts(compiled.plan, session.registry.ops, session.costs, recording)
    if not compiled.physical.is_part and wants_measured(session.costs):
        costs = replace(costs, model=with_kernels(job, compiled, costs, show_progress))
    show_progress("simulating")
    step = simulate_step(costs, options.processes)
    cases = what_if(step, options.processes, lambda: job.compile_scaled(2, classes).plan)
    count = sum(map(len, compiled.physical.classes)) or len(compiled.plan.arenas)
    return Simulated(step, memory_of(step), tuple(cases), options.processes, count)


def wants_measured(model: CostModel) -> bool:
    """Return whether kernels are measured: in the default model, and where the file says so."""
    from flow_core.costs.model import DEFAULT

    return model.measures or model == DEFAULT


def with_kernels(
    job: AnyJob, compiled: Compiled, costs: TaskCosts, show_progress: Progress
) -> CostModel:
    """Return the cost model with the measured kernels of a job; measure those not kept on disk."""
    from flow_core.comm.exchange import BOXING
    from flow_core.costs.kept_kernels import keep_kernels, read_kernels
    from flow_core.observe.simulator.measured_kernels import measured_kernels

    registry = job.active_session().registry
    hosted = [t for t in costs.plan.tasks if t.type != BOXING and costs.is_hosted(t.device)]
    wanted = {costs.key(task) for task in hosted}
    known = read_kernels(registry)
    if not wanted <= known.keys():
        measured = measured_kernels(job, compiled, costs, show_progress)
        keep_kernels(registry, measured)
        known = {**known, **measured}
    kernels = {key: known[key] for key in sorted(wanted) if key in known}
    return replace(costs.model, kernels=kernels)
