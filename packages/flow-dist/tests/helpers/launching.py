"""Start a script as several processes, with the MPI that mpi4py uses."""

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path

import processes
import pytest
from suite import preloaded
from two_hosts import TwoHosts

from flow_dist.launch.mpi_launchers import MPICH, Host, Launcher

HELPERS = Path(__file__).parent
interpreter = ""
"""What `python` forks; the fixture ``forked_programs`` sets it."""


def python(*words: str | Path, ranks: bool = False) -> list[str]:
    """A command that runs Python; Open MPI's ranks are none of its forks."""
    forks = not ranks or Launcher.find(launcher()[0]).kind == MPICH
    return preloaded.command(interpreter if forks else "", *map(str, words))


@cache
def launcher() -> tuple[str, ...]:
    """The command that starts processes; skips the test where there is none."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no launcher beside {sys.executable}")
    told = processes.run([mpiexec, "--version"], check=True)
    return (str(mpiexec), "--oversubscribe") if "Open MPI" in told.stdout else (str(mpiexec),)


def run_script(
    size: int,
    script: Path,
    *arguments: str,
    timeout: float = processes.LIMIT,
    hosts: TwoHosts | None = None,
    **env: str,
) -> processes.Completed[str]:
    """Run a script on several processes of this host, or distributed over two hosts."""
    settings = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [*launcher(), "-n", str(size), *python(script, *arguments, ranks=True)]
    if hosts is not None:
        program = [sys.executable, str(script), *arguments]
        places = [Host(address, -(-size // 2)) for address in hosts.addresses]
        mpiexec = Launcher.find(launcher()[0])
        command = mpiexec.command(
            size, places, program, agent=hosts.agent, address=hosts.addresses[0]
        )
        command = hosts.on(0, command)
    return processes.run(command, env={**os.environ, **settings, **env}, timeout=timeout)


def lines_of(done: processes.Completed[str]) -> list[str]:
    """What it printed, sorted; it must have ended well."""
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return sorted(done.stdout.splitlines())


def mpich() -> None:
    """Skips the test where MPI is another one: it alone joins processes that it did not start."""
    if Launcher.find(launcher()[0]).kind != MPICH:
        pytest.skip("not MPICH")
