"""The ``flow-dist`` command."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

import flow_dist
from flow_core.base.errors import FlowError
from flow_core.base.formats.trace_file import merge, rank_files
from flow_core.cli.options import FiniteRange
from flow_dist.control.board import Limits
from flow_dist.launch.mpi_launchers import Host
from flow_dist.launch.supervisor import Job, check_script, supervise


class _Group(click.Group):
    """A group of commands that prints errors for the user without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FlowError as error:
            raise click.ClickException(str(error)) from error


_LIMITS = Limits()

Command = TypeVar("Command", bound=Callable[..., Any])


def _limit(name: str, doc: str) -> Callable[[Command], Command]:
    usual = getattr(_LIMITS, name)
    is_limited = math.isfinite(usual)
    return click.option(
        f"--{name.replace('_', '-')}",
        type=FiniteRange(min=0, min_open=True),
        default=usual if is_limited else None,
        show_default=is_limited or "never",
        metavar="S",
        help=doc,
    )


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(flow_dist.__version__, prog_name="flow-dist")
def main() -> None:
    """Several processes and hosts for flow."""


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "size", type=click.IntRange(min=1), metavar="N", help="Start N processes.")
@click.option("--hosts", default="", metavar="A:2,B:2", help="Start processes on these hosts.")
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Restart the program at most N times after failures.",
)
@click.option(
    "--least",
    type=click.IntRange(min=1),
    metavar="N",
    help="Continue with at least N processes when hosts are lost.",
)
@click.option("--address", metavar="A", help="Let the processes reach this host at address A.")
@click.option("--agent", metavar="PROGRAM", help="Reach other hosts by PROGRAM instead of ssh.")
@click.option("--mpiexec", metavar="PROGRAM", help="Start the processes by this launcher.")
@click.option("--ray", is_flag=True, help="Start the processes on this host's Ray cluster.")
@click.option("--each", default="", metavar="CPU=1,GPU=1", help="Reserve these for each process.")
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a trace of all steps of all ranks, which https://ui.perfetto.dev opens.",
)
@click.option("--nan", is_flag=True, help="Stop at the first task that computes NaN or infinity.")
@click.option(
    "--stragglers",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write measured times of all ranks, which `flow stragglers` shows, and name slow ranks.",
)
@_limit("beat", "Send a heartbeat every S seconds.")
@_limit("silence", "Count a process as lost after S seconds without a heartbeat.")
@_limit("exchange", "Let one exchange between processes take at most S seconds.")
@_limit("start", "Let all processes join, and reach their first job, within S seconds.")
@_limit("stall", "Report all positions after S seconds without a finished step.")
@_limit("stall_limit", "Stop the job after S seconds without a finished step.")
@click.argument("script", type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    size: int | None,
    hosts: str,
    max_restarts: int,
    least: int | None,
    address: str | None,
    agent: str | None,
    mpiexec: str | None,
    ray: bool,
    each: str,
    trace: str | None,
    nan: bool,
    stragglers: str | None,
    script: str,
    args: tuple[str, ...],
    **limits: float | None,
) -> None:
    """Run SCRIPT with ARGS in N processes, and stop all of them when one fails.

    SCRIPT runs as under python.  The exit status is 0 only if all processes succeed, else the
    status of the process at fault.  Options precede SCRIPT.

    With --trace, each rank writes a file when it ends, and these files are combined.  Ranks on
    hosts that share no folder with this one leave their files there.  --nan is `flow debug --nan`.
    With --stragglers, the ranks are compared every 48 steps, and rank 0 writes the file.
    """
    check_script(script)
    _check_ray(ray, hosts, agent, mpiexec, each)
    files = {"FLOW_TRACE": trace, "FLOW_STRAGGLERS": stragglers}
    settings = {name: os.path.abspath(file) for name, file in files.items() if file}
    settings |= {"FLOW_CHECK_FINITE": "all"} if nan else {}
    job = Job(
        script,
        args,
        size or 0,
        Host.parse_all(hosts),
        max_restarts,
        least or 0,
        mpiexec,
        agent,
        address,
        Limits(**{name: seconds for name, seconds in limits.items() if seconds is not None}),
        settings=settings,
    )
    with _merged(trace):
        status = _run_on_ray(job, each) if ray else supervise(job)
    ctx.exit(status)


@contextmanager
def _merged(trace: str | None) -> Iterator[None]:
    """Combine the trace files of all ranks after a ``with`` block; delete earlier ones before."""
    path = None if trace is None else Path(trace)
    for old in () if path is None else rank_files(path):
        old.unlink()
    yield
    if path is not None and (count := merge(path)):
        click.echo(f"trace: {count} ranks in {path}", err=True)


def _check_ray(ray: bool, hosts: str, agent: str | None, mpiexec: str | None, each: str) -> None:
    """Reject options without effect: Ray chooses the hosts, and only Ray reserves resources."""
    options = (
        {"--hosts": hosts, "--agent": agent, "--mpiexec": mpiexec} if ray else {"--each": each}
    )
    for name in filter(options.get, options):
        raise click.UsageError(f"{name} {'is incompatible with' if ray else 'requires'} --ray")


def _run_on_ray(job: Job, each: str) -> int:
    from flow_dist.launch.ray import Cluster

    with Cluster(_resources(each)) as cluster:
        return supervise(job, cluster)


def _resources(text: str) -> dict[str, float]:
    """Parse resources of the form ``CPU=2,GPU=1``."""
    resources = {"CPU": 1.0}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        try:
            count = float(number)
        except ValueError:
            raise click.BadParameter(f"{part!r} is not name=number", param_hint="--each") from None
        if not 0 <= count < math.inf:
            raise click.BadParameter(f"{part!r} is not a number of resources", param_hint="--each")
        resources[name.strip()] = count
    return resources
