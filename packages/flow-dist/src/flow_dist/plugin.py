"""The plugin of flow-dist; importing this module loads neither MPI nor NCCL."""

from __future__ import annotations

import os

from flow_core.authoring.specs import ANY_DEVICE_TYPE, CommSpec, FormatSpec
from flow_core.base.config import Settings
from flow_dist.control.watch import WATCH

FLOW_PLUGIN_API = "1.0"


def flow_register_comms(config: Settings) -> tuple[CommSpec, ...]:
    """Register MPI for devices in host memory, NCCL for GPUs unless they are emulated, and both
    with staging in host memory for all others.
    """
    types = ("cpu", "gpu") if config.emulate_gpus else ("cpu",)
    mpi = CommSpec(
        "mpi",
        types,
        "flow_dist.mpi.lazy:bootstrap",
        "flow_dist.mpi.comm:MpiComm",
        priority=10,
        world="flow_dist.mpi.world:world",
        static_bootstrap="flow_dist.mpi.static_bootstrap:connect",
        binds_parts=True,
    )
    nccl = CommSpec(
        "nccl",
        ("gpu",),
        "flow_dist.nccl.comm:bootstrap",
        "flow_dist.nccl.comm:NcclComm",
        priority=10,
        binds_parts=True,
    )
    staged = CommSpec(
        "mpi_staged",
        (ANY_DEVICE_TYPE,),
        "flow_dist.mpi.lazy:bootstrap",
        "flow_dist.nccl.staged:MpiStagedComm",
        priority=-10,
        world="flow_dist.mpi.world:world",
        binds_parts=True,
    )
    return (mpi, staged) if config.emulate_gpus else (mpi, nccl, staged)


def flow_step_finished(step: int) -> None:
    """Count a finished step and record the number of the next one, for the supervisor."""
    WATCH.steps = step + 1
    WATCH.finished += 1


def flow_register_checkpoint_formats() -> tuple[FormatSpec, ...]:
    """Register the sharded checkpoints of `flow_dist.recovery.restart.Checkpoints`."""
    return (FormatSpec("parts", _in_parts, reader="flow_dist.recovery.restart_files:read"),)


def _in_parts(path: os.PathLike[str]) -> bool:
    return os.path.isfile(os.path.join(path, "part-0000.json"))


def flow_doctor() -> list[str]:
    """Report the availability of MPI, NCCL and Ray."""
    from flow_dist import doctor

    return list(doctor.lines())
