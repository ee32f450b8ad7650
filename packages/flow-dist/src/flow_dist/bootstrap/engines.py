"""The engines that run the processes of a program, and the part of the work that each one does.

An engine has up to five parts: it starts the processes; tells each its rank by environment
variables; notices that a process has failed; restarts processes; and lets processes exchange keys
and values before they are connected.  Most engines need no code here, but facts: the rows of
`ENGINES`.  ``flow-dist run`` starts processes by engines that implement
`flow_dist.launch.supervisor.Starter`.  What an engine lacks is done by flow-dist: the control
channel notices failures and carries keys and values, and ``flow-dist run`` restarts.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Engine:
    """The facts about an engine."""

    name: str
    rank: str  # required, as ``size``; the engine is present if both are set
    size: str
    local_rank: str = ""  # optional, for the processes on one host; "" if there is none
    local_size: str = ""  # likewise
    # Whether a set without `size` is ignored, unless the user selects this engine.
    optional: bool = False
    restarts: str = ""  # variable with the number of restarts so far; "" if there is none
    job: tuple[str, ...] = ()  # variables that identify a job of the user; equal on all hosts
    # Variables which show that MPI can exchange its addresses over the engine.
    mpi: tuple[str, ...] = ()
    error_file: str = ""  # variable with the path of a file that receives the error of a process

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of a process's place, in the order of the attributes."""
        return tuple(filter(None, (self.rank, self.size, self.local_rank, self.local_size)))


ENGINES = (
    Engine(
        "flow-dist",
        "FLOW_DIST_RANK",
        "FLOW_DIST_SIZE",
        "FLOW_DIST_LOCAL_RANK",
        "FLOW_DIST_LOCAL_SIZE",
    ),
    Engine(
        "torchrun",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        restarts="TORCHELASTIC_RESTART_COUNT",
        job=("TORCHELASTIC_RUN_ID",),
        error_file="TORCHELASTIC_ERROR_FILE",
    ),
    Engine(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        mpi=("PMIX_RANK", "OMPI_COMM_WORLD_RANK"),
    ),
    Engine(
        "mpich",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        mpi=("PMI_FD", "PMI_PORT", "PMI_RANK"),
    ),
    Engine(
        "slurm",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        restarts="SLURM_RESTART_COUNT",
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    Engine("kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", optional=True),
)
"""The known engines in order of precedence; ``flow-dist`` sets its own variables on Ray.

Kubernetes sets only the index of a pod.  The pods of an indexed job may also run independent
programs, or one launcher each, so pods are ranks of one program only if their number is set, too.
"""

MPI_VARIABLES = frozenset(name for engine in ENGINES for name in engine.mpi)
"""Variables of engines over which MPI connects the processes."""


def engine_named(name: str) -> Engine | None:
    """Return the engine with a name; None for "alone" and for machines that a script lists."""
    return next((engine for engine in ENGINES if engine.name == name), None)


def tell_engine(source: str, message: str, env: Mapping[str, str] | None = None) -> None:
    """Leave the error of this process where its engine looks for one; the first error is kept.

    The format is that of torchrun, the only engine with such a file.

    Args:
        source: name of the engine, as in `Membership.source`.
        env: the environment variables; those of this process if None.
    """
    env = os.environ if env is None else env
    engine = engine_named(source)
    path = env.get(engine.error_file) if engine is not None and engine.error_file else None
    if path:
        about = {"py_callstack": message, "timestamp": str(int(time.time()))}
        content = {"message": {"message": message, "extraInfo": about}}
        with contextlib.suppress(OSError), open(path, "x") as file:
            json.dump(content, file)
