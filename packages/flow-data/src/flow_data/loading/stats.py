"""What the loaders of a process did: time per stage, queue levels, samples left out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from flow_data.loading.workers import Share


@dataclass(slots=True)
class LoaderStats:
    """Counters of one loader.

    Attributes:
        name: its reader's name.
        slots: how many batches may be in work or ready at a time.
        share: how many may be in work, None where nobody has said.
        batches: batches that steps took.
        waited: seconds that steps waited for a batch, the first one left out.
        first: seconds that the first step waited.
        copied: seconds that steps took to copy batches.
        stages: seconds of work by op, over all threads.
        levels: how often so many batches were ready when a step came.
        skipped: samples left out because they are corrupt.
        messages: about the first of these.
        broken: about files that were left out from where their frame is broken.
    """

    name: str
    slots: int
    batches: int = 0
    waited: float = 0.0
    first: float = 0.0
    copied: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    levels: dict[int, int] = field(default_factory=dict)
    skipped: int = 0
    messages: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    share: Share | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add_stages(self, seconds: dict[str, float]) -> None:
        """Adds the work of one batch."""
        with self.lock:
            for name, value in seconds.items():
                self.stages[name] = self.stages.get(name, 0.0) + value

    def add_step(self, level: int, waited: float, copied: float) -> None:
        """Notes how a step got its batch."""
        with self.lock:
            if self.batches:
                self.waited += waited
            else:
                self.first = waited
            self.batches += 1
            self.copied += copied
            self.levels[level] = self.levels.get(level, 0) + 1

    def add_skipped(self, message: str) -> None:
        """Notes a sample that was left out."""
        with self.lock:
            self.skipped += 1
            if len(self.messages) < 20:
                self.messages.append(message)

    def add_broken(self, messages: Sequence[str]) -> list[str]:
        """Notes files that were left out in part; gives the messages that are new."""
        with self.lock:
            new = [message for message in messages if message not in self.broken]
            self.broken += new
        return new


_known: list[LoaderStats] = []


def new_stats(name: str, slots: int, share: Share) -> LoaderStats:
    """Counters for a new loader, which `all_stats` lists."""
    stats = LoaderStats(name, slots, share=share)
    _known.append(stats)
    del _known[:-64]
    return stats


def all_stats() -> list[LoaderStats]:
    """The counters of the loaders of this process, oldest first: the last 64."""
    return list(_known)
