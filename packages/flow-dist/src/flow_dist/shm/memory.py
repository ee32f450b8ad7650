"""Shared memory segments of one host, through which ranks access boxes of their peers.

A segment is an anonymous ``memfd``, which other processes of the same user open through ``/proc``.
It has no name in a file system, so a killed process leaves nothing behind, and the size of
``/dev/shm`` does not limit it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import Device
from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array
from flow_dist.phases import Box, Combine, Route
from flow_dist.shm.large_pages import enlarge, mapped

ENABLED = "FLOW_DIST_SHARED_MEMORY"
"""The environment variable that disables shared memory between processes if it is "0"."""

ALIGN = 64
STAGE_BYTES = 1 << 22
"""Minimum size in bytes of a segment for staged boxes."""

CHUNK_BYTES = 1 << 17
"""Number of bytes that are combined at a time, so that intermediate results stay in the cache."""

Location = tuple[int, int, int, int]
"""Process id, file descriptor, size of the segment, offset."""


class Segment:
    """Shared memory created by this process.

    Attributes:
        nbytes: size of the segment in bytes.
        location: the `Location` of the start of the segment.
        bytes: the whole segment as an array of bytes.
        large: whether the segment is backed by large pages.
        address: the address at which this process maps the segment.
    """

    def __init__(self, nbytes: int) -> None:
        self._file = os.memfd_create("flow", os.MFD_CLOEXEC)
        size = max(1, nbytes)
        os.ftruncate(self._file, size)
        self.nbytes = nbytes
        self.location: Location = (os.getpid(), self._file, size, 0)
        self.bytes = mapped(self._file, size)
        self.large = enlarge(self.bytes)
        self.address = int(self.bytes.ctypes.data)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def view(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return the C-contiguous array of ``shape`` at byte ``offset``, as ``Arena.view`` does."""
        size = prod(shape) * np.dtype(dtype).itemsize
        return self.bytes[offset : offset + size].view(dtype).reshape(shape)

    def offset_of(self, array: Array) -> int | None:
        """Return the byte offset of an array in the segment, or None if the array is not in it."""
        offset = int(array.__array_interface__["data"][0]) - self.address
        return offset if 0 <= offset < self.nbytes else None


def open_segment(process: int, file: int, size: int) -> Any:
    """Map a segment of another process as an array of bytes.

    Raises:
        OSError: the segment cannot be opened.
    """
    handle = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
    try:
        return mapped(handle, size)
    finally:
        os.close(handle)


def shared_memory_peers(gather: Callable[[bytes], Sequence[bytes]]) -> tuple[frozenset[int], ...]:
    """Return, for each rank, the set of ranks that can map each other's memory with that rank.

    Args:
        gather: all-gathers bytes over all processes, in rank order.
    """
    probe = _Probe()
    texts = gather(probe.text)
    readable = [other for other, text in enumerate(texts) if _is_readable(text)]
    rows = gather(b" ".join(b"%d" % other for other in readable))
    readable_by = [set(map(int, text.split())) for text in rows]
    return tuple(
        frozenset(other for other in peers if rank in readable_by[other])
        for rank, peers in enumerate(readable_by)
    )


class _Probe:
    """A segment with a secret, which peers read as a test.

    Attributes:
        text: location of the segment, and the secret; empty if shared memory is disabled.
    """

    def __init__(self) -> None:
        self.text = b""
        if hasattr(os, "memfd_create") and os.environ.get(ENABLED, "1") != "0":
            secret = secrets.token_bytes(16)
            self._segment = Segment(16)
            self._segment.bytes[:] = np.frombuffer(secret, np.uint8)
            self.text = b"%d %d %d " % self._segment.location[:3] + secret


def _is_readable(text: bytes) -> bool:
    if not text:
        return False
    process, file, size, secret = text.split(b" ", 3)
    try:
        segment = open_segment(int(process), int(file), int(size))
    except OSError:
        return False
    return bool(segment.tobytes() == secret)


# ----------------------------------------------------------------------------------- memory


class SharedMemory:
    """The shared memory of one communicator (comm): arenas of local devices, and staged boxes.

    It lives as long as the comm.
    """

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._stage: Segment | None = None
        self._used = 0
        self._opened: Callable[[int, int, int], Any] = lru_cache(maxsize=None)(open_segment)

    def arena(self, nbytes: int) -> Segment:
        segment = Segment(nbytes)
        self._segments.append(segment)
        return segment

    def location_of(self, array: Array) -> Location | None:
        """Return the location of an array, or None if the array is not in shared memory."""
        for segment in self._segments:
            offset = segment.offset_of(array)
            if offset is not None:
                return (*segment.location[:3], offset)
        return None

    def stage(self, box: Box) -> Any:
        if self._stage is None or self._used + box.nbytes > self._stage.nbytes:
            self._stage, self._used = self.arena(max(STAGE_BYTES, box.nbytes)), 0
        slot = self._stage.view(self._used, box.shape, box.dtype)
        self._used += aligned(box.nbytes)
        return slot

    def open(self, location: Sequence[int], strides: Sequence[int] | None, box: Box) -> Array:
        """Map a box of a peer; the box is contiguous if the strides are None."""
        process, file, size, offset = location
        memory = self._opened(process, file, size)
        steps = None if strides is None else tuple(strides)
        return np.ndarray(box.shape, box.dtype, memory.data, offset, steps)


