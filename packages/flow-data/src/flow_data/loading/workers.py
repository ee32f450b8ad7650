"""The threads that make batches: one set per process, ended with it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flow_core.base.changes import Changes
from flow_core.base.errors import ConfigError
from flow_core.base.shutdown import call_at_shutdown
from flow_core.base.thread_budget import Cores
from flow_core.base.thread_pools import process_budget

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
        budget = cores.budget or process_budget().count
        most = min(budget, _MOST)
        return cls(min(cores.loaders or most, most), most, f"{budget} cores")


def prefetch_count() -> int:
    """How many batches wait ready beside those in work: FLOW_DATA_PREFETCH, else 2."""
    return setting("FLOW_DATA_PREFETCH", 2)


class Pending:
    """A job that was given to `Workers`.

    Ctrl-C may interrupt every wait for it, which futures of the standard library do not allow: an
    interrupt within their Python code leaves locks held that the worker needs.
    """

    __slots__ = ("_changes", "_error", "_state", "share", "work")

    def __init__(self, work: Callable[[], None], share: Share, changes: Changes) -> None:
        self.work, self.share = work, share
        self._changes = changes
        self._state = "queued"
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether the job has ended or was cancelled."""
        return self._state in ("done", "cancelled")

    def cancelled(self) -> bool:
        """Whether the job was cancelled before it began."""
        return self._state == "cancelled"

    def cancel(self) -> bool:
        """Cancel the job unless it has begun; whether it is cancelled."""
        with self._changes.lock:
            if self._state == "queued":
                self._state = "cancelled"
                self._changes.notify()
        return self.cancelled()

    def begin(self) -> None:
        """Mark the job as running; the caller holds the lock."""
        self._state = "running"

    def end(self, error: BaseException | None) -> None:
        """Mark the job as done; the caller holds the lock and tells."""
        self._error, self._state = error, "done"

    def wait(self) -> None:
        """Wait until the job has ended or was cancelled."""
        self._changes.wait_until(self.done)

    def result(self) -> None:
        """Wait, and raise the job's error, if any.

        Raises:
            CancelledError: the job was cancelled.
        """
        self.wait()
        if self.cancelled():
            raise CancelledError
        if self._error is not None:
            raise self._error


class Workers:
    """Threads that take jobs in order, as many at a time as they have cores.

    They are daemons, which an interpreter does not wait for when it ends; `stop` tells them to.

    Attributes:
        active: how many are at a job.
    """

    def __init__(self) -> None:
        self._jobs: deque[Pending] = deque()
        self._threads: list[threading.Thread] = []
        self._changes = Changes()
        self._waiting: set[object] = set()
        self._stopped = False
        self.active = 0

    def submit(self, work: Callable[[], None], share: Share) -> Pending:
        """Queue a job."""
        job = Pending(work, share, self._changes)
        with self._changes.lock:
            while len(self._threads) < share.waiting and not self._stopped:
                self._start()
            self._jobs.append(job)
            self._changes.notify()
        return job

    def _start(self) -> None:
        name = f"flow-data-{len(self._threads)}"
        self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
        self._threads[-1].start()

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """A step waits for a batch, and needs no cores, for a ``with`` block."""
        step = object()
        try:
            with self._changes.lock:
                self._waiting.add(step)
                self._changes.notify()
            yield
        finally:
            with self._changes.lock:
                self._waiting.discard(step)

    def _may_begin(self) -> bool:
        while self._jobs and self._jobs[0].cancelled():
            self._jobs.popleft()
        if not self._jobs:
            return False
        share = self._jobs[0].share
        return self.active < (share.waiting if self._waiting else share.computing)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            error = _error_of(job.work)
            with self._changes.lock:
                job.end(error)
                self.active -= 1
                self._changes.notify()
            del job, error  # an idle thread keeps nothing alive

    def _next(self) -> Pending | None:
        """The next job, when it may begin; None when the workers stop."""
        taken: list[Pending] = []

        def take() -> bool:
            if not self._stopped and self._may_begin():
                taken.append(self._jobs.popleft())
                taken[0].begin()
                self.active += 1
            return self._stopped or bool(taken)

        self._changes.wait_until(take)
        return taken[0] if taken else None

    def stop(self, seconds: float = 5.0) -> None:
        """End the threads after their current jobs, and cancel the others."""
        with self._changes.lock:
            self._stopped = True
            left = list(self._jobs)
            self._jobs.clear()
            self._changes.notify()
        for job in left:
            job.cancel()
        for thread in self._threads:
            thread.join(seconds)


def _error_of(work: Callable[[], None]) -> BaseException | None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - raised where somebody waits for the batch
        return error
    return None


_lock = threading.Lock()
_workers: list[Any] = []


def workers() -> Workers:
    """The threads of this process, started at the first use; a forked process starts its own."""
    with _lock:
        if not _workers or _workers[0] != os.getpid():
            made = Workers()
            _workers[:] = [os.getpid(), made]
            call_at_shutdown(made.stop)
        found: Workers = _workers[1]
        return found
