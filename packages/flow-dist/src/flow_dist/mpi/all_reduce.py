"""All-reduces by MPI's nonblocking collectives, between processes with a device each.

Like `flow_dist.phases`, an all-reduce sends chunks to their owners, which combine them in rank
order, and back, or each input to everybody if that takes fewer bytes than latency.  A launch is
described by the sizes of the chunks, so that binding takes no object for each of the processes, and
MPI chooses in which order, and over which processes, messages travel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import COMBINE, Exchange, Launch, present
from flow_core.base.arrays import Array
from flow_dist.control.waiting import wait
from flow_dist.phases import Combine, copy_launch, is_small

Chunks = tuple[Array, Array]
"""The number of elements of each process, and where they start."""


def bind_collectively(
    exchange: Exchange, rank: int, comm: Any, inputs: Sequence[Any], outputs: Sequence[Any]
) -> Iterator[Launch]:
    """Yield this process's launches of an all-reduce.

    Args:
        exchange: the all-reduce; each of its devices belongs to another process.
        rank: the position of this process's device among the devices.
        comm: the MPI communicator of the processes, in the order of the devices.
        inputs, outputs: the arrays; this process has one of each member.
    """
    given, made = ([array for _, array in present(side)] for side in (inputs, outputs))
    size = sum(array.size for array in given)
    if not size:
        return
    is_packed = len(given) > 1 or not all(a.flags.c_contiguous for a in (*given, *made))
    flat = np.empty(size, given[0].dtype) if is_packed else given[0].reshape(-1)
    total = flat if is_packed else made[0].reshape(-1)
    if is_packed:
        yield from _copies(flat, given, True)
    combine, p = COMBINE[exchange.combine], len(exchange.group)
    if is_small(exchange):
        rows = np.empty((p, size), flat.dtype)
        yield partial(_finish, partial(comm.Iallgather, _words(flat), _words(rows)))
        yield partial(_combine, combine, rows, total)
    else:
        yield from _in_chunks(combine, comm, rank, flat, total, p)
    if is_packed:
        yield from _copies(total, made, False)


def _in_chunks(
    combine: Combine, comm: Any, rank: int, flat: Array, total: Array, p: int
) -> Iterator[Launch]:
    """Yield launches that combine a chunk of all processes, and share it with all."""
    from mpi4py import MPI

    sizes, starts = chunks = _balanced(flat.size, p)
    own = total[starts[rank] : starts[rank] + sizes[rank]]
    rows = np.empty((p, own.size), flat.dtype)
    send, receive = _message(flat, chunks), _message(rows, _equal(own.size, p))
    yield partial(_finish, partial(comm.Ialltoallv, send, receive))
    if own.size:
        yield partial(_combine, combine, rows, own)
    yield partial(_finish, partial(comm.Iallgatherv, MPI.IN_PLACE, _message(total, chunks)))


def _finish(start: Callable[[], Any]) -> None:
    """Start a collective, and wait until it is complete."""
    wait(start().Test)


def _combine(combine: Combine, rows: Array, target: Array) -> None:
    """Combine rows from first to last; views of rows are made in each launch, and not kept."""
    combine(rows[0], rows[1], out=target)
    for row in rows[2:]:
        combine(target, row, out=target)


def _copies(flat: Array, arrays: Sequence[Array], packs: bool) -> Iterator[Launch]:
    """Yield launches that copy arrays to, or from, the parts of a flat array."""
    start = 0
    for array in arrays:
        part = flat[start : start + array.size].reshape(array.shape)
        start += array.size
        yield copy_launch(part, array) if packs else copy_launch(array, part)


def _words(array: Array) -> list[Any]:
    """Return the elements of an array as an MPI message of integers of the same size."""
    from mpi4py import MPI

    size = array.dtype.itemsize
    kinds = {1: MPI.BYTE, 2: MPI.INT16_T, 4: MPI.INT32_T, 8: MPI.INT64_T}
    return [array.reshape(-1).view(f"i{size}"), kinds[size]]


def _message(array: Array, chunks: Chunks) -> list[Any]:
    words, kind = _words(array)
    return [words, chunks, kind]


@lru_cache(maxsize=64)
def _balanced(size: int, parts: int) -> Chunks:
    """Return the parts of a balanced split, whose first ``size % parts`` are one longer."""
    base, extra = divmod(size, parts)
    index = np.arange(parts)
    return base + (index < extra), index * base + np.minimum(index, extra)


@lru_cache(maxsize=64)
def _equal(size: int, parts: int) -> Chunks:
    return np.full(parts, size), np.arange(parts) * size
