"""The ``flow-dist`` command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

import flow_dist
from flow_core.base.errors import FlowError
from flow_dist.control.board import Limits
from flow_dist.launch.mpi_launchers import Host
from flow_dist.launch.supervisor import Job, check_script, supervise


class _Group(click.Group):
    """Shows errors meant for the user without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command."""
        try:
            return super().invoke(ctx)
        except FlowError as error:
            raise click.ClickException(str(error)) from error


_SECONDS = click.FloatRange(min=0, min_open=True)
_LIMITS = Limits()

Command = TypeVar("Command", bound=Callable[..., Any])


def _limit(name: str, doc: str) -> Callable[[Command], Command]:
    usual = getattr(_LIMITS, name)
    return click.option(
        f"--{name.replace('_', '-')}",
        type=_SECONDS,
        default=usual,
        show_default=True,
        metavar="S",
        help=doc,
    )


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(flow_dist.__version__, prog_name="flow-dist")
def main() -> None:
    """Several processes and hosts for flow."""


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "size", type=click.IntRange(min=1), metavar="N", help="Number of processes.")
@click.option("--hosts", default="", metavar="A:2,B:2", help="Hosts and how many each takes.")
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Start again so often after a failure.",
)
@click.option(
    "--least",
    type=click.IntRange(min=1),
    metavar="N",
    help="Go on with so few processes when hosts are lost.",
)
@click.option("--address", metavar="A", help="Where this host listens for the processes.")
@click.option("--agent", metavar="PROGRAM", help="What reaches other hosts, instead of ssh.")
@click.option("--mpiexec", metavar="PROGRAM", help="Launcher of MPICH or Open MPI.")
@click.option("--ray", is_flag=True, help="Start them on the Ray cluster of this host.")
@click.option("--each", default="", metavar="CPU=1,GPU=1", help="What Ray reserves for each.")
@_limit("beat", "Between two signs of life of a process.")
@_limit("silence", "Without any, after which a process counts as lost.")
@_limit("exchange", "That one exchange between processes may take.")
@_limit("start", "Until all processes must have come, and to their first job.")
@_limit("stall", "Without a finished step, until the line of each process is reported.")
@_limit("stall_limit", "Without a finished step, until the job is stopped.")
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
    script: str,
    args: tuple[str, ...],
    **limits: float,
) -> None:
    """Run SCRIPT with its ARGS in N processes, and stop all of them when one fails.

    SCRIPT runs as python runs it.  Ends with status 0 only when every process has ended well,
    else with the status of the one that is to blame.  Options stand before SCRIPT.
    """
    check_script(script)
    _check_ray(ray, hosts, agent, mpiexec, each)
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
        Limits(**limits),
    )
    ctx.exit(_run_on_ray(job, each) if ray else supervise(job))


def _check_ray(ray: bool, hosts: str, agent: str | None, mpiexec: str | None, each: str) -> None:
    """Refuses options that mean nothing: Ray chooses the hosts, and nobody else knows of room."""
    given = {"--hosts": hosts, "--agent": agent, "--mpiexec": mpiexec} if ray else {"--each": each}
    for name in filter(given.get, given):
        raise click.UsageError(f"{name} {'cannot go with' if ray else 'needs'} --ray")


def _run_on_ray(job: Job, each: str) -> int:
    from flow_dist.launch.ray import Cluster

    with Cluster(_resources(each)) as cluster:
        return supervise(job, cluster)


def _resources(text: str) -> dict[str, float]:
    """The numbers in ``CPU=2,GPU=1``."""
    found = {"CPU": 1.0}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise click.BadParameter(f"{part!r} is not name=number", param_hint="--each") from None
    return found
