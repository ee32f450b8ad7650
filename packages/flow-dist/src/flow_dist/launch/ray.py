"""Run the ranks of a job on a Ray cluster, one actor per rank.

Ray only places and starts the ranks.  The ranks join the supervisor's control channel, and
initialize MPI over this channel (`flow_dist.mpi.pmi`), which requires MPICH.
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

from flow_core.base.errors import install_command
from flow_dist.bootstrap.membership import LAUNCHER, LaunchError
from flow_dist.bootstrap.output import report
from flow_dist.control.board import Failure, Limits
from flow_dist.launch import process_group
from flow_dist.launch.supervisor import Job, Processes, check_script, program, supervise

LOG = logging.getLogger(__name__)

Output = tuple[str, Any]
"""Output of a rank: pairs ("stdout" or "stderr", bytes), and finally ("status", exit status)."""

LOST = 255
"""Exit status of a rank whose actor is lost."""

_END_SECONDS = 5.0
"""Seconds within which actors must terminate their processes, before Ray kills the actors."""

_RETRY_SECONDS = 5.0
"""Seconds to wait for the resources of fewer ranks if those of all ranks are not available."""


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
    """Run a script on a Ray cluster, and stop all ranks when one fails.

    Args:
        script, args: the program, at the same path on all hosts.
        ranks: number of processes, each in its own actor.
        each: resources to reserve per rank, such as ``{"CPU": 2, "GPU": 1}``; one CPU if None.
        strategy: Ray's placement strategy: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
        restarts: maximum number of restarts after failures.
        least: minimum number of ranks to continue with if resources are short.
        limits: time limits; ``start`` also limits the wait for resources.
        address: address at which this host listens for the ranks; by default, its Ray node's.

    Returns:
        The exit status, which is 0 only if all ranks succeeded.

    Raises:
        LaunchError: the script, Ray, a cluster or the resources are not available.
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
    """A starter of ranks on the Ray cluster of this process.

    Args:
        each: resources to reserve per rank.

    Raises:
        LaunchError: Ray or a cluster is not available.
    """

    def __init__(self, each: Mapping[str, float], strategy: str = "PACK") -> None:
        self._ray = _connect()
        self._each, self._strategy = dict(each), strategy
        self._reserved: Any = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self._release()

    def fit(self, job: Job, failure: Failure | None) -> Job:
        """Return the job with as many ranks as there are resources for; reserve the resources.

        Raises `LaunchError` if there are resources for too few ranks.
        """
        self._release()  # a placement group that lost a node must be created again
        node_address = self._ray.util.get_node_ip_address()
        size = self._reserve(job)
        return replace(job, size=size, address=job.address or node_address)

    def start(self, job: Job, env: Mapping[str, str]) -> Processes:
        """Start an actor per rank, and the rank in it."""
        actors = [self._actor(number) for number in range(job.ranks)]
        try:
            return Actors(self._ray, actors, program(job), env)
        except BaseException:
            _kill(self._ray, actors)
            raise

    def _reserve(self, job: Job) -> int:
        least = job.least or job.ranks
        for size in range(job.ranks, least - 1, -1):
            if self._try_reserve(size, job.limits.start if size == job.ranks else _RETRY_SECONDS):
                return size
        raise LaunchError(
            f"reserving resources for {least} ranks on the Ray cluster, {self._each} for each",
            found=f"none within {job.limits.start:g} s; there are "
            f"{self._ray.available_resources()}",
            allowed="these resources, available at the same time",
            hint="request fewer ranks or less per rank, or allow fewer ranks with --least",
        )

    def _try_reserve(self, size: int, seconds: float) -> bool:
        bundles = [self._each] * size
        self._reserved = self._ray.util.placement_group(bundles, strategy=self._strategy)
        if self._reserved.wait(seconds):
            return True
        self._release()
        return False

    def _release(self) -> None:
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            self._ray.util.remove_placement_group(reserved)

    def _actor(self, number: int) -> Any:
        strategies = self._ray.util.scheduling_strategies
        scheduling = strategies.PlacementGroupSchedulingStrategy(
            self._reserved, placement_group_bundle_index=number
        )
        custom_resources = {name: n for name, n in self._each.items() if name not in ("CPU", "GPU")}
        actor = self._ray.remote(Process).options(
            num_cpus=self._each.get("CPU", 0),
            num_gpus=self._each.get("GPU", 0),
            resources=custom_resources,
            scheduling_strategy=scheduling,
            max_concurrency=2,  # `end` is called while `run` runs
        )
        return actor.remote()


