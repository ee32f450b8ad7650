"""Ranks of one host that are threads: they share memory, and swap messages through queues."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import processes

from flow_core.device import Launch
from flow_core.sharding.topology import Device
from flow_dist.shm.memory import PeerGroup


class Mail:
    """Queues of messages between ranks, which are threads.

    Attributes:
        sent: how many messages each rank has sent.
    """

    def __init__(self, size: int) -> None:
        self.sent: Counter[int] = Counter()
        # Made here: two threads that find a defaultdict without a key may get different queues.
        self._queues: dict[tuple[int, int], queue.Queue[bytes]] = {
            pair: queue.Queue() for pair in product(range(size), repeat=2)
        }

    def swap(
        self, rank: int, texts: Mapping[int, bytes], sources: Iterable[int]
    ) -> dict[int, bytes]:
        self.sent[rank] += len(texts)
        for target, text in texts.items():
            self._queues[rank, target].put(text)
        return {s: self._queues[s, rank].get(timeout=processes.scaled(30)) for s in sources}


class ThreadWorld:
    """The part of `flow_dist.mpi.world.MpiWorld` that exchanges in shared memory need.

    Args:
        rank, size: rank of this thread, and number of ranks.
        devices: the number of devices, which are divided evenly.
        mail, tokens: the messages, shared by all ranks.
    """

    def __init__(self, rank: int, size: int, devices: int, mail: Mail, tokens: Mail) -> None:
        self.rank, self.size, self._devices = rank, size, devices
        self._mail, self._tokens = mail, tokens
        self.transport = self  # with its rank and owners, for copies within a rank
        self.shared_memory_peers = (frozenset(range(size)),) * size

    def owner(self, device: Device) -> int:
        return device.index * self.size // self._devices

    def owners(self, devices: Iterable[Device]) -> tuple[int, ...]:
        return tuple(map(self.owner, devices))

    def share_memory(self, ranks: Collection[int]) -> bool:
        return True

    def peer_group(self, ranks: Collection[int]) -> PeerGroup:
        return PeerGroup(
            self.rank, self.owner, partial(self._mail.swap, self.rank), self._token_launches
        )

    def _token_launches(
        self, targets: frozenset[int], sources: frozenset[int]
    ) -> tuple[Launch, ...]:
        return (partial(self._tokens.swap, self.rank, dict.fromkeys(targets, b""), sources),)


def on_threads(size: int, devices: int, body: Callable[[Any], None]) -> Counter[int]:
    """Run a function in each rank; return how many messages each rank has sent.

    Raises:
        BaseException: the error of the first rank that failed.
    """
    mail, tokens = Mail(size), Mail(size)

    def run(rank: int) -> None:
        body(ThreadWorld(rank, size, devices, mail, tokens))

    together([partial(run, rank) for rank in range(size)])
    return mail.sent


def together(bodies: Sequence[Callable[[], None]]) -> None:
    """Run each function in a thread of its own, until all have ended or one has failed.

    Raises:
        BaseException: the error of the first one that failed, for which others may wait.
    """
    ended: queue.Queue[BaseException | None] = queue.Queue()

    def run(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    threads = [threading.Thread(target=run, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for _ in threads:
        error = ended.get(timeout=processes.scaled(60))
        if error is not None:
            raise error
    for thread in threads:
        thread.join()
