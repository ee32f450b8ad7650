"""Samples of language models: windows of equal length in the concatenated sequences of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flow_core.authoring.specs import AttrValue
from flow_core.base.arrays import Array
from flow_core.base.errors import DataError
from flow_data.records.record import Origin
from flow_data.records.tokens import TokenFile

MOST = 1 << 26
"""The maximum number of sequences of all epochs, each counted once per epoch."""

_SEPARATE = 0.80
"""If the last epoch has less than this part of its samples, it is shuffled by itself."""


class TokenOrder:
    """The order of sequences and samples: that of Megatron-LM's GPT data set, for the same seed.

    Sample i consists of the tokens from ``i * length`` to ``(i + 1) * length``, inclusive, of all
    epochs' sequences one after the other.  The sequences of all epochs are shuffled together, then
    the samples; a last epoch of which few samples are used is shuffled by itself.

    Args:
        lengths: number of tokens of each sequence of the data set.
        length: number of tokens from one sample to the next.
        samples: number of samples that are needed at least.
        seed: seed of the shuffles; None for no shuffle.

    Raises:
        DataError: the sequences have no tokens, or so few that too many epochs are needed.
    """

    def __init__(
        self, lengths: Array, first: int, count: int, length: int, samples: int, seed: int | None
    ) -> None:
        own = np.arange(first, first + count, dtype=np.int32)
        tokens = int(lengths[own].sum())
        epochs = -(-(samples * length + 1) // tokens) if tokens else 0
        if not 0 < epochs * count <= MOST:
            raise DataError(
                f"ordering {samples} samples of {length} tokens",
                found=f"{count} sequences of {tokens} tokens, to be read {epochs} times",
                allowed=f"sequences with tokens, of which {MOST} suffice",
                hint="pass fewer num_samples, a longer data set, or another split",
            )
        self.samples = (epochs * tokens - 1) // length
        whole = epochs
        if epochs > 1:
            before = ((epochs - 1) * tokens - 1) // length
            part = int(_SEPARATE * ((tokens - 1) // length))
            whole -= samples - before < part
        random = None if seed is None else np.random.RandomState(seed % (1 << 32))
        self.sequences = _shuffled(np.tile(own, epochs), whole * count, random)
        self.ends = np.cumsum(lengths[self.sequences])
        self._order = None
        if random is not None:
            every = np.arange(self.samples, dtype=np.uint32 if self.samples < 2**32 - 1 else int)
            self._order = _shuffled(every, (whole * tokens - 1) // length, random)

    def start(self, sample: int) -> int:
        """Return the first token of a sample, given its number in the shuffled order."""
        return sample if self._order is None else int(self._order[sample])


def _shuffled(values: Array, first: int, random: np.random.RandomState | None) -> Array:
    """Shuffle ``values[:first]`` and ``values[first:]``, each on its own, in place."""
    if random is not None:
        random.shuffle(values[:first])
        if first < len(values):
            random.shuffle(values[first:])
    return values


def part_of(sizes: Sequence[int], index: int, count: int) -> tuple[int, int]:
    """Return the first sequence and the number of sequences of a part of a data set.

    Args:
        sizes: relative sizes of the parts.

    >>> [part_of((969, 30, 1), i, 1000) for i in range(3)]
    [(0, 969), (969, 30), (999, 1)]
    """
    total = np.float32(sum(sizes))
    counts = [int(np.rint(np.float32(n) / total * np.float32(count))) for n in sizes]
    first = min(sum(counts[:index]), count)
    return first, min(counts[index], count - first)


class TokenSource:
    """The source of samples of tokens.

    Args:
        seed: seed of the op, used unless the attributes have one.
        rows: number of samples that this device reads per step.
    """

    skip = False

    def __init__(self, attrs: Mapping[str, AttrValue], seed: int, rows: int) -> None:
        self._file = TokenFile(attrs["data_file_prefix"])
        self._length, self._batch = attrs["seq_length"], attrs["batch_size"]
        own = attrs["random_seed"]
        first, count = part_of(attrs["split_sizes"], attrs["split_index"], len(self._file.lengths))
        self._wanted = attrs["num_samples"]
        self._order = TokenOrder(
            self._file.lengths,
            first,
            count,
            self._length,
            self._wanted,
            (seed if own is None else own) if attrs["shuffle"] else None,
        )
        region = attrs["region"]
        start = region[0][0] if region else 0
        self._rows = range(start, start + rows)

    def refs(self, step: int) -> list[int]:
        """Return the numbers of the samples of a step.

        Raises `DataError` if the data set has been prepared for fewer samples.
        """
        first, most = step * self._batch, self._order.samples
        if first + self._batch > most:
            raise DataError(
                f"reading the batch of step {step}",
                found=f"samples {first} to {first + self._batch - 1} of {most}, which follow from "
                f"num_samples={self._wanted}",
                allowed=f"steps 0 to {most // self._batch - 1}",
                hint="pass num_samples=batch_size * the number of steps, or more",
            )
        return [first + row for row in self._rows]

    def read(self, ref: int, row: int, outputs: Sequence[Array]) -> None:
        out = outputs[0][row]
        at = self._order.start(ref) * self._length
        number = int(np.searchsorted(self._order.ends, at, side="right"))
        done = 0
        while done < len(out):
            sequence = int(self._order.sequences[number])
            left = int(self._order.ends[number]) - at
            part = out[done : done + left]
            self._file.read(sequence, int(self._file.lengths[sequence]) - left, part)
            done, at, number = done + len(part), at + len(part), number + 1

    def origin(self, ref: int) -> Origin:
        """Return the sequence in which a sample begins."""
        at = self._order.start(ref) * self._length
        number = int(np.searchsorted(self._order.ends, at, side="right"))
        return self._file.origin(int(self._order.sequences[number]))

    def broken(self) -> Sequence[str]:
        """Return no messages, because damaged files are refused."""
        return ()
