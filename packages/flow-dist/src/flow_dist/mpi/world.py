"""The processes of one program, joined by MPI: ownership of devices, and host collectives.

Every process runs the same script, so all processes enter these collectives in the same order.
"""

from __future__ import annotations

import itertools
import json
import weakref
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch, World
from flow_core.authoring.specs import Device
from flow_core.base.arrays import Array
from flow_core.base.thread_budget import Budget
from flow_dist.bootstrap.membership import INSTALL_MPI, LaunchError
from flow_dist.bootstrap.output import choose_output
from flow_dist.bootstrap.versions import check_versions
from flow_dist.control.channel import current, join
from flow_dist.control.client import ControlClient
from flow_dist.control.waiting import POLL_HOOKS, thread_budget_of_host, tune_waits_to_host, wait
from flow_dist.control.watch import WATCH, Site
from flow_dist.mpi.agreement import LANES, Agreement, Job
from flow_dist.mpi.pmi import joined_by_launcher, start_mpi
from flow_dist.mpi.point_to_point import Transport
from flow_dist.phases import Route
from flow_dist.rng_sync import adopt_rank_0_state
from flow_dist.shm.cleanup import remove_own
from flow_dist.shm.counters import TOTAL_STORE_ORDER, Tokens
from flow_dist.shm.event_log import AllgatherEventLog, EventLog, shared_event_logs
from flow_dist.shm.memory import PeerGroup, shared_memory_peers

DIFFERENCE_SECONDS = 10.0
"""Seconds within which processes must describe their last events after a difference is found."""

TAGS = 1 << 20
"""Number of tags in use; MPI guarantees only 32767, but MPICH and Open MPI support far more."""


@cache
def world() -> MpiWorld:
    """Join the processes of the program on the first call, and return them.

    Raises `LaunchError` if mpi4py or an MPI library is not available.
    """
    try:
        joined = MpiWorld(_mpi().COMM_WORLD)
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            "joining the processes by MPI",
            found=f"{error}",
            allowed="mpi4py and an MPI library",
            hint=INSTALL_MPI,
        ) from error
    remove_own()  # all ranks have duplicated communicators, so all have mapped the files
    client = join(gather=joined.gather_json)
    check_versions(client.start() if client else (), joined.gather_json)
    choose_output(joined.rank)
    adopt_rank_0_state(joined.rank, joined.gather_json)
    if client is not None:
        joined.start_comparing(client)
    return joined


def _mpi() -> Any:
    """Initialize ``mpi4py.MPI``, over the launcher's PMI or else over `flow_dist.mpi.pmi`."""
    by_launcher = joined_by_launcher()
    client = current() if by_launcher else join()
    if client is not None:
        client.wait_for_first_job()
    if client is not None and not by_launcher:
        return start_mpi(client)
    from mpi4py import MPI

    return MPI