# ------------------------------------------------------------------------------------ phases


@dataclass(frozen=True, slots=True)
class PeerGroup:
    """The ranks of one exchange; they swap messages while binding, and synchronize in each launch.

    Attributes:
        rank: rank of this process.
        owner: maps a device to the rank that owns it.
        swap: sends one message to each rank of a mapping, and returns one message from each rank
            of an iterable.
        tokens: returns launches that send a token to each rank of the first set and wait for a
            token from each rank of the second set.
    """

    rank: int
    owner: Callable[[Device], int]
    swap: Callable[[Mapping[int, bytes], Iterable[int]], Mapping[int, bytes]]
    tokens: Callable[[frozenset[int], frozenset[int]], Sequence[Launch]]


@dataclass(frozen=True, slots=True)
class Access:
    """A box that a rank reads or writes in the memory of a peer.

    Attributes:
        rank, peer: the accessing rank, and the rank that owns the box.
        writes: whether the access is a write.
    """

    rank: int
    peer: int
    box: Box
    writes: bool = False


def peers(routes: Iterable[Route], rank: int) -> tuple[frozenset[int], frozenset[int]]:
    """Return the ranks that a rank sends to, and the ranks that the rank receives from."""
    pairs = set(routes)
    return (
        frozenset(target for source, target in pairs if source == rank),
        frozenset(source for source, target in pairs if target == rank),
    )


class Exports:
    """Boxes of this process that peers access; boxes outside of shared memory are staged.

    Attributes:
        copies: launches that copy boxes to their staging buffers, before peers read.
        fetches: launches that copy staging buffers back, after peers have written.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._views: dict[object, Any] = {}
        self.copies: list[Launch] = []
        self.fetches: list[Launch] = []

    def export(self, box: Box, writes: bool) -> tuple[Location | None, tuple[int, ...]]:
        """Return the location and strides at which peers access a box."""
        if box.key not in self._views:
            view = box.view
            if self._memory.location_of(view) is None:
                view = self._memory.stage(box)
                if writes:
                    self.fetches.append(partial(np.copyto, box.view, view))
                else:
                    self.copies.append(partial(np.copyto, view, box.view))
            self._views[box.key] = view
        view = self._views[box.key]
        return self._memory.location_of(view), view.strides

    def view_of(self, box: Box) -> Any:
        """Return the exported view of a box of this process, else the box itself."""
        return self._views.get(box.key, box.view)


def open_views(
    accesses: Sequence[Access], exports: Exports, memory: SharedMemory, group: PeerGroup
) -> dict[object, Array]:
    """Map the boxes of peers that this process accesses, by key.

    Args:
        accesses: the accesses of and to this process, in an order that is equal on all ranks.
        exports: receives the boxes of this process that peers access.
        memory: maps the boxes of peers.
        group: the ranks of the exchange.
    """
    exported: dict[int, list[Any]] = {}
    for access in accesses:
        if access.peer == group.rank:
            exported.setdefault(access.rank, []).append(exports.export(access.box, access.writes))
    messages = {rank: json.dumps(rows).encode() for rank, rows in exported.items()}
    own = [access for access in accesses if access.rank == group.rank]
    received = group.swap(messages, {access.peer for access in own})
    rows = {peer: iter(json.loads(message)) for peer, message in received.items()}
    views: dict[object, Any] = {}
    for access in own:
        location, strides = next(rows[access.peer])
        views[access.box.key] = memory.open(location, strides, access.box)
    return views


def combine_in_chunks(
    combine: Combine, targets: Sequence[Array], parts: Sequence[Array]
) -> Iterator[Launch]:
    """Yield launches that combine 1-d arrays in order into every target, chunk by chunk.

    Any target may be one of the parts.
    """
    first, *others = targets
    step = CHUNK_BYTES // first.itemsize
    sums = np.empty(min(step, first.size) if len(parts) > 2 else 0, first.dtype)
    for low in range(0, first.size, step):
        target, *pieces = (row[low : low + step] for row in (first, *parts))
        between = sums[: target.size]
        first_two = between if len(parts) > 2 else target
        yield partial(combine, pieces[0], pieces[1], out=first_two)
        for piece in pieces[2:-1]:
            yield partial(combine, between, piece, out=between)
        if len(parts) > 2:
            yield partial(combine, between, pieces[-1], out=target)
        for other in others:
            yield partial(np.copyto, other[low : low + step], target)
