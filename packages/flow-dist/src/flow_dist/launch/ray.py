"""The ranks of a job on a Ray cluster: Ray finds room for them and starts them, one actor each.

What the ranks exchange does not pass through Ray: they join the supervisor's control channel, and
each other by MPI over that (`flow_dist.mpi.pmi`), which needs MPICH.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from flow_dist.bootstrap.membership import LAUNCHER, LaunchError
from flow_dist.control.board import Failure, Limits
from flow_dist.launch import process_group
from flow_dist.launch.supervisor import Gang, Job, check_script, program, say, supervise

LOG = logging.getLogger(__name__)

Said = tuple[str, Any]
"""What a rank says: ("stdout" or "stderr", bytes), and at last ("status", its exit status)."""

LOST = 255
"""Status of a rank whose actor is gone."""

_LAST_WORDS = 5.0
"""Seconds that actors have for ending their processes, before Ray ends the actors."""

_FEWER = 5.0
"""Seconds to wait for room for fewer ranks, after there was none for all."""


def run(
    script: str,
    ranks: int,
    args: Sequence[str] = (),
    *,
    each: Mapping[str, float] | None = None,
    strategy: str = "PACK",
    restarts: int = 0,
    least: int = 0,
    limits: Limits | None = None,
    address: str | None = None,
) -> int:
    """Runs a script on a Ray cluster, and stops all ranks when one fails.

    Args:
        script, args: the program, at the same path on all hosts.
        ranks: number of processes, each in an actor of its own.
        each: what Ray is to reserve for a rank, such as ``{"CPU": 2, "GPU": 1}``; a CPU when None.
        strategy: how to place them: Ray's "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
        restarts: how often to start again after a failure.
        least: with how few ranks to go on when there is no room for all.
        limits: how long nothing may happen; ``start`` is also how long to wait for room.
        address: where this host listens for the ranks; that of its Ray node when None.

    Returns:
        The status to end with, 0 only when all ranks ended well.

    Raises:
        LaunchError: there is no script, no Ray, no cluster, or no room.
    """
    check_script(script)
    job = Job(
        os.path.abspath(script),
        tuple(args),
        ranks,
        restarts=restarts,
        least=least,
        limits=limits or Limits(),
        address=address,
    )
    with Cluster(each or {"CPU": 1.0}, strategy) as cluster:
        return supervise(job, cluster)


class Cluster:
    """Starts ranks on the Ray cluster that this process belongs to.

    Args:
        each: what to reserve for a rank.
        strategy: see `run`.

    Raises:
        LaunchError: there is no Ray, or no cluster.
    """

    def __init__(self, each: Mapping[str, float], strategy: str = "PACK") -> None:
        self._ray = _connected()
        self._each, self._strategy = dict(each), strategy
        self._room: Any = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self._leave()

    def fit(self, job: Job, failure: Failure | None) -> Job:
        """The job with as many ranks as there is room for; the room is reserved.

        Raises:
            LaunchError: there is room for too few.
        """
        self._leave()  # a room of which a host is lost is looked for anew
        own = self._ray.util.get_node_ip_address()
        size = self._reserve(job)
        return replace(job, size=size, address=job.address or own)

    def start(self, job: Job, told: Mapping[str, str]) -> Gang:
        """Starts an actor per rank, and the rank in it."""
        actors = [self._actor(number) for number in range(job.ranks)]
        try:
            return Actors(self._ray, actors, program(job), told)
        except BaseException:
            _kill(self._ray, actors)
            raise

    def _reserve(self, job: Job) -> int:
        least = job.least or job.ranks
        for size in range(job.ranks, least - 1, -1):
            if self._find_room(size, job.limits.start if size == job.ranks else _FEWER):
                return size
        raise LaunchError(
            f"looking for room for {least} ranks on the Ray cluster, with {self._each} for each",
            found=f"none within {job.limits.start:g} s; there is {self._ray.available_resources()}",
            allowed="as much as that free at the same time",
            hint="ask for fewer ranks or less for each, or let fewer go on: --least",
        )

    def _find_room(self, size: int, seconds: float) -> bool:
        self._room = self._ray.util.placement_group([self._each] * size, strategy=self._strategy)
        if self._room.wait(seconds):
            return True
        self._leave()
        return False

    def _leave(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            self._ray.util.remove_placement_group(room)

    def _actor(self, number: int) -> Any:
        strategies = self._ray.util.scheduling_strategies
        place = strategies.PlacementGroupSchedulingStrategy(
            self._room, placement_group_bundle_index=number
        )
        rest = {name: n for name, n in self._each.items() if name not in ("CPU", "GPU")}
        actor = self._ray.remote(Process).options(
            num_cpus=self._each.get("CPU", 0),
            num_gpus=self._each.get("GPU", 0),
            resources=rest,
            scheduling_strategy=place,
            max_concurrency=2,  # `end` comes while `run` runs
        )
        return actor.remote()


def _connected() -> Any:
    """The library, connected to the cluster of this host."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise LaunchError(
            "starting ranks on a Ray cluster", found=str(error), hint="uv add 'flow-dist[ray]'"
        ) from error
    if not ray.is_initialized():
        try:
            address = os.environ.get("RAY_ADDRESS", "auto")
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError) as error:
            raise LaunchError(
                "joining the Ray cluster of this host",
                found=str(error),
                allowed="a host of a cluster, or RAY_ADDRESS",
                hint="ray start --head",
            ) from error
    return ray


