"""The output of ``flow doctor`` about flow-dist: what is available or missing, and what to do."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

from flow_core.authoring.specs import Available, Unavailable
from flow_core.base.errors import install_command
from flow_dist.bootstrap.membership import INSTALL_MPI, LaunchError
from flow_dist.control.secret import secret_file
from flow_dist.launch.mpi_launchers import MPICH, OPEN_MPI, Launcher
from flow_dist.nccl.library import probe_nccl
from flow_dist.shm.large_pages import LARGE
from flow_dist.shm.memory import Segment

_ASK = """
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
print(" ".join(MPI.Get_library_version().strip("\\0 \\n").split("\\n")[0].split()[:3]))
"""
"""A program for a child process: a loaded MPI library cannot be unloaded, and may print errors."""


def lines() -> Iterator[str]:
    """Yield one line each about MPI, shared memory, NCCL, Ray and the user's secret."""
    yield f"MPI: {mpi()}"
    yield f"Shared memory: {_shared_memory()}"
    yield f"NCCL: {_text(probe_nccl())}"
    yield f"Ray: {_text(probe_ray())}"
    yield f"Secret for jobs without a token: {_secret()}"


def mpi() -> str:
    """Describe the MPI library that mpi4py loads and the launcher, which must match it."""
    if importlib.util.find_spec("mpi4py") is None:
        return _text(Unavailable("mpi4py is not installed", INSTALL_MPI))
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True)
    if done.returncode:
        message = done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}"
        return _text(Unavailable(f"mpi4py cannot load an MPI library: {message:.200}", INSTALL_MPI))
    library = done.stdout.strip()
    try:
        launcher = Launcher.find()
    except LaunchError as error:
        return _text(Unavailable(f"{error.attempted}: {error.found}", error.hint or INSTALL_MPI))
    return mpi_text(library, launcher)


def mpi_text(library: str, launcher: Launcher) -> str:
    """Describe an MPI library and a launcher, and whether they match.

    >>> mpi_text("MPICH Version: 5.0", Launcher("/bin/mpiexec", MPICH))
    'available, MPICH Version: 5.0, launcher /bin/mpiexec'
    >>> print(mpi_text("Open MPI v5", Launcher("/bin/mpiexec", MPICH)).partition("; ")[0])
    unavailable: mpi4py loads Open MPI v5, but /bin/mpiexec is MPICH's
    """
    family = OPEN_MPI if library.startswith("Open MPI") else MPICH
    if family != launcher.kind:
        reason = f"mpi4py loads {library}, but {launcher.path} is {launcher.kind}'s"
        hint = f"select a matching launcher: flow-dist run --mpiexec; or use one MPI: {INSTALL_MPI}"
        return _text(Unavailable(reason, hint))
    return f"available, {library}, launcher {launcher.path}"


def probe_ray() -> Available | Unavailable:
    """Probe whether Ray is installed, without contacting a cluster."""
    try:
        return Available(1, f"ray {metadata.version('ray')}, for flow-dist run --ray")
    except metadata.PackageNotFoundError:
        hint = f"{install_command('flow-dist[ray,mpich]')} for flow-dist run --ray"
        return Unavailable("ray is not installed", hint)


def _shared_memory() -> str:
    if not hasattr(os, "memfd_create"):
        return _text(Unavailable("no memfd_create, a feature of Linux", "MPI messages are used"))
    pages = (
        "2 MiB pages" if Segment(LARGE).large else "small pages (Linux before 6.1, or no memory)"
    )
    return _text(Available(1, pages))


def _secret() -> str:
    path = secret_file(os.environ)
    if not path.exists():
        return f"{path} will be created when needed; copy it to hosts with other home directories"
    private = not path.stat().st_mode & 0o077
    return f"{path}" if private else f"{path} is accessible to others; next: chmod 600 {path}"


def _text(found: Available | Unavailable) -> str:
    if isinstance(found, Available):
        return f"available, {found.note}"
    return f"unavailable: {found.reason}; next: {found.hint}"
