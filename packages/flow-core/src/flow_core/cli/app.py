"""The commands of ``flow``.

Commands import what they need when they run, so that `flow --help` reads neither ops nor rich.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.exceptions import Exit

import flow_core
from flow_core.base import planning
from flow_core.base.errors import FlowError, raised_by_flow, visible
from flow_core.base.programs import status_of
from flow_core.cli.new import KINDS, create_package
from flow_core.cli.options import (
    FiniteRange,
    at_most_one,
    emulate_gpus,
    job_target,
    json_option,
    output_file,
)
from flow_core.cli.progress import progress
from flow_core.cli.render import show, show_report, width
from flow_core.cli.scripts import (
    document_of,
    job_of,
    measured_of,
    program_error,
    run_script,
    write_page,
)
from flow_core.cli.simulate import devices_of
from flow_core.cli.steps import replay, stragglers

SCRIPT_ARGUMENTS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings of commands whose last arguments are those of a script."""


def device_counts(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> list[int] | None:
    """Return the numbers in a text such as "4:3,2,1"."""
    first, _, others = (text or "").partition(":")
    counts = [first, *others.split(",")]
    if text is not None and not all(count.isdigit() and int(count) for count in counts):
        raise click.BadParameter(f"{text!r} is not such as 4:3,2,1", ctx, option)
    return None if text is None else [*map(int, counts)]


class FlowGroup(click.Group):
    """The commands of core and of plugins.

    Plugins are loaded only to list all commands, or if core lacks the requested command.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands: core's, then those of plugins."""
        from flow_core.cli.plugin_commands import plugin_commands

        own = super().list_commands(ctx)
        return [*own, *sorted(plugin_commands(own))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with a name: core's or, if core has none, a plugin's."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        from flow_core.cli.plugin_commands import plugin_commands

        return plugin_commands(super().list_commands(ctx)).get(cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; print errors of flow, files and the user's program without a traceback.

        Ctrl-C ends it with the status of a shell, since 1 says what a check has found.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            click.echo("Aborted!", err=True)
            ctx.exit(status_of(error))
        except FlowError as error:
            raise click.ClickException(str(error)) from error
        except (click.ClickException, click.Abort, Exit):
            raise
        except Exception as error:
            found = self._explained(error, f"running `flow {ctx.invoked_subcommand}`")
            if found is None:
                raise
            raise click.ClickException(str(found)) from error

    @staticmethod
    def _explained(error: Exception, attempted: str) -> FlowError | None:
        """Convert an error to one of flow; return None for a defect of flow or a closed pipe."""
        if not raised_by_flow(error):
            return program_error(error, attempted)
        if isinstance(error, OSError) and error.errno != errno.EPIPE:
            hint = "name another file, or change its permissions"
            return FlowError(attempted, found=error, allowed="files that can be opened", hint=hint)
        return None


OTHERS = "Also: flow-dist runs programs of several processes, flow-rules checks sharding rules."


@click.group(cls=FlowGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=OTHERS)
@click.version_option(flow_core.__version__, prog_name="flow")
def cli() -> None:
    """Job functions: trace once, compile for many devices, run many times."""


cli.add_command(replay)
cli.add_command(stragglers)


@cli.command()
@click.option("--config", is_flag=True, help="List the attributes of function_config.")
@click.option("--traceback", is_flag=True, help="Show the tracebacks of plugins that failed.")
@json_option()
@click.pass_context
def doctor(ctx: click.Context, config: bool, traceback: bool, as_json: bool) -> None:
    """Show versions, plugins and devices, and diagnose problems.

    Exits with status 1 if there are problems.  A missing device is not a problem.
    """
    from flow_core.base.config import Settings
    from flow_core.cli.doctor import diagnose, settings_table

    if config:
        show([settings_table()])
        return
    commands = click.Group.list_commands(cli, ctx)
    diagnosis = diagnose(Settings.from_env(), commands)
    if as_json:
        click.echo(diagnosis.to_json())
        ctx.exit(1 if diagnosis.problems else 0)
    show(diagnosis.tables)
    for text in diagnosis.tracebacks if traceback else ():
        click.echo(visible(text))
    for problem in diagnosis.problems:
        click.echo(visible(f"problem: {problem}"))
    if not diagnosis.problems:
        click.echo("no problems")
    ctx.exit(1 if diagnosis.problems else 0)


@cli.command(short_help="List the ops, their kernels and sharding rules.")
@click.option("--device", metavar="TYPE", help="Show the kernels that a device type has and lacks.")
@json_option()
@click.argument("name", required=False)
def ops(device: str | None, as_json: bool, name: str | None) -> None:
    """List all ops with their inputs, attributes, types, gradients, SBP signatures and kernels.

    With NAME, show that op in full.  With --device, show which kernels a device type has, which it
    lacks, and which of them the smallest prediction and train jobs need.
    """
    from flow_core.cli.op_reports import report

    found = report(name, device)
    if as_json:
        click.echo(found.to_json())
    else:
        show(found.tables)


@cli.command(context_settings=SCRIPT_ARGUMENTS)
@emulate_gpus
@output_file("--trace", "Write a trace of all steps, which https://ui.perfetto.dev opens.")
@output_file(
    "--record", "Write the last steps to a file, from which `flow replay` runs them again."
)
@click.argument("script", type=click.Path(exists=True))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    emulate_gpus: int | None,
    trace: str | None,
    record: str | None,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT with its ARGS, like python.

    With --trace, the file is written when SCRIPT ends: one track per stream of each device, and
    arrows from each task to the tasks of other streams that read its results.

    With --record, the file is written when SCRIPT ends, also by an error.  It has the last 8 steps,
    or as many as FLOW_REPLAY_STEPS says.
    """
    files = {"FLOW_TRACE": trace, "FLOW_REPLAY": record}
    settings = {name: os.path.abspath(file) for name, file in files.items() if file}
    run_script(script, args, emulate_gpus, settings)


@cli.command(context_settings=SCRIPT_ARGUMENTS, short_help="Run SCRIPT, and find its first NaN.")
@emulate_gpus
@click.option("--nan", is_flag=True, help="Stop at the first task that computes NaN or infinity.")
@click.option("--allow-infinity", is_flag=True, help="Stop only at NaN, not at infinity.")
@output_file("--json", "Write the first such number, its place, op and line to a file.", "file")
@click.argument("script", type=click.Path(exists=True))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def debug(
    emulate_gpus: int | None,
    nan: bool,
    allow_infinity: bool,
    file: str | None,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT with its ARGS, and check what its jobs compute.

    With --nan, the program ends with an error that names the first op that computed a number that
    is not finite, with the step, the device, the source line, and the ranges of the op's inputs.
    The step then runs again from the same feeds and variables, which shows whether the error is
    deterministic.
    """
    if not nan:
        raise click.UsageError("no check is selected: add --nan")
    settings = {"FLOW_CHECK_FINITE": "nan" if allow_infinity else "all"}
    settings |= {"FLOW_CHECK_FINITE_FILE": os.path.abspath(file)} if file else {}
    run_script(script, args, emulate_gpus, settings)


@cli.command(short_help="Show a job's plan, simulate it, check budgets, advise changes.")
@emulate_gpus
@click.option("--full", is_flag=True, help="Print all ops, tasks, buffers and transfers.")
@click.option("--measure", is_flag=True, help="Measure a few steps on random inputs.")
@json_option()
@output_file("--html", "Measure a few steps, and write an interactive page.")
@click.option("--diff", metavar="TARGET", help="Show the differences from JOB to TARGET.")
@click.option(
    "--hints",
    type=click.IntRange(min=0),
    metavar="N",
    default=4,
    show_default=True,
    help="Evaluate the cost without each of the first N SBP hints.",
)
@output_file("--check", "Compare the plans of all jobs with budgets.")
@click.option("--update", is_flag=True, help="Write the budgets of --check in place of comparing.")
@click.option("--markdown", is_flag=True, help="Print the report of --check as Markdown.")
@click.option(
    "--simulate", is_flag=True, help="Show a simulated step: its time, waits and what-if."
)
@click.option("--advise", is_flag=True, help="Report changes of one line, ranked by their effect.")
@click.option(
    "--topology",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Use the cost model that `flow topology` has written.",
)
@click.option(
    "--devices",
    metavar="MxN",
    callback=devices_of,
    help="Use M machines of N devices for ops without a placement.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Use N processes for the devices of the CPU.",
)
@output_file("--trace", "Write the simulated step for https://ui.perfetto.dev.")
@job_target
@click.pass_context
def plan(
    ctx: click.Context,
    emulate_gpus: int | None,
    full: bool,
    measure: bool,
    as_json: bool,
    html: str | None,
    diff: str | None,
    hints: int,
    check: str | None,
    update: bool,
    markdown: bool,
    simulate: bool,
    advise: bool,
    topology: str | None,
    devices: tuple[int, int] | None,
    processes: int,
    trace: str | None,
    target: str,
    args: tuple[str, ...],
) -> None:
    """Show on one screen where the time and memory of a job's step go.

    SCRIPT.PY is imported with its ARGS, and stops before its first call of a job, and before flow
    reads or writes files: nothing is trained.  Define jobs before that line, and not under
    `if __name__ == "__main__"`.  JOB is required if the script has several jobs.  A target may
    also be a file that --json wrote.  Times are predicted.  With --measure and --html, at most six
    steps run on random inputs and separate variables.

    --check exits with status 1 if a number of a plan exceeds its budget: memory, traffic, tasks or
    predicted times.  --advise exits with status 1 if no change makes a step faster or smaller.

    --simulate runs the plan as discrete events, with kernels that are measured once on this
    machine.  With --devices, the script's batch is that of all devices.
    """
    views = {"html": html, "diff": diff, "full": full, "measure": measure}
    at_most_one(check=check, advise=advise, simulate=simulate, **views)
    at_most_one(as_json=as_json, markdown=markdown, update=update, **views)
    if emulate_gpus is not None:
        os.environ["ONEFLOW_EMULATE_GPUS"] = str(emulate_gpus)
    planning.begin()
    if check is not None:
        from flow_core.cli import budgets

        ctx.exit(budgets.status(target, check, args, update, as_json, markdown))
    if update or markdown:
        raise click.UsageError("--update and --markdown belong to --check FILE")
    if not simulate and (devices or trace or processes > 1 or (topology and not advise)):
        raise click.UsageError(
            "--devices, --processes and --trace belong to --simulate, --topology to it or --advise"
        )
    if advise:
        from flow_core.cli import advise as advising

        ctx.exit(advising.status(target, args, topology, as_json))
    if simulate:
        from flow_core.cli.simulate import Options, run

        run(target, args, Options(topology, devices, processes, trace, as_json))
        return
    if html is not None:
        with progress() as show_progress:
            write_page(target, html, hints, args, show_progress)
        click.echo(f"{html}: open it in a browser")
        return
    _print_plan(target, args, hints, diff, full, measure, as_json)


def _print_plan(
    target: str, args: tuple[str, ...], hints: int, diff: str | None, full: bool, measure: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Print a plan as a screen, in full, as JSON, or its difference to another one."""
    from flow_core.observe.diff import diff_tables
    from flow_core.observe.summary.screen import WIDTH, summary_tables
    from flow_core.observe.text import plan_tables

    with progress() as show_progress:
        count = 0 if diff is not None else hints
        found, times = measured_of(target, count, args, show_progress, measure)
        before = None if diff is None else document_of(diff, 0, args, show_progress)
    if as_json:
        click.echo(found.to_json())
    elif before is not None:
        show(diff_tables(before, found))
    else:
        show(plan_tables(found) if full else summary_tables(found, times, width(WIDTH)))


@cli.command(short_help="Show the cost model of plans, or measure one.")
@click.option("--probe", is_flag=True, help="Measure a core and the links, for a topology file.")
@click.option(
    "--machines",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Use this number of machines for the processes that run --probe.",
)
@click.option(
    "--measured",
    is_flag=True,
    help="Use measured kernels in plans, which `flow plan --simulate` keeps.",
)
@output_file("--output", "Write the topology file here; by default, print it.")
def topology(probe: bool, machines: int, measured: bool, output: str | None) -> None:
    """Show the cost model of plans, or measure one for a topology file.

    The cost model is that of the file in FLOW_TOPOLOGY, or the default one.  To measure the links
    between processes, start this command in all of them: flow-dist run -n 2 .venv/bin/flow
    topology --probe --output links.toml.
    """
    from flow_core.cli import topology as command

    if not probe:
        if machines > 1:
            raise click.UsageError("--machines belongs to --probe")
        if output is not None:
            click.echo(command.write(output, command.described(measured)))
        else:
            show(command.tables(command.current()))
        return
    text_of_probe = command.probed(machines, measured)
    if text_of_probe is not None:
        click.echo(command.write(output, text_of_probe))


@cli.command(short_help="Show which forms of a job fit into a device's memory.")
@click.option(
    "--memory",
    required=True,
    metavar="SIZE",
    help="Use this size, such as 80GiB, as the memory of each device.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Emulate N gpus, and distribute a job for one device over them.",
)
@click.option("--measure", is_flag=True, help="Measure the memory of a step on random inputs.")
@json_option("all buffers and forms")
@job_target
@click.pass_context
def fit(
    ctx: click.Context,
    memory: str,
    devices: int | None,
    measure: bool,
    as_json: bool,
    target: str,
    args: tuple[str, ...],
) -> None:
    """Show what a job's step holds in memory, and the fastest forms of the job that fit.

    The devices need not exist, and no step runs unless --measure runs one.  If the job does not
    fit, it is compiled with other layouts, with weights and optimizer states in parts, with
    activations computed again, in micro-batches, and with several of these.  SCRIPT.PY is imported
    as by `flow plan`.  Exits with status 1 if no form fits.
    """
    from flow_core.base.config import read_bytes

    limit = read_bytes(memory, "reading --memory")
    if devices is not None:
        os.environ.setdefault("ONEFLOW_EMULATE_GPUS", str(devices))
    planning.begin()
    from flow_core.observe.memory.fit import fit as fitted
    from flow_core.observe.memory.fit import fit_tables
    from flow_core.observe.summary.screen import WIDTH

    with progress() as show_progress:
        found = fitted(job_of(target, args), limit, devices, show_progress, measure)
    if as_json:
        click.echo(found.to_json())
    else:
        show(fit_tables(found, width(WIDTH)))
    ctx.exit(0 if found.ok else 1)


@cli.command(short_help="Verify a job: all its forms, resumption, waits, precision.")
@click.option(
    "--devices",
    type=click.IntRange(min=2),
    metavar="N",
    help="Distribute a job for one device over N emulated gpus.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    default=2,
    show_default=True,
    help="Compare this number of steps.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="Draw the random inputs with this seed.",
)
@click.option(
    "--resume",
    metavar="N:N,...",
    callback=device_counts,
    help="Resume on other numbers of devices, such as 4:3,2,1.",
)
@click.option("--waits", is_flag=True, help="Prove that tasks do not wait for each other.")
@click.option(
    "--precision",
    type=click.Choice(["bfloat16", "float16"]),
    metavar="TYPE",
    help="Compare bfloat16 or float16 with float64.",
)
@click.option(
    "--tolerance",
    type=FiniteRange(min=0, min_open=True),
    metavar="T",
    default=0.01,
    show_default=True,
    help="Allow this relative error with --precision.",
)
@click.option("--matrix", is_flag=True, help="Compare layouts, device counts, passes, precisions.")
@output_file("--html", "Write the report of --matrix as a page.")
@json_option("the verdict of each op")
@job_target
@click.pass_context
def verify(
    ctx: click.Context,
    devices: int | None,
    steps: int,
    seed: int,
    resume: list[int] | None,
    waits: bool,
    precision: str | None,
    tolerance: float,
    matrix: bool,
    html: str | None,
    as_json: bool,
    target: str,
    args: tuple[str, ...],
) -> None:
    """Run a job's plan and the plan of one device, and compare them op by op.

    Inputs are random.  SCRIPT.PY is imported as by `flow plan`: no step of its own runs, and flow
    writes nothing.  Exits with status 1 if rounding does not explain a difference.  With --waits,
    no step runs.  With --resume, a train job is saved after --steps steps and resumed on other
    numbers of devices; with --precision, the smallest set of ops to keep in float32 is searched.
    """
    at_most_one(resume=resume, precision=precision, matrix=matrix, waits=waits)
    at_most_one(devices=devices, resume=resume, precision=precision)
    if html is not None and not matrix:
        raise click.UsageError("--html belongs to --matrix")
    if ctx.get_parameter_source("tolerance") is ParameterSource.COMMANDLINE and not precision:
        raise click.UsageError("--tolerance belongs to --precision")
    if resume is not None:
        from flow_core.cli.resuming import status

        ctx.exit(status(target, args, resume, steps, seed, as_json))
    if precision is not None:
        from flow_core.cli import precision as command

        ctx.exit(command.status(target, args, precision, tolerance, steps, seed, as_json))
    if matrix:
        from flow_core.cli.matrix import status as matrix_status

        ctx.exit(matrix_status(target, args, devices or 4, steps, seed, html, as_json))
    if devices is not None:
        os.environ.setdefault("ONEFLOW_EMULATE_GPUS", str(devices))
    planning.begin()
    if waits:
        from flow_core.observe.summary.waits import prove_waits, waits_tables

        proofs = prove_waits(job_of(target, args))
        if as_json:
            click.echo(proofs.to_json())
        elif proofs.circle is not None:
            raise proofs.circle
        else:
            show(waits_tables(proofs))
        ctx.exit(0 if proofs.circle is None else 1)
    from flow_core.observe.oracle import verify as compare
    from flow_core.observe.verdict import verdict_tables

    found = compare(job_of(target, args), devices, steps=steps, seed=seed)
    show_report(found, verdict_tables, as_json)
    ctx.exit(0 if found.ok else 1)


@cli.command(short_help="Create a plugin package.")
@click.option(
    "--dir",
    "parent",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Create the package's folder in this one, by default in the working directory.",
)
@click.argument("kind", type=click.Choice(sorted(KINDS)))
@click.argument("name")
def new(parent: Path, kind: str, name: str) -> None:
    """Create an installable package NAME with a plugin of a KIND, its tests and a README."""
    from flow_core.plugins.host import default_registry

    for path in create_package(kind, name, parent, default_registry()):
        click.echo(path)
    click.echo(f"next: cd {parent / name} && uv pip install -e '.[test]' && pytest")