class Actors:
    """The ranks of one start, each a process of an actor.

    Args:
        ray: the library.
        actors: of `Process`, in any order.
        command: what a rank runs, after the name of Python.
        told: variables for all of them.
    """

    def __init__(
        self, ray: Any, actors: Sequence[Any], command: Sequence[str], told: Mapping[str, str]
    ) -> None:
        self._ray, self._actors = ray, actors
        self._statuses: dict[int, int] = {}
        nodes = ray.get([actor.node.remote() for actor in actors])
        for rank, (number, local_rank, local_size) in enumerate(seats(nodes)):
            own = {
                **told,
                LAUNCHER: "flow-dist",
                "FLOW_DIST_RANK": str(rank),
                "FLOW_DIST_SIZE": str(len(actors)),
                "FLOW_DIST_LOCAL_RANK": str(local_rank),
                "FLOW_DIST_LOCAL_SIZE": str(local_size),
            }
            run = actors[number].run.options(num_returns="streaming")
            said = run.remote(list(command), own, os.getcwd())
            threading.Thread(target=self._follow, args=(rank, said), daemon=True).start()

    def poll(self) -> int | None:
        """The first status that is not 0, when all have ended."""
        if len(self._statuses) < len(self._actors):
            return None
        return next(filter(None, self._statuses.values()), 0)

    def end(self) -> None:
        """Ends the processes, then the actors."""
        ends = [actor.end.remote() for actor in self._actors]
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.wait(ends, num_returns=len(ends), timeout=_LAST_WORDS)
        _kill(self._ray, self._actors)

    def _follow(self, rank: int, said: Iterable[Any]) -> None:
        """Passes on what a rank prints, and notes how it ends."""
        status = LOST
        try:
            for reference in said:
                name, what = self._ray.get(reference)
                if name == "status":
                    status = what
                else:
                    _print(name, what)
        except self._ray.exceptions.RayTaskError as error:
            say(f"the actor of rank {rank} could not run it: {error}")
        except self._ray.exceptions.RayError as error:  # killed, or its node is lost
            LOG.info("the actor of rank %d: %s", rank, error)
        self._statuses[rank] = status


def _kill(ray: Any, actors: Iterable[Any]) -> None:
    for actor in actors:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(actor)


def _print(name: str, data: bytes) -> None:
    stream = getattr(sys, name)
    stream.buffer.write(data)  # as it is: a piece may end within a letter
    stream.flush()


def seats(nodes: Sequence[str]) -> list[tuple[int, int, int]]:
    """Per rank its actor, its number and that of its neighbours on its node.

    Ranks of a node follow one another, as the devices of a machine are dealt in that order.

    >>> seats(["a", "b", "a"])
    [(0, 0, 2), (2, 1, 2), (1, 0, 1)]
    """
    found = []
    for node in dict.fromkeys(nodes):
        here = [number for number, other in enumerate(nodes) if other == node]
        found += [(number, index, len(here)) for index, number in enumerate(here)]
    return found


class Process:
    """An actor that runs one rank; Ray makes it where there is room."""

    def node(self) -> str:
        """The node that it is on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def run(self, command: Sequence[str], told: Mapping[str, str], folder: str) -> Iterator[Said]:
        """Runs a rank; gives what it prints while it runs, and how it ends."""
        process_group.adopt_orphans()
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **told},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        said: queue.SimpleQueue[Said | None] = queue.SimpleQueue()
        streams = {"stdout": process.stdout, "stderr": process.stderr}
        for name, stream in streams.items():
            threading.Thread(target=_read, args=(name, stream, said), daemon=True).start()
        for _ in streams:
            while (item := said.get()) is not None:
                yield item
        yield "status", process.wait()

    def end(self) -> None:
        """Ends the rank and all that came of it."""
        process_group.end_descendants()


def _read(name: str, stream: IO[bytes], said: queue.SimpleQueue[Said | None]) -> None:
    while data := os.read(stream.fileno(), 1 << 16):
        said.put((name, data))
    said.put(None)
