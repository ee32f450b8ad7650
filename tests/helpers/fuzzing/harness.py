"""Shares cases out to worker processes, and ends those that crash or take too long."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import processes

from fuzzing.worker import (
    MICROSECONDS,
    NUMBER,
    PEAK,
    READ,
    REFUSED,
    TRY,
    Chunk,
    Failure,
    Limits,
    work,
)

CHUNK = 200
_BLOCKED = 60.0
"""Seconds after which a case that computes nothing hangs, on an idle machine."""

_CONTEXT = multiprocessing.get_context("spawn")


@dataclass
class Score:
    """What came of the cases of a target.

    Attributes:
        read: inputs that were accepted.
        refused: inputs that were refused with a typed error.
        failures: cases that broke a rule.
        seconds: of the processor's time.
        peak: most bytes that a case took.
    """

    read: int = 0
    refused: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    peak: int = 0

    @property
    def cases(self) -> int:
        """How many cases were tried."""
        return self.read + self.refused + len(self.failures)


class _Worker:
    """A process, the chunk that it is at, and when its case began."""

    def __init__(self, limits: Limits, body: Callable[..., None]) -> None:
        self.board: Any = _CONTEXT.Array("q", PEAK + 1, lock=False)
        self.connection, theirs = _CONTEXT.Pipe()
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.TemporaryDirectory(dir=base, prefix="flow-fuzz-")
        given = (theirs, self.board, limits, self.folder.name)
        self.process = _CONTEXT.Process(target=body, args=given, daemon=True)
        self.process.start()
        theirs.close()
        self.chunk: Chunk | None = None
        self._case = ((-1, 0), 0.0, 0.0)

    def give(self, chunk: Chunk) -> None:
        self.board[:] = [chunk.start - 1] + [0] * PEAK
        self.chunk = chunk
        self._case = ((-1, 0), 0.0, 0.0)
        self.connection.send(chunk)

    def overdue(self, limits: Limits) -> str:
        """Why the running case has to be ended; empty while it has not."""
        number, now, used = self.board[NUMBER], time.monotonic(), _seconds_of(self.process.pid)
        case = (number, self.board[TRY])
        if self.chunk is None or number < self.chunk.start or case != self._case[0]:
            self._case = (case, now, used)
            return ""
        if used - self._case[2] > 2 * limits.seconds:  # a case that ends before says so itself
            return f"no end after {used - self._case[2]:.1f} s"
        blocked = now - self._case[1]
        return f"blocked for {blocked:.0f} s" if blocked > processes.scaled(_BLOCKED) else ""

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()
        self.folder.cleanup()


def _seconds_of(pid: int | None) -> float:
    """Return the CPU time of a process, or its age where the system does not report CPU time."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return time.monotonic()
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


class Run:
    """Tries cases of several targets.

    Args:
        counts: how many cases of each target.
        seed: decides the cases.
        workers: number of processes.
        limits: what a case may take.
        first: number of the first case of each target.
        until: when to stop by `time.monotonic`, whatever is left; None for never.
        body: what workers run.
    """

    def __init__(
        self,
        counts: Mapping[str, int],
        seed: int,
        workers: int = 1,
        limits: Limits | None = None,
        first: int = 0,
        until: float | None = None,
        body: Callable[..., None] = work,
    ) -> None:
        self.scores = {name: Score() for name in counts}
        self.seconds = 0.0
        self._limits = limits or Limits()
        self._until = until
        self._body = body
        self._count = workers
        self._left = deque(_chunks(counts, seed, first))
        self._workers: list[_Worker] = []

    def run(self, told: Callable[[Mapping[str, Score]], None] = lambda scores: None) -> None:
        """Try all cases; ``told`` is called with the scores now and then."""
        began = time.monotonic()
        try:
            while self._busy():
                self._wait()
                told(self.scores)
        finally:
            for worker in self._workers:
                worker.end()
            self.seconds = time.monotonic() - began

    def _busy(self) -> bool:
        """Give idle workers something to do; whether any has."""
        if self._until is not None and time.monotonic() > self._until:
            self._left.clear()
        idle = [worker for worker in self._workers if worker.chunk is None]
        while self._left and (idle or len(self._workers) < self._count):
            if not idle:
                idle.append(_Worker(self._limits, self._body))
                self._workers.append(idle[-1])
            worker = idle.pop()
            worker.give(self._left.popleft())
        return any(worker.chunk for worker in self._workers)

    def _wait(self) -> None:
        busy = {w.connection: w for w in self._workers if w.chunk}
        for connection in multiprocessing.connection.wait(list(busy), timeout=0.2):
            self._hear(busy[connection])  # type: ignore[index]
        for worker in [w for w in self._workers if w.chunk]:
            why = worker.overdue(self._limits)
            if why:
                self._lose(worker, why)

    def _hear(self, worker: _Worker) -> None:
        try:
            said = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            self._lose(worker, f"the process ended with status {worker.process.exitcode}")
            return
        chunk = worker.chunk
        if chunk is None:
            raise RuntimeError("a worker without a chunk has said something")
        if isinstance(said, Failure):
            self.scores[chunk.target].failures.append(said)
        elif said is not None:
            raise RuntimeError(f"a worker of the harness has failed at {chunk}:\n{said}")
        else:
            self._count_up(worker, chunk)
            worker.chunk = None

    def _count_up(self, worker: _Worker, chunk: Chunk) -> None:
        score, board = self.scores[chunk.target], worker.board
        score.read += board[READ]
        score.refused += board[REFUSED]
        score.seconds += board[MICROSECONDS] / 1e6
        score.peak = max(score.peak, board[PEAK])

    def _lose(self, worker: _Worker, why: str) -> None:
        """A worker's case has ended it, or must be ended: others go on behind that case."""
        chunk = worker.chunk
        if chunk is None:
            raise RuntimeError("a worker without a chunk was lost")
        number = worker.board[NUMBER]
        if number < chunk.start:
            raise RuntimeError(f"preparing {chunk.target}: {why}")
        while worker.connection.poll() and not worker.connection.closed:
            try:
                said = worker.connection.recv()
            except (EOFError, OSError):
                break
            if isinstance(said, Failure):
                self.scores[chunk.target].failures.append(said)
        if all(f.number != number for f in self.scores[chunk.target].failures):
            failure = Failure(chunk.target, chunk.seed, number, why)
            self.scores[chunk.target].failures.append(failure)
        self._count_up(worker, chunk)
        if number + 1 < chunk.stop:
            self._left.appendleft(Chunk(chunk.target, chunk.seed, number + 1, chunk.stop))
        worker.end()
        self._workers.remove(worker)


def _chunks(counts: Mapping[str, int], seed: int, first: int) -> Sequence[Chunk]:
    """Chunks of all targets in turn, so that a run that is stopped has tried some of each."""
    found = [
        (start / count, Chunk(name, seed, first + start, first + min(count, start + CHUNK)))
        for name, count in counts.items()
        for start in range(0, count, CHUNK)
    ]
    return [chunk for _, chunk in sorted(found, key=lambda entry: entry[0])]
