"""The worker threads that fill batches; a process has one set of them."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from flow_core.base.changes import Changes
from flow_core.base.errors import ConfigError
from flow_core.base.shutdown import call_at_shutdown
from flow_core.base.thread_budget import Cores
from flow_core.base.thread_pools import process_budget

_MAX_WORKERS = 16
"""The maximum number of threads; the GIL serializes the Python code between decoder calls."""


def setting(name: str, default: int) -> int:
    """Return the positive integer in an environment variable."""
    text = os.environ.get(name, "")
    if not text:
        return default
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise ConfigError(f"reading {name}", found=repr(text), allowed="a positive integer")


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The maximum number of batches that the loaders of a plan fill at once."""

    computing: int  # the limit while a step computes
    waiting: int  # the limit while a step waits for a batch
    source: str  # what determines the limits, for reports

    @classmethod
    def from_cores(cls, cores: Cores) -> WorkerLimits:
        """Return the limits that FLOW_DATA_WORKERS sets, or else those from the cores of a plan.

        >>> WorkerLimits.from_cores(Cores(4, "its cores", kernels=4, products=4, loaders=1))
        WorkerLimits(computing=1, waiting=4, source='4 cores')
        """
        own = setting("FLOW_DATA_WORKERS", 0)
        if own:
            return cls(own, own, "FLOW_DATA_WORKERS")
        budget = cores.budget or process_budget().count
        limit = min(budget, _MAX_WORKERS)
        return cls(min(cores.loaders or limit, limit), limit, f"{budget} cores")


def prefetch_count() -> int:
    """Return the number of batches to keep ready beside those being filled.

    The environment variable FLOW_DATA_PREFETCH sets the number.
    """
    return setting("FLOW_DATA_PREFETCH", 2)


class Job:
    """A job submitted to `Workers`.

    Unlike the waits of futures in the standard library, the waits of a job can safely be
    interrupted by Ctrl-C: an interrupt within the Python code of a future leaves locks held that
    the worker needs.
    """

    __slots__ = ("_changes", "_error", "_state", "limits", "work")

    def __init__(self, work: Callable[[], None], limits: WorkerLimits, changes: Changes) -> None:
        self.work, self.limits = work, limits
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
        """Cancel the job unless it has begun; return whether it is cancelled."""
        with self._changes.lock:
            if self._state == "queued":
                self._state = "cancelled"
                self._changes.notify()
        return self.cancelled()

    def begin(self) -> None:
        """Mark the job as running; the caller holds the lock."""
        self._state = "running"

    def end(self, error: BaseException | None) -> None:
        """Mark the job as done; the caller holds the lock and notifies waiters."""
        self._error, self._state = error, "done"

    def wait(self) -> None:
        """Wait until the job has ended or was cancelled."""
        self._changes.wait_until(self.done)

    def result(self) -> None:
        """Wait for the job, and raise its error if it failed.

        Raises `CancelledError` if the job was cancelled.
        """
        self.wait()
        if self.cancelled():
            raise CancelledError
        if self._error is not None:
            raise self._error


class Workers:
    """Threads that run jobs in order, at most as many at once as the jobs' limits allow.

    The threads are daemon threads, for which the interpreter does not wait at exit; `stop` ends
    them.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._threads: list[threading.Thread] = []
        self._changes = Changes()
        self._waiting: set[object] = set()
        self._stopped = False
        self.active = 0  # number of running jobs

    def submit(self, work: Callable[[], None], limits: WorkerLimits) -> Job:
        job = Job(work, limits, self._changes)
        with self._changes.lock:
            while len(self._threads) < limits.waiting and not self._stopped:
                self._start()
            self._jobs.append(job)
            self._changes.notify()
        return job

    def _start(self) -> None:
        name = f"flow-data-{len(self._threads)}"
        self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
        self._threads[-1].start()

    @contextmanager
    def step_waiting(self) -> Iterator[None]:
        """Apply the limit ``waiting`` in a ``with`` block; a waiting step needs no cores."""
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
        limits = self._jobs[0].limits
        return self.active < (limits.waiting if self._waiting else limits.computing)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            error = _error_of(job.work)
            with self._changes.lock:
                job.end(error)
                self.active -= 1
                self._changes.notify()
            del job, error  # release the objects before the thread waits

    def _next(self) -> Job | None:
        """Wait until the next job may begin and return it; None when the workers stop."""
        taken: list[Job] = []

        def take() -> bool:
            if not self._stopped and self._may_begin():
                taken.append(self._jobs.popleft())
                taken[0].begin()
                self.active += 1
            return self._stopped or bool(taken)

        self._changes.wait_until(take)
        return taken[0] if taken else None

    def stop(self, seconds: float = 5.0) -> None:
        """End the threads after their current jobs, and cancel the other jobs."""
        with self._changes.lock:
            self._stopped = True
            left = list(self._jobs)
            self._jobs.clear()
            self._changes.notify()
        for job in left:
            job.cancel()
        for thread in self._threads:
            with suppress(RuntimeError):  # an interrupt may have ended the start of the thread
                thread.join(seconds)


def _error_of(work: Callable[[], None]) -> BaseException | None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - raised by Job.result
        return error
    return None


_lock = threading.Lock()
_workers: list[Any] = []


def workers() -> Workers:
    """Return the workers of this process, created on the first call and again after a fork."""
    with _lock:
        if not _workers or _workers[0] != os.getpid():
            made = Workers()
            _workers[:] = [os.getpid(), made]
            call_at_shutdown(made.stop)
        found: Workers = _workers[1]
        return found
