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
    """A group of commands that prints errors for the user without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
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
@click.option("--hosts", default="", metavar="A:2,B:2", help="Hosts and processes on each.")
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Maximum number of restarts after failures.",
)
@click.option(
    "--least",
    type=click.IntRange(min=1),
    metavar="N",
    help="Continue with at least N processes when hosts are lost.",
)
@click.option("--address", metavar="A", help="Address of this host that the processes reach.")
@click.option("--agent", metavar="PROGRAM", help="Program to reach other hosts instead of ssh.")
@click.option("--mpiexec", metavar="PROGRAM", help="Launcher of MPICH or Open MPI.")
@click.option("--ray", is_flag=True, help="Start the processes on this host's Ray cluster.")
@click.option("--each", default="", metavar="CPU=1,GPU=1", help="Ray resources per process.")
@_limit("beat", "Interval between heartbeats.")
@_limit("silence", "Time without a heartbeat after which a process is lost.")
@_limit("exchange", "Maximum duration of one exchange between processes.")
@_limit("start", "Time until all processes must join, and reach their first job.")
@_limit("stall", "Time without a finished step until all positions are reported.")
@_limit("stall_limit", "Time without a finished step until the job is stopped.")
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
    """Run SCRIPT with ARGS in N processes, and stop all of them when one fails.

    SCRIPT runs as under python.  The exit status is 0 only if all processes succeed, else the
    status of the process at fault.  Options precede SCRIPT.
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
    """Reject options without effect: Ray chooses the hosts, and only Ray reserves resources."""
    given = {"--hosts": hosts, "--agent": agent, "--mpiexec": mpiexec} if ray else {"--each": each}
    for name in filter(given.get, given):
        raise click.UsageError(f"{name} {'is incompatible with' if ray else 'requires'} --ray")


def _run_on_ray(job: Job, each: str) -> int:
    from flow_dist.launch.ray import Cluster

    with Cluster(_resources(each)) as cluster:
        return supervise(job, cluster)


def _resources(text: str) -> dict[str, float]:
    """Parse resources of the form ``CPU=2,GPU=1``."""
    found = {"CPU": 1.0}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise click.BadParameter(f"{part!r} is not name=number", param_hint="--each") from None
    return found
