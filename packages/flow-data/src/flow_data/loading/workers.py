"""The threads that make batches: one set per process, ended with it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from flow_core.errors import ConfigError

Job = tuple["Future[None]", Callable[[], None]]

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


def worker_count() -> int:
    """How many threads make batches: FLOW_DATA_WORKERS, else as many as a step has.

    That is ONEFLOW_CPU_THREADS, else one per core.
    """
    cores = setting("ONEFLOW_CPU_THREADS", len(os.sched_getaffinity(0)))
    return setting("FLOW_DATA_WORKERS", min(cores, _MOST))


def prefetch_count() -> int:
    """How many batches wait ready beside those in work: FLOW_DATA_PREFETCH, else 2."""
    return setting("FLOW_DATA_PREFETCH", 2)


class Workers:
    """Threads that take jobs in order.

    They are daemons, which an interpreter does not wait for when it ends; `stop` tells them to.
    """

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"flow-data-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Has a job done; its future has its error."""
        future: Future[None] = Future()
        self._jobs.put((future, work))
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if future.set_running_or_notify_cancel():
                _run(future, work)
            del job, future, work  # an idle thread keeps nothing alive

    def stop(self, seconds: float = 5.0) -> None:
        """Ends the threads after the jobs they are at; others are not done any more."""
        while not self._jobs.empty():
            with suppress(Empty):
                job = self._jobs.get_nowait()
                if job is not None:
                    job[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)
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
            made = Workers(worker_count())
            _workers[:] = [os.getpid(), made]
            atexit.register(made.stop)
        found: Workers = _workers[1]
        return found
