"""Worker processes, and the queues of requests from which they take batches.

Each model has a bounded queue.  A worker that is idle takes the requests at the front of a queue
whose batch is full, or whose first request has waited for `Batching.wait`; of several such queues,
the one whose first request is the oldest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flow_core.base.errors import ConfigError
from flow_serve.frames import packed, receive
from flow_serve.info import ModelInfo, Source
from flow_serve.metrics import Metrics
from flow_serve.settings import Batching, Limits, Refused

_log = logging.getLogger("flow_serve")
COMMAND = (sys.executable, "-m", "flow_serve.models")
_BUFFER = 1 << 20
_PAUSES = (0.0, 0.1, 0.5, 2.0, 10.0, 30.0)
"""Seconds before the restarts of a worker that ends before it is ready."""


@dataclass(frozen=True)
class Setup:
    """How the workers of a pool are started."""

    sources: Sequence[Source]  # the versions of models that each worker loads
    batching: Batching = field(default_factory=Batching)  # how requests are combined
    limits: Limits = field(default_factory=Limits)  # what clients may use
    workers: int = 1  # the number of worker processes
    device: str = "cpu"  # the type of device that computes
    command: Sequence[str] = COMMAND  # the program of a worker, without its argument


@dataclass(eq=False)
class _Waiting:
    """A request in a queue, or in a batch."""

    rows: int
    arrays: Sequence[memoryview]
    since: float
    answer: asyncio.Future[list[memoryview]]


@dataclass(eq=False)
class _Queue:
    """The requests for a model that no worker has taken yet."""

    index: int
    info: ModelInfo
    requests: deque[_Waiting] = field(default_factory=deque)
    rows: int = 0

    def push(self, request: _Waiting) -> None:
        self.requests.append(request)
        self.rows += request.rows

    def drop(self, request: _Waiting) -> None:
        """Remove a request that is answered by an error; it may have been taken before."""
        with contextlib.suppress(ValueError):
            self.requests.remove(request)
            self.rows -= request.rows

    def pop(self) -> list[_Waiting]:
        """Remove and return the requests of a batch."""
        taken: list[_Waiting] = []
        rows = 0
        while self.requests and (not taken or self._fits(rows + self.requests[0].rows)):
            taken.append(self.requests.popleft())
            rows += taken[-1].rows
        self.rows -= rows
        return taken

    def _fits(self, rows: int) -> bool:
        return self.info.combines and rows <= self.info.rows

    def ready_at(self, wait: float) -> float:
        """Return when the batch at the front is to be computed."""
        full = not self.info.combines or self.rows >= self.info.rows
        return 0.0 if full else self.requests[0].since + wait


class LostWorker(Exception):
    """A worker has ended, or was killed because a batch took too long."""


class _Worker:
    """A worker process and the connection to it."""

    def __init__(self, process: asyncio.subprocess.Process, connection: Any) -> None:
        self.process = process
        self.exited = asyncio.create_task(process.wait())
        self._reader, self._writer = connection

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended."""
        return self.exited.done() or self._reader.at_eof()

    @staticmethod
    async def start(setup: Setup) -> _Worker:
        ours, theirs = socket.socketpair()
        env = dict(os.environ)
        if setup.workers > 1:
            cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
            env.setdefault("OMP_NUM_THREADS", str(max(1, cores // setup.workers)))
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *setup.command, str(theirs.fileno()), pass_fds=(theirs.fileno(),), env=env,
                stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        return _Worker(process, await asyncio.open_connection(sock=ours, limit=_BUFFER))

    async def load(self, setup: Setup) -> list[ModelInfo]:
        """Wait until the worker has loaded all models, and return their descriptions.

        Raises:
            ConfigError: a model cannot be loaded.
            LostWorker: the worker has ended.
        """
        models = [asdict(source) for source in setup.sources]
        batching = asdict(setup.batching)
        content = {"models": models, "batching": batching, "device": setup.device}
        found, _ = await self._call(content, ())
        if "error" in found:
            raise ConfigError("starting a worker", found=found["error"])
        return [ModelInfo.of(each) for each in found["models"]]

    async def run(
        self, queue: _Queue, batch: Sequence[_Waiting], seconds: float
    ) -> tuple[str, memoryview]:
        """Compute a batch; return an error and the bytes of the outputs, one of which is empty.

        Raises: LostWorker: the worker has ended, or has taken longer than ``seconds``.
        """
        rows = sum(request.rows for request in batch)
        columns = zip(*(request.arrays for request in batch), strict=True)
        parts = [array for column in columns for array in column]
        try:
            async with asyncio.timeout(seconds):
                found, data = await self._call({"model": queue.index, "rows": rows}, parts)
        except TimeoutError:
            raise LostWorker(f"a batch of {queue.info.name!r} took over {seconds:g} s") from None
        return found.get("error", ""), data

    async def _call(
        self, content: dict[str, Any], parts: Sequence[Any]
    ) -> tuple[dict[str, Any], memoryview]:
        try:
            self._writer.writelines(packed(content, parts))
            await self._writer.drain()
            return await receive(self._reader)
        except (EOFError, ConnectionError):
            raise LostWorker("the process has ended") from None

    async def end(self, seconds: float = 1.0) -> int:
        """Close the connection, at which a worker ends; kill the process after a time."""
        self._writer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self.exited)
        with contextlib.suppress(ProcessLookupError):
            # Process.kill would take the status away from asyncio's thread that waits for it
            os.kill(self.process.pid, signal.SIGKILL)
        return await self.exited


class Pool:
    """Workers that serve one set of models; a reload replaces the pool."""

    def __init__(self, setup: Setup, metrics: Metrics) -> None:
        self.models: dict[str, dict[str, ModelInfo]] = {}
        self._setup, self._metrics = setup, metrics
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._arrived = asyncio.Event()
        self._ready: set[_Worker] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False

    @property
    def is_ready(self) -> bool:
        """Whether a worker is ready."""
        return bool(self._ready)

    async def start(self) -> None:
        """Start all workers, and wait until they have loaded the models.

        Raises: ConfigError: a model cannot be loaded.
        """
        workers: list[_Worker] = []
        try:
            for _ in range(self._setup.workers):
                workers.append(await _Worker.start(self._setup))
            loads = await asyncio.gather(*(worker.load(self._setup) for worker in workers))
        except LostWorker as error:
            await self._end(workers)
            found = f"{error} before it was ready, with status {workers[0].process.returncode}"
            raise ConfigError("starting a worker", found=found) from None
        except BaseException:
            await self._end(workers)
            raise
        for index, info in enumerate(loads[0]):
            self.models.setdefault(info.name, {})[info.version] = info
            self._queues[info.name, info.version] = _Queue(index, info)
        for worker in workers:
            self._add(worker)
        self._tasks = [asyncio.create_task(self._keep(worker)) for worker in workers]

    def _add(self, worker: _Worker) -> None:
        self._ready.add(worker)
        self._metrics.workers.inc()
        worker.exited.add_done_callback(lambda _: self._wake())

    async def _end(self, workers: Sequence[_Worker]) -> None:
        for worker in workers:
            await worker.end()

    async def close(self) -> None:
        """Answer all requests that wait, then end the workers."""
        self._closing = True
        self._wake()
        await asyncio.gather(*self._tasks)

    async def run(
        self, info: ModelInfo, rows: int, arrays: Sequence[memoryview]
    ) -> list[memoryview]:
        """Compute the outputs of a request.

        Raises: Refused: the queue is full, or the request fails.
        """
        queue, limit = self._queues[info.name, info.version], self._setup.limits.queue
        if len(queue.requests) >= limit:
            raise Refused("queue_full", f"{limit} requests wait for model {info.name!a}")
        answer = asyncio.get_running_loop().create_future()
        request = _Waiting(rows, arrays, time.monotonic(), answer)
        queue.push(request)
        self._count(queue)
        self._wake()
        try:
            found: list[memoryview] = await answer
            return found
        finally:
            queue.drop(request)
            self._count(queue)

    def _count(self, queue: _Queue) -> None:
        labels = queue.info.name, queue.info.version
        self._metrics.waiting.labels(*labels).set(len(queue.requests))

    # ---------------------------------------------------------------------------------- workers

    async def _keep(self, worker: _Worker) -> None:
        """Give batches to a worker, and replace it when it ends, until the pool is closed."""
        while True:
            try:
                await self._work(worker)
            except LostWorker as error:
                self._metrics.lost.inc()
                status = await worker.end()
                _log.error("worker %d, status %d: %s", worker.process.pid, status, error)
            else:
                await worker.end(self._setup.limits.run_seconds)
                return
            finally:
                self._ready.discard(worker)
                self._metrics.workers.dec()
            replacement = await self._replacement()
            if replacement is None:
                return
            worker = replacement
            self._add(worker)

    async def _replacement(self) -> _Worker | None:
        """Start a worker; try again, with growing pauses, as long as it does not get ready."""
        for attempt in range(sys.maxsize):
            await asyncio.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
            if self._closing and not any(q.requests for q in self._queues.values()):
                return None
            worker = await _Worker.start(self._setup)
            try:
                found = await worker.load(self._setup)
                known = [queue.info for queue in self._queues.values()]
                if found == known:
                    return worker
                _log.error("a new worker has read other models than the server: reload the models")
            except (ConfigError, LostWorker) as error:
                _log.error("a new worker is not ready: %s", error)
            except BaseException:
                await worker.end()
                raise
            await worker.end()
        return None

    async def _work(self, worker: _Worker) -> None:
        while True:
            queue = await self._next(worker)
            if queue is None:
                return
            batch = queue.pop()
            self._count(queue)
            with self._metrics.busy.track_inprogress():
                await self._answer(worker, queue, batch)

    async def _next(self, worker: _Worker) -> _Queue | None:
        """Wait for a batch; None if the pool is closed and no request is left.

        Raises: LostWorker: the worker has ended.
        """
        while True:
            if worker.is_lost:
                raise LostWorker("the process has ended")
            queues = [queue for queue in self._queues.values() if queue.requests]
            if not queues and self._closing:
                return None
            now, wait = time.monotonic(), self._setup.batching.wait
            due = [q for q in queues if q.ready_at(wait) <= now or self._closing]
            if due:
                return min(due, key=lambda q: q.requests[0].since)
            until = min((queue.ready_at(wait) for queue in queues), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if until is None else until - now):
                    await self._arrived.wait()

    def _wake(self) -> None:
        """Let idle workers look for work."""
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    async def _answer(self, worker: _Worker, queue: _Queue, batch: list[_Waiting]) -> None:
        """Compute a batch; if that fails, compute each request of it alone."""
        batch = [request for request in batch if not request.answer.done()]
        if not batch:
            return
        started, labels = time.monotonic(), (queue.info.name, queue.info.version)
        try:
            error, data = await worker.run(queue, batch, self._setup.limits.run_seconds)
        except LostWorker:
            for request in batch:
                lost = Refused("worker_lost", "the worker of this request has ended; next: retry")
                _set(request, lost)
            raise
        self._metrics.run_seconds.labels(*labels).observe(time.monotonic() - started)
        self._metrics.rows.labels(*labels).observe(sum(request.rows for request in batch))
        if not error:
            _share(queue.info, batch, data)
        elif len(batch) == 1:
            _set(batch[0], Refused("failed", error))
        else:
            for number, request in enumerate(batch):
                try:
                    await self._answer(worker, queue, [request])
                except LostWorker:
                    for other in batch[number + 1 :]:
                        _set(other, Refused("worker_lost", "the worker of this request has ended"))
                    raise


def _set(request: _Waiting, found: list[memoryview] | Refused) -> None:
    if request.answer.done():  # its time is over
        return
    if isinstance(found, Refused):
        request.answer.set_exception(found)
    else:
        request.answer.set_result(found)


def _share(info: ModelInfo, batch: Sequence[_Waiting], data: memoryview) -> None:
    """Give each request its rows of the outputs."""
    rows = sum(request.rows for request in batch)
    outputs, start = [], 0
    for tensor in info.outputs:
        outputs.append(data[start : start + tensor.nbytes(rows)])
        start += tensor.nbytes(rows)
    first = 0
    for request in batch:
        last = first + request.rows
        parts = [
            out if len(batch) == 1 else out[tensor.nbytes(first) : tensor.nbytes(last)]
            for tensor, out in zip(info.outputs, outputs, strict=True)
        ]
        _set(request, parts)
        first = last
