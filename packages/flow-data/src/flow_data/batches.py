"""Batches of any Python data set, to be fed to jobs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import DataError, described
from flow_core.base.host_arrays import host_array

Collate = Callable[[Sequence[Any]], Any]
"""A function that joins samples to a batch."""
Transform = Callable[[Any, np.random.Generator], Any]
"""A function that changes a batch by numbers that it draws."""


def collate(samples: Sequence[Any]) -> Any:
    """Stack samples; if samples are tuples, lists or dicts, stack the arrays of each item.

    >>> collate([(1, {"x": [1.0, 2.0]}), (2, {"x": [3.0, 4.0]})])[1]["x"].shape
    (2, 2)
    """
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple):
        return tuple(collate(column) for column in zip(*samples, strict=True))
    stacked: Array = np.stack([host_array(sample) for sample in samples])
    return stacked


class Rows:
    """The rows of arrays: sample i has element i of each array.

    Args:
        arrays: a tuple or dict of arrays of one length.

    >>> Rows((np.arange(3), np.arange(6).reshape(3, 2)))[1]
    (np.int64(1), array([2, 3]))
    """

    def __init__(self, arrays: tuple[object, ...] | Mapping[object, object]) -> None:
        self._arrays: dict[object, Array] = {k: host_array(a) for k, a in _items(arrays)}
        self._tuple = isinstance(arrays, tuple)

    @property
    def lengths(self) -> list[int]:
        """The length of each array; -1 for numbers."""
        return [len(array) if array.ndim else -1 for array in self._arrays.values()]

    def __len__(self) -> int:
        return self.lengths[0]

    def __getitem__(self, place: int | Array) -> object:
        rows = {key: array[place] for key, array in self._arrays.items()}
        return tuple(rows.values()) if self._tuple else rows


class Batches:
    """An iterable of batches; see `batches`."""

    def __init__(
        self,
        source: Any,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        join: Collate,
        prefetch: int,
        transform: Transform | None = None,
    ) -> None:
        self._source = source
        self._size = batch_size
        self._shuffle, self._seed = shuffle, seed
        self._drop = drop_last
        self._join = join
        self._prefetch = prefetch
        self._transform = transform
        self._epoch = 0

    def __len__(self) -> int:
        count = len(self._source)
        return count // self._size if self._drop else -(-count // self._size)

    def __repr__(self) -> str:
        count = f"{len(self)} " if hasattr(self._source, "__len__") else ""
        return f"<{count}batches of {self._size}, epoch {self._epoch}>"

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, such as that at which an interrupted run resumes."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        made = self._batches(epoch)
        if self._transform is not None:
            made = self._changed(made, epoch, self._transform)
        return _ahead(made, self._prefetch) if self._prefetch else made

    def _changed(self, made: Iterator[Any], epoch: int, transform: Transform) -> Iterator[Any]:
        """Yield changed batches; the numbers depend on the seed, the epoch and the place."""
        for place, batch in enumerate(made):
            yield transform(batch, np.random.default_rng([self._seed, epoch, place, 1]))

    def _batches(self, epoch: int) -> Iterator[Any]:
        if isinstance(self._source, Rows) and self._join is collate:
            order = self._order(epoch)
            for start in range(0, len(self) * self._size, self._size):
                yield self._source[order[start : start + self._size]]
            return
        samples: list[Any] = []
        for number, sample in enumerate(self._samples(epoch)):
            samples.append(sample)
            if len(samples) == self._size:
                yield self._joined(samples, number)
                samples = []
        if samples and not self._drop:
            yield self._joined(samples, number)

    def _samples(self, epoch: int) -> Iterator[Any]:
        if not _has_places(self._source):
            yield from self._source
            return
        for place in self._order(epoch).tolist():
            yield self._source[place]

    def _order(self, epoch: int) -> Array:
        count = len(self._source)
        if not self._shuffle:
            return np.arange(count)
        return np.random.default_rng([self._seed, epoch]).permutation(count)

    def _joined(self, samples: Sequence[Any], last: int) -> Any:
        try:
            return self._join(samples)
        except Exception as error:
            raise DataError(
                f"joining samples {last - len(samples) + 1} to {last} to a batch",
                found=described(error),
                allowed="arrays of one shape, or tuples or dicts of these",
                hint="pad the samples in the data set, or pass collate=",
            ) from error


def batches(
    source: Any,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    collate: Collate = collate,
    prefetch: int = 2,
    transform: Transform | None = None,
) -> Batches:
    """Return the batches of a data set, in the order of its samples or shuffled.

    Each iteration over the result is an epoch.  A thread prepares batches ahead of the loop.

    Args:
        source: a tuple or dict of arrays of one length, whose rows are the samples; an object with
            ``len()`` and an index, such as a data set of torch, a list or an array; or any iterable
            of samples, which is iterated once per epoch.  A sample is an array, a tensor or a
            number, or a tuple or dict of these.
        batch_size: the number of samples in a batch.
        shuffle: whether to shuffle the samples in each epoch; needs ``len()`` and an index.
        seed: determines the order of shuffled samples, together with the number of the epoch.
        drop_last: whether to leave out a smaller last batch.  A placeholder with an open first
            size, ``tp.Numpy.Placeholder((None, ...))``, takes batches of any size.
        collate: joins a list of samples to a batch; stacks arrays by default.
        prefetch: the number of batches that are prepared ahead; 0 for none, without a thread.
        transform: changes each batch: ``transform(batch, rng)``, with a ``numpy.random.Generator``
            that the seed, the number of the epoch and that of the batch determine; see
            ``flow.data.augment``.

    Returns:
        An iterable of batches with ``len()``, if the data set has it, and ``set_epoch``.

    Raises:
        DataError: an argument is invalid; while iterating, samples cannot be joined.

    >>> for x, y in batches((np.arange(3), np.array([0, 1, 0])), 2):
    ...     print(x, y)
    [0 1] [0 1]
    [2] [0]
    """
    rows = Rows(source) if _are_columns(source) else None
    problems = (
        (rows is not None and len(set(rows.lengths)) > 1,
         f"arrays of {' and '.join(map(str, rows.lengths if rows else []))} rows",
         "arrays of one length"),
        (not isinstance(batch_size, int) or batch_size < 1, f"batch_size={batch_size!r:.40}",
         "a positive integer"),
        (not isinstance(prefetch, int) or prefetch < 0, f"prefetch={prefetch!r:.40}",
         "an integer of at least 0"),
        (not _has_places(source) and not hasattr(source, "__iter__"), f"{source!r:.60}",
         "an iterable, or an object with len() and an index"),
        (transform is not None and not callable(transform), f"transform={transform!r:.60}",
         "a function of a batch and a numpy.random.Generator"),
        (shuffle and not _has_places(source), f"shuffle=True for {type(source).__name__}",
         "an object with len() and an index"),
    )  # fmt: skip
    for wrong, found, allowed in problems:
        if wrong:
            raise DataError.at_caller("flow.data.batches", found=found, allowed=allowed)
    data = source if rows is None else rows
    return Batches(data, batch_size, shuffle, seed, drop_last, collate, prefetch, transform)


def _items(arrays: Iterable[object]) -> Iterable[tuple[object, object]]:
    return arrays.items() if isinstance(arrays, Mapping) else enumerate(arrays)


def _are_columns(source: object) -> bool:
    """Return whether a data set is a tuple or dict of arrays or tensors."""
    if not isinstance(source, tuple | Mapping) or not source:
        return False
    return all(len(getattr(array, "shape", ())) > 0 for _, array in _items(source))


def _has_places(source: object) -> bool:
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _ahead(items: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield items that a thread takes from an iterator, at most ``count`` ahead."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(count)
    stopped = threading.Event()

    def put(kind: str, value: object) -> bool:
        while not stopped.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def run() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end", None)
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the loop
            put("error", error)

    thread = threading.Thread(target=run, name="flow-data-batches", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value
    finally:
        stopped.set()
        thread.join(timeout=1)  # the data set may block