class MpiWorld(World):
    """All processes of the program.

    Attributes:
        rank, size: rank of this process, and number of processes.
        machines: number of machines that the program uses; see `owner`.
        transport: sends and receives of exchanges.
    """

    def __init__(self, comm: Any) -> None:
        self.rank, self.size = int(comm.rank), int(comm.size)
        self.machines = 1
        self._collectives, self._results = comm.Dup(), comm.Dup()
        self.transport = Transport(comm.Dup(), self.rank, self.owner, self._tag)
        self._tags: defaultdict[Route, itertools.count[int]] = defaultdict(itertools.count)
        self._shared_tokens: Tokens | None = None
        self._mpi_tokens: dict[tuple[frozenset[int], frozenset[int]], tuple[Launch, ...]] = {}
        self._owned: dict[tuple[int, tuple[Device, ...]], tuple[int, ...]] = {}
        self._communicators: dict[tuple[tuple[int, ...], int], Any] = {}
        self._requests: list[Any] = []
        weakref.finalize(self, free_requests, self._requests)
        self._sites: dict[str, Site] = {}
        self._agreement: Agreement | None = None

    def _tag(self, source: int, target: int) -> int:
        return next(self._tags[source, target]) % TAGS

    # ------------------------------------------------------------------- devices

    def arrange(self, machines: int) -> None:
        """Set the number of machines that the program uses.

        Raises `LaunchError` if the processes cannot be distributed evenly over the machines.
        """
        if self.size % machines and machines % self.size:
            raise LaunchError(
                f"distributing {self.size} processes over {machines} machines",
                found="neither number divides the other",
                allowed=f"a number of processes divisible by {machines}",
                hint="change the number of processes, or flow.config.machine_num",
            )
        self.machines = machines

    def owner(self, device: Device) -> int:
        """Return the rank that owns a device.

        Processes are distributed over machines in order, and a machine's devices over its processes
        round-robin: with 4 processes and 2 machines, rank 3 owns device 5 of machine 1.
        """
        if self._crowded:
            return device.machine * self.size // self.machines
        return device.machine * self._each + device.index % self._each

    def owners(self, devices: tuple[Device, ...]) -> tuple[int, ...]:
        """Return the ranks that own some devices, in the order of the devices."""
        key = self.machines, devices
        if key not in self._owned:
            self._owned[key] = tuple(map(self.owner, devices))
        return self._owned[key]

    @property
    def _crowded(self) -> bool:
        return self.size < self.machines

    @property
    def _each(self) -> int:
        return self.size // self.machines

    @property
    def machine(self) -> int:
        """The machine of this process; the first one if the process represents several machines."""
        return (
            -(-self.rank * self.machines // self.size) if self._crowded else self.rank // self._each
        )

    # ---------------------------------------------------------------- comparison

    def start_comparing(self, client: ControlClient) -> None:
        """Start comparing the events of all processes; a collective of all processes.

        Args:
            client: all-gathers the descriptions of events when processes differ.
        """
        tell = partial(client.gather, "what differs", seconds=DIFFERENCE_SECONDS)
        self._agreement = Agreement(self.rank, self._event_logs(), tell)
        POLL_HOOKS.append(self._agreement.check_all)
        client.at_end(self._finish)

    def _event_logs(self) -> Sequence[EventLog]:
        if TOTAL_STORE_ORDER and self.share_memory(range(self.size)):
            gather = partial(self.gather, what="sharing event logs")
            return shared_event_logs(len(LANES), self.rank, self.size, gather)
        return [AllgatherEventLog(self._collectives.Dup()) for _ in LANES]

    def _finish(self) -> None:
        if self._agreement is not None:
            ranks = range(self.size)
            with WATCH.site("the end of the program", "event logs", ranks=ranks, lane="end"):
                self._agreement.finish()

    def agree(self, job: str, arrays: Sequence[str], policy: str) -> Job | None:
        """Return a callable that a job calls with its feeds to compare them among all processes.

        Args:
            policy: how often feeds are compared, one of `flow_core.base.config.CHECK_FEEDS`.
        """
        return None if self._agreement is None else self._agreement.job(job, arrays, policy)

    # -------------------------------------------------------------- collectives

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        self._enter(what)
        sizes = np.empty(self.size, np.int64)
        own = np.array([len(text)], np.int64)
        self._complete(self._collectives.Iallgather(own, sizes), what)
        texts = np.empty(int(sizes.sum()), np.uint8)
        ends = np.cumsum(sizes)
        spread = [texts, (sizes.tolist(), (ends - sizes).tolist())]
        sent = np.frombuffer(text, np.uint8)
        request = self._collectives.Iallgatherv(sent, [*spread, _byte()])
        self._complete(request, what)
        return tuple(texts[end - n : end].tobytes() for n, end in zip(sizes, ends, strict=True))

    def gather_among(self, ranks: Collection[int], text: bytes, what: str) -> tuple[bytes, ...]:
        """All-gather a text over some processes, of which this is one, in rank order."""
        others = sorted({*ranks} - {self.rank})
        with WATCH.site(what, "collective", ranks=ranks, lane="collectives"):
            found = self.peer_group(ranks).swap(dict.fromkeys(others, text), others)
        return tuple([text if rank == self.rank else found[rank] for rank in sorted(ranks)])

    def communicator(self, ranks: tuple[int, ...], stream: int) -> Any:
        """Return the MPI communicator of some ranks, of which this is one, in the given order.

        Collectives of a communicator must start in one order in all ranks.  Exchanges do within a
        stream, but streams run side by side, so that each stream has communicators of its own.  The
        first use is a collective of these ranks.
        """
        key = ranks, stream
        if key not in self._communicators:
            what = f"joining {len(ranks)} ranks"
            with WATCH.site(what, "collective", ranks=ranks, lane="collectives"):
                self._communicators[key] = self._joined(ranks)
        return self._communicators[key]

    def _joined(self, ranks: tuple[int, ...]) -> Any:
        comm = self.transport.comm
        if ranks == tuple(range(self.size)):
            made, request = comm.Idup()
            wait(request.Test)
            return made
        own, step = ranks.index(self.rank), 1
        while step < len(ranks):  # a barrier: MPI's call blocks, so that no rank could be missing
            target, source = ranks[(own + step) % len(ranks)], ranks[own - step]
            self.peer_group({target, source}).swap({target: b""}, (source,))
            step *= 2
        return comm.Create_group(comm.Get_group().Incl(ranks))

    def gather_json(self, value: object) -> list[Any]:
        """All-gather a JSON value over all processes."""
        return [json.loads(text) for text in self.gather(json.dumps(value).encode(), "joining")]

    @cached_property
    def shared_memory_peers(self) -> tuple[frozenset[int], ...]:
        """For each rank, the ranks that share memory with it; the first use is a collective."""
        gather = partial(self.gather, what="finding shared memory")
        peers = shared_memory_peers(gather)
        tune_waits_to_host(self.rank, gather)
        if TOTAL_STORE_ORDER and max(map(len, peers)) > 1:
            self._shared_tokens = Tokens(self.rank, self.size, gather, peers[self.rank])
        return peers

    @cached_property
    def cores(self) -> Budget:
        """The thread budget of every process; the first use is a collective."""
        return thread_budget_of_host(partial(self.gather, what="dividing the cores"))

    def share_memory(self, ranks: Iterable[int]) -> bool:
        members = set(ranks)
        return all(members <= self.shared_memory_peers[rank] for rank in members)

    def peer_group(self, ranks: Iterable[int]) -> PeerGroup:
        """Return the object through which ranks that swap messages synchronize."""
        tags = {
            peer: (self._tag(self.rank, peer), self._tag(peer, self.rank))
            for peer in ranks
            if peer != self.rank
        }
        return PeerGroup(self.rank, self.owner, partial(self._swap, tags), self._token_launches)

    def _swap(
        self,
        tags: Mapping[int, tuple[int, int]],
        messages: Mapping[int, bytes],
        sources: Iterable[int],
    ) -> dict[int, bytes]:
        """Send the messages, whose keys are ranks; return one message from each source."""
        comm, sent = self.transport.comm, []
        for target, message in messages.items():
            sent.append(comm.Isend(np.frombuffer(message, np.uint8), target, tags[target][0]))
        received = {}
        for source in sorted(sources):
            received[source] = self._receive(source, tags[source][1])
        for request in sent:
            wait(request.Test)
        return received

    def _receive(self, source: int, tag: int) -> bytes:
        messages: list[Any] = []

        def arrived() -> bool:
            message = self.transport.comm.Improbe(source, tag, status)
            messages.extend([message] if message is not None else [])
            return message is not None

        status = _status()
        wait(arrived)
        text = np.empty(status.Get_count(_byte()), np.uint8)
        messages[0].Recv(text)
        return text.tobytes()

    def _token_launches(
        self, targets: frozenset[int], sources: frozenset[int]
    ) -> tuple[Launch, ...]:
        """Return launches that send a token to each target and wait for one from each source."""
        key = targets, sources
        if self._shared_tokens is not None and (targets or sources):
            return (self._shared_tokens.launch(targets, sources),)
        if key not in self._mpi_tokens and (targets or sources):
            comm, token = self.transport.comm, np.zeros(1, np.uint8)
            requests = [comm.Recv_init(np.empty(1, np.uint8), s, TAGS) for s in sorted(sources)]
            requests += [comm.Send_init(token, t, TAGS) for t in sorted(targets)]
            self._requests.extend(requests)
            self._mpi_tokens[key] = _launches(requests)
        return self._mpi_tokens.get(key, ())

    def broadcast(self, array: Array, root: int, what: str) -> None:
        """Broadcast a contiguous host array from rank ``root``."""
        self._enter(what)
        request = self._collectives.Ibcast(_as_bytes(array), root)
        self._complete(request, what)

    def share(self, arrays: Sequence[Array], roots: Sequence[int], what: str) -> None:
        """Broadcast the results of a step; all processes call this method when the step ends."""
        for array, root in zip(arrays, roots, strict=True):
            request = self._results.Ibcast(_as_bytes(array), root)
            self._complete(request, what)
            if self._agreement is not None:
                self._agreement.check()

    def _enter(self, what: str) -> None:
        if self._agreement is not None:
            self._agreement.enter(what)

    def _complete(self, request: Any, what: str) -> None:
        site = self._sites.get(what)
        if site is None:
            site = WATCH.site(what, "collective", ranks=range(self.size), lane="collectives")
            self._sites[what] = site
        with site:
            try:
                wait(request.Test)
            except Exception as error:  # MPI's, for example, if array sizes differ
                if self._agreement is not None:
                    self._agreement.explain(error)
                raise


def _launches(requests: list[Any]) -> tuple[Launch, ...]:
    from mpi4py import MPI

    done = partial(MPI.Request.Testall, requests)
    return partial(MPI.Prequest.Startall, requests), partial(wait, done)


def free_requests(requests: Sequence[Any]) -> None:
    """Free persistent requests, unless MPI has been finalized."""
    if not requests:
        return  # importing MPI would initialize it
    from mpi4py import MPI

    if not MPI.Is_finalized():
        for request in requests:
            request.Free()


def _as_bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _status() -> Any:
    from mpi4py import MPI

    return MPI.Status()


def _byte() -> Any:
    from mpi4py import MPI

    return MPI.BYTE
