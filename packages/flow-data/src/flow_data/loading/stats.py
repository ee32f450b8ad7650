"""Statistics of the loaders of a process: time per stage, queue levels, skipped samples."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from flow_data.loading.workers import WorkerLimits


@dataclass(slots=True)
class LoaderStats:
    """Counters of one loader."""

    name: str  # name of the loader's reader
    slots: int  # maximum number of batches that are ready or being filled
    batches: int = 0  # number of batches that steps consumed
    waited: float = 0.0  # seconds that all steps except the first waited for batches
    first: float = 0.0  # seconds that the first step waited for its batch
    copied: float = 0.0  # seconds that steps spent copying batches
    # Seconds of work of each op, summed over all threads.
    stages: dict[str, float] = field(default_factory=dict)
    # For each number of ready batches, the number of steps that started with it.
    levels: dict[int, int] = field(default_factory=dict)
    skipped: int = 0  # number of corrupt samples that were skipped
    messages: list[str] = field(default_factory=list)  # messages about the first of these samples
    # Messages about files that were truncated at a corrupt frame.
    broken: list[str] = field(default_factory=list)
    # Maximum number of batches being filled at once; None if it is unknown.
    limits: WorkerLimits | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add_stages(self, seconds: dict[str, float]) -> None:
        """Add the seconds of work on one batch."""
        with self.lock:
            for name, value in seconds.items():
                self.stages[name] = self.stages.get(name, 0.0) + value

    def add_step(self, level: int, waited: float, copied: float) -> None:
        """Count a step and its batch."""
        with self.lock:
            if self.batches:
                self.waited += waited
            else:
                self.first = waited
            self.batches += 1
            self.copied += copied
            self.levels[level] = self.levels.get(level, 0) + 1

    def add_skipped(self, message: str) -> None:
        """Count a skipped sample."""
        with self.lock:
            self.skipped += 1
            if len(self.messages) < 20:
                self.messages.append(message)

    def add_broken(self, messages: Sequence[str]) -> list[str]:
        """Record messages about truncated files; return the new messages."""
        with self.lock:
            new = [message for message in messages if message not in self.broken]
            self.broken += new
        return new


_known: list[LoaderStats] = []


def new_stats(name: str, slots: int, limits: WorkerLimits) -> LoaderStats:
    """Create the counters of a new loader and register them for `all_stats`."""
    stats = LoaderStats(name, slots, limits=limits)
    _known.append(stats)
    del _known[:-64]
    return stats


def all_stats() -> list[LoaderStats]:
    """Return the counters of the last 64 loaders of this process, oldest first."""
    return list(_known)