def _connect() -> Any:
    """Import Ray and connect it to the cluster of this host."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise LaunchError(
            "starting ranks on a Ray cluster",
            found=str(error),
            hint=install_command("flow-dist[ray]"),
        ) from error
    if not ray.is_initialized():
        try:
            address = os.environ.get("RAY_ADDRESS", "auto")
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError) as error:
            raise LaunchError(
                "joining the Ray cluster of this host",
                found=str(error),
                allowed="a host of a cluster, or the environment variable RAY_ADDRESS",
                hint="start a cluster: ray start --head",
            ) from error
    return ray


class Actors:
    """The ranks that one start of a job creates; an actor runs the process of each rank.

    Args:
        actors: actors of class `Process`, in any order.
        command: the command of a rank, without the interpreter.
    """

    def __init__(
        self, ray: Any, actors: Sequence[Any], command: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self._ray, self._actors = ray, actors
        self._statuses: dict[int, int] = {}
        nodes = ray.get([actor.node.remote() for actor in actors])
        for rank, (number, local_rank, local_size) in enumerate(assign_ranks(nodes)):
            rank_env = {
                **env,
                LAUNCHER: "flow-dist",
                "FLOW_DIST_RANK": str(rank),
                "FLOW_DIST_SIZE": str(len(actors)),
                "FLOW_DIST_LOCAL_RANK": str(local_rank),
                "FLOW_DIST_LOCAL_SIZE": str(local_size),
            }
            run = actors[number].run.options(num_returns="streaming")
            outputs = run.remote(list(command), rank_env, os.getcwd())
            threading.Thread(target=self._follow, args=(rank, outputs), daemon=True).start()

    def poll(self) -> int | None:
        """Return the first nonzero status once all ranks have ended."""
        if len(self._statuses) < len(self._actors):
            return None
        return next(filter(None, self._statuses.values()), 0)

    def end(self) -> None:
        """Terminate the processes, then the actors."""
        pending = [actor.end.remote() for actor in self._actors]
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.wait(pending, num_returns=len(pending), timeout=_END_SECONDS)
        _kill(self._ray, self._actors)

    def _follow(self, rank: int, outputs: Iterable[Any]) -> None:
        """Forward a rank's output, and record its exit status."""
        status = LOST
        try:
            for reference in outputs:
                name, content = self._ray.get(reference)
                if name == "status":
                    status = content
                else:
                    _print(name, content)
        except self._ray.exceptions.RayTaskError as error:
            report(f"the actor of rank {rank} failed to run it: {error}")
        except self._ray.exceptions.RayError as error:  # killed, or its node is lost
            LOG.info("the actor of rank %d: %s", rank, error)
        self._statuses[rank] = status


def _kill(ray: Any, actors: Iterable[Any]) -> None:
    for actor in actors:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(actor)


def _print(name: str, data: bytes) -> None:
    stream = getattr(sys, name)
    stream.buffer.write(data)  # as bytes: a chunk may end within a character
    stream.flush()


def assign_ranks(nodes: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return, for each rank, its actor, its local rank, and the number of ranks on its node.

    Ranks on one node are consecutive, because devices are distributed over machines in rank order.

    >>> assign_ranks(["a", "b", "a"])
    [(0, 0, 2), (2, 1, 2), (1, 0, 1)]
    """
    ranks = []
    for node in dict.fromkeys(nodes):
        actors = [number for number, other in enumerate(nodes) if other == node]
        ranks += [(number, index, len(actors)) for index, number in enumerate(actors)]
    return ranks


class Process:
    """An actor that runs one rank on the node where Ray has placed it."""

    def node(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def run(self, command: Sequence[str], env: Mapping[str, str], folder: str) -> Iterator[Output]:
        """Run a rank; yield its output while it runs, and finally its exit status."""
        process_group.adopt_orphans()
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **env},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        outputs: queue.SimpleQueue[Output | None] = queue.SimpleQueue()
        streams = {"stdout": process.stdout, "stderr": process.stderr}
        for name, stream in streams.items():
            threading.Thread(target=_read, args=(name, stream, outputs), daemon=True).start()
        for _ in streams:
            while (item := outputs.get()) is not None:
                yield item
        yield "status", process.wait()

    def end(self) -> None:
        """Terminate the rank and its descendants."""
        process_group.end_descendants()


def _read(name: str, stream: IO[bytes], outputs: queue.SimpleQueue[Output | None]) -> None:
    while data := os.read(stream.fileno(), 1 << 16):
        outputs.put((name, data))
    outputs.put(None)
