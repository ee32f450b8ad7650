"""Samplers, which determine the order of samples.

The order is the same for any number of devices and after a restart.

The samples of all epochs form one sequence, and batch ``k`` of size ``n`` starts at sample ``k n``.
The seed and the epoch number determine the order of an epoch, so that checkpoints need only the
step number.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

from flow_core.base.errors import DataError
from flow_data.records.framed import Files

T = TypeVar("T")
Ref = tuple[int, int, Any]
"""A reference to a record: the index of its file, its number in the file, and its place."""


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """Shuffle options."""

    buffer: int = 0  # size of the shuffle buffer in runs of records; 0 for no shuffle
    parts: bool = False  # whether each epoch after the first reads the files in another order
    seed: int = 0  # seed of both shuffles, of records and of files
    run: int = 1  # number of consecutive records that stay together


class Sampler:
    """The sequence of the samples in files."""

    def __init__(self, files: Files, options: SamplerOptions) -> None:
        self.files = files
        self.options = options
        self._count: int | None = None

    def epoch(self, number: int) -> Iterator[Ref]:
        """Yield references to all records of an epoch, in its order."""
        found = self._stored(number)
        if not self.options.buffer:
            return found
        seed = f"{self.options.seed}-{number}"
        if self.options.run == 1:
            return shuffled(found, self.options.buffer, seed)
        runs = iter(lambda: tuple(islice(found, self.options.run)), ())
        return chain.from_iterable(shuffled(runs, self.options.buffer, seed))

    def _stored(self, epoch: int) -> Iterator[Ref]:
        parts = list(range(len(self.files.paths)))
        if self.options.parts and epoch:
            random.Random(f"{self.options.seed}-parts-{epoch}").shuffle(parts)
        for part in parts:
            number = 0
            while (place := self.files.place(part, number)) is not None:
                yield part, number, place
                number += 1

    def count(self) -> int:
        """Return the number of records; the first call scans all files.

        Raises `DataError` if the files contain no record.
        """
        if self._count is None:
            self._count = sum(1 for _ in self._stored(0))
            if not self._count:
                raise no_records(self.files.paths)
        return self._count

    def after(self, sample: int) -> Iterator[Ref]:
        """Yield references to samples endlessly, starting with the sample of a number."""
        epoch, skip = divmod(sample, self.count()) if sample else (0, 0)
        while True:
            refs = self.epoch(epoch)
            number = 0
            for number, ref in enumerate(refs, 1):
                if number > skip:
                    yield ref
            if not number:
                raise no_records(self.files.paths)
            self._count = number
            epoch, skip = epoch + 1, 0


def no_records(paths: Sequence[str]) -> DataError:
    """Return the error that the files contain no record."""
    shown = ", ".join(paths[:3]) + (" ..." if len(paths) > 3 else "")
    return DataError(f"reading {shown}", found="no record", allowed="at least one record")


def shuffled(refs: Iterator[T], size: int, seed: str) -> Iterator[T]:
    """Shuffle records, or runs of records, with a buffer.

    >>> sorted(shuffled(iter([(0, i, None) for i in range(5)]), 3, "1"))[0]
    (0, 0, None)
    """
    draw = random.Random(seed).randrange
    buffer = list(islice(refs, size))
    for ref in refs:
        at = draw(len(buffer))
        yield buffer[at]
        buffer[at] = ref
    while buffer:
        at = draw(len(buffer))
        buffer[at], buffer[-1] = buffer[-1], buffer[at]
        yield buffer.pop()


class BatchSampler:
    """The records of each batch; several threads may request batches in any order.

    Args:
        size: number of samples in a batch, over all devices.
        window: the range of a batch's samples that this device reads.
    """

    def __init__(self, sampler: Sampler, size: int, window: tuple[int, int]) -> None:
        self.sampler = sampler
        self._size = size
        self._window = window
        self._lock = threading.Lock()
        self._next = -1
        self._samples: Iterator[Ref] = iter(())
        self._ready: dict[int, list[Ref]] = {}

    def refs(self, step: int) -> list[Ref]:
        with self._lock:
            found = self._ready.pop(step, None)
            if found is not None:
                return found
            if self._next < 0 or not self._next <= step <= self._next + 1000:
                self._samples = self.sampler.after(step * self._size)
                self._next = step
                self._ready.clear()
            for early in range(self._next, step):
                self._ready[early] = self._read()
            return self._read()

    def _read(self) -> list[Ref]:
        start, stop = self._window
        try:
            batch = list(islice(self._samples, self._size))
        except BaseException:
            self._next = -1
            raise
        self._next += 1
        return batch[start:stop]
