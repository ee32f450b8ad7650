"""The threads that make batches: one set per process, ended with it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flow_core.cores import Cores
from flow_core.endings import close_at_end
from flow_core.errors import ConfigError
from flow_core.pools import settled

_MOST = 16
"""More threads than these do not help: Python runs one at a time between decoders' calls."""


def setting(name: str, default: int) -> int:
    """A positive number from the environment."""
    text = os.environ.get(name, "")
    if not text:
        return default
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise ConfigError(f"reading {name}", found=repr(text), allowed="a positive integer")


@dataclass(frozen=True, slots=True)
class Share:
    """How many batches the loaders of a plan make at a time.

    Attributes:
        computing: while a step computes.
        waiting: while a step waits for a batch.
        source: who says so, for people.
    """

    computing: int
    waiting: int
    source: str

    @classmethod
    def of(cls, cores: Cores) -> Share:
        """What a plan's division of the cores leaves to loaders, unless FLOW_DATA_WORKERS says.

        >>> Share.of(Cores(4, "its cores", kernels=4, products=4, loaders=1))
        Share(computing=1, waiting=4, source='4 cores')
        """
        own = setting("FLOW_DATA_WORKERS", 0)
        if own:
            return cls(own, own, "FLOW_DATA_WORKERS")
        budget = cores.budget or settled().count
        most = min(budget, _MOST)
        return cls(min(cores.loaders or most, most), most, f"{budget} cores")


def prefetch_count() -> int:
    """How many batches wait ready beside those in work: FLOW_DATA_PREFETCH, else 2."""
    return setting("FLOW_DATA_PREFETCH", 2)


class Workers:
    """Threads that take jobs in order, as many at a time as they have cores.

    They are daemons, which an interpreter does not wait for when it ends; `stop` tells them to.

    Attributes:
        active: how many are at a job.
    """

    def __init__(self) -> None:
        self._jobs: deque[tuple[Future[None], Callable[[], None], Share]] = deque()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._waiting = 0
        self._stopped = False
        self.active = 0

    def submit(self, work: Callable[[], None], share: Share) -> Future[None]:
        """Has a job done; its future has its error."""
        future: Future[None] = Future()
        with self._changed:
            while len(self._threads) < share.waiting and not self._stopped:
                self._start()
            self._jobs.append((future, work, share))
            self._changed.notify()
        return future

    def _start(self) -> None:
        name = f"flow-data-{len(self._threads)}"
        self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
        self._threads[-1].start()

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """A step waits for a batch, and needs no cores, for a ``with`` block."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1

    def _may_begin(self) -> bool:
        if not self._jobs:
            return False
        share = self._jobs[0][2]
        return self.active < (share.waiting if self._waiting else share.computing)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._may_begin())
                if self._stopped:
                    return
                future, work, _ = self._jobs.popleft()
                self.active += 1
            if future.set_running_or_notify_cancel():
                _run(future, work)
            del future, work  # an idle thread keeps nothing alive
            with self._changed:
                self.active -= 1
                self._changed.notify()

    def stop(self, seconds: float = 5.0) -> None:
        """Ends the threads after the jobs they are at; others are not done any more."""
        with self._changed:
            self._stopped = True
            left = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for future, *_ in left:
            future.cancel()
        for thread in self._threads:
            thread.join(seconds)


def _run(future: Future[None], work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - raised where somebody waits for the batch
        future.set_exception(error)
    else:
        future.set_result(None)


_lock = threading.Lock()
_workers: list[Any] = []


def workers() -> Workers:
    """The threads of this process, started at the first use; a forked process starts its own."""
    with _lock:
        if not _workers or _workers[0] != os.getpid():
            made = Workers()
            _workers[:] = [os.getpid(), made]
            close_at_end(made.stop)
        found: Workers = _workers[1]
        return found
