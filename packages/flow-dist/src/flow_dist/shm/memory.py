"""Memory that the processes of one host share, and phases that read it where it lies.

A segment is anonymous memory with a file descriptor, which other processes of the same user open
through ``/proc``: nothing has a name in a file system, so nothing is left behind by a killed
process, and no small ``/dev/shm`` overflows.
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

from flow_core.base.alignment import aligned
from flow_core.device import Launch
from flow_dist.phases import Box, Gather, Phases, Route, launches_of, routes
from flow_dist.shm.large_pages import enlarge, mapped

SWITCH = "FLOW_DIST_SHARED_MEMORY"
"""The variable that is "0" where processes of one host shall send and receive as others do."""

STAGE = 1 << 22
"""Bytes of a segment for boxes that do not lie in shared memory, unless one needs more."""

PIECE = 1 << 17
"""Bytes that are combined at a time: what is half done stays in the cache."""

Place = tuple[int, int, int, int]
"""Where something lies: process, file descriptor, size of the segment, offset."""


class Segment:
    """Shared memory of this process.

    Attributes:
        nbytes: its size.
        place: where it begins.
        bytes: all of it, as an array.
        large: whether it has large pages.
    """

    def __init__(self, nbytes: int) -> None:
        self._file = os.memfd_create("flow", os.MFD_CLOEXEC)
        size = max(1, nbytes)
        os.ftruncate(self._file, size)
        self.nbytes = nbytes
        self.place: Place = (os.getpid(), self._file, size, 0)
        self.bytes = mapped(self._file, size)
        self.large = enlarge(self.bytes)
        self.address = int(self.bytes.ctypes.data)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """The C-contiguous array of ``shape`` at byte ``offset``: this is an arena, too."""
        size = prod(shape) * np.dtype(dtype).itemsize
        return self.bytes[offset : offset + size].view(dtype).reshape(shape)

    def offset_of(self, array: Any) -> int | None:
        """Where an array begins in it; None when it lies elsewhere."""
        offset = int(array.__array_interface__["data"][0]) - self.address
        return offset if 0 <= offset < self.nbytes else None


def open_segment(process: int, file: int, size: int) -> Any:
    """The memory of another process as an array of bytes.

    Raises:
        OSError: it cannot be reached.
    """
    handle = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
    try:
        return mapped(handle, size)
    finally:
        os.close(handle)


def neighbours(gather: Callable[[bytes], Sequence[bytes]]) -> tuple[frozenset[int], ...]:
    """Per rank the ranks whose memory it can read and which can read its own: itself, too.

    Args:
        gather: gives what all processes say, in the order of the ranks.
    """
    probe = _Probe()
    told = gather(probe.text)
    seen = [other for other, text in enumerate(told) if _is_readable(text)]
    all_seen = [set(map(int, text.split())) for text in gather(b" ".join(b"%d" % o for o in seen))]
    return tuple(
        frozenset(other for other in mine if rank in all_seen[other])
        for rank, mine in enumerate(all_seen)
    )


class _Probe:
    """A segment with a secret in it, for others to look for; nothing where there are none."""

    def __init__(self) -> None:
        self.text = b""
        if hasattr(os, "memfd_create") and os.environ.get(SWITCH, "1") != "0":
            secret = secrets.token_bytes(16)
            self._segment = Segment(16)
            self._segment.bytes[:] = np.frombuffer(secret, np.uint8)
            self.text = b"%d %d %d " % self._segment.place[:3] + secret


def _is_readable(text: bytes) -> bool:
    if not text:
        return False
    process, file, size, secret = text.split(b" ", 3)
    try:
        found = open_segment(int(process), int(file), int(size))
    except OSError:
        return False
    return bool(found.tobytes() == secret)


# ----------------------------------------------------------------------------------- memory


class SharedMemory:
    """What one comm shares with its neighbours.

    Lives as long as the comm: arenas of local devices, and room for boxes from elsewhere.
    """

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._stage: Segment | None = None
        self._used = 0
        self._opened: Callable[[int, int, int], Any] = lru_cache(maxsize=None)(open_segment)

    def arena(self, nbytes: int) -> Segment:
        """New memory for a device."""
        segment = Segment(nbytes)
        self._segments.append(segment)
        return segment

    def place_of(self, array: Any) -> Place | None:
        """Where an array lies, None when that is not in shared memory."""
        for segment in self._segments:
            offset = segment.offset_of(array)
            if offset is not None:
                return (*segment.place[:3], offset)
        return None

    def stage(self, box: Box) -> Any:
        """Room for a box."""
        if self._stage is None or self._used + box.nbytes > self._stage.nbytes:
            self._stage, self._used = self.arena(max(STAGE, box.nbytes)), 0
        slot = self._stage.view(self._used, box.shape, box.dtype)
        self._used += aligned(box.nbytes)
        return slot

    def open(self, place: Sequence[int], strides: Sequence[int] | None, box: Box) -> Any:
        """A box of another process, in one piece where there are no strides."""
        process, file, size, offset = place
        memory = self._opened(process, file, size)
        steps = None if strides is None else tuple(strides)
        return np.ndarray(box.shape, box.dtype, memory.data, offset, steps)


# ------------------------------------------------------------------------------------ phases


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """How the processes of an exchange wait for one another.

    Attributes:
        rank: this process's.
        owner: the rank of a device's process.
        swap: tells each of some ranks a text, and gives what they tell.
        tokens: launches that send to the first ranks and wait for the second ones.
    """

    rank: int
    owner: Callable[[str], int]
    swap: Callable[[Mapping[int, bytes], Iterable[int]], Mapping[int, bytes]]
    tokens: Callable[[frozenset[int], frozenset[int]], Sequence[Launch]]


@dataclass(frozen=True, slots=True)
class Access:
    """A box that a process reads or fills in the memory of another one.

    Attributes:
        by, of: that process, and the other one.
        box: the box.
        fills: whether it is filled.
    """

    by: int
    of: int
    box: Box
    fills: bool = False


def bind_shared(phases: Phases, memory: SharedMemory, meeting: Rendezvous) -> Iterator[Launch]:
    """The launches of this process's part of an exchange in one phase between neighbours.

    Those who read wait until those whose boxes they read say that these are ready; at the end,
    those who gave wait until all have read.
    """
    (gathers,) = phases.phases
    found = routes(gathers, meeting.owner)
    accesses = [Access(by, of, box) for (of, by), boxes in found.items() for box in boxes]
    offers = Offers(memory)
    views = opened(accesses, offers, memory, meeting)
    targets, sources = sides(found, meeting.rank)
    yield from phases.fills
    yield from offers.copies
    yield from meeting.tokens(targets, sources)
    for gather in _in_pairs(gathers, meeting):
        parts = [views[p.key] if p.view is None else p.view for p in gather.parts]
        yield from _combined(phases.combine, gather.target.view, parts)
    yield from meeting.tokens(sources, targets)


def _in_pairs(gathers: Iterable[Gather], meeting: Rendezvous) -> list[Gather]:
    """The gathers of this process, in an order in which two at a time read from each other.

    Pairwise exchange (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication
    Operations in MPICH, 2005): nobody's memory is read by all at once.
    """
    rank, owner = meeting.rank, meeting.owner
    own = [gather for gather in gathers if owner(gather.target.device) == rank]
    return sorted(own, key=lambda gather: owner(gather.parts[-1].device) ^ rank)


def sides(routes: Iterable[Route], rank: int) -> tuple[frozenset[int], frozenset[int]]:
    """Whom a process gives something, and from whom it gets something."""
    found = set(routes)
    return (
        frozenset(target for source, target in found if source == rank),
        frozenset(source for source, target in found if target == rank),
    )


class Offers:
    """Boxes of this process that others read or fill, in shared memory: some beside the box.

    Attributes:
        copies: launches that put boxes into shared memory which do not lie there.
        fetches: launches that get from there what others have put into such boxes.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._offered: dict[object, Any] = {}
        self.copies: list[Launch] = []
        self.fetches: list[Launch] = []

    def place_of(self, box: Box, fills: bool) -> tuple[Place | None, tuple[int, ...]]:
        """Where others find a box, and its strides."""
        if box.key not in self._offered:
            view = box.view
            if self._memory.place_of(view) is None:
                view = self._memory.stage(box)
                if fills:
                    self.fetches.append(partial(np.copyto, box.view, view))
                else:
                    self.copies.append(partial(np.copyto, view, box.view))
            self._offered[box.key] = view
        view = self._offered[box.key]
        return self._memory.place_of(view), view.strides

    def view_of(self, box: Box) -> Any:
        """A box of this process where others find it, if it is offered."""
        return self._offered.get(box.key, box.view)


def opened(
    accesses: Sequence[Access], offers: Offers, memory: SharedMemory, meeting: Rendezvous
) -> dict[object, Any]:
    """The boxes of others that this process reads or fills, by their keys.

    Args:
        accesses: those of all processes, in an order that all agree on.
        offers: takes note of this process's boxes that others want.
        memory, meeting: where they meet.
    """
    told: dict[int, list[Any]] = {}
    for access in accesses:
        if access.of == meeting.rank:
            told.setdefault(access.by, []).append(offers.place_of(access.box, access.fills))
    texts = {by: json.dumps(rows).encode() for by, rows in told.items()}
    own = [access for access in accesses if access.by == meeting.rank]
    heard = meeting.swap(texts, {access.of for access in own})
    rows = {of: iter(json.loads(text)) for of, text in heard.items()}
    views: dict[object, Any] = {}
    for access in own:
        place, strides = next(rows[access.of])
        views[access.box.key] = memory.open(place, strides, access.box)
    return views


def piece_by_piece(
    combine: Callable[..., Any], targets: Sequence[Any], parts: Sequence[Any]
) -> Iterator[Launch]:
    """Combines rows in their order for some targets, any of which may be one of the parts."""
    first, *others = targets
    step = PIECE // first.itemsize
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


def _combined(combine: Callable[..., Any], target: Any, parts: Sequence[Any]) -> Iterator[Launch]:
    """As `launches_of`, long rows of three or more parts piece by piece."""
    rows = [target, *parts]
    if len(parts) < 3 or target.nbytes <= PIECE or any(row.ndim != 1 for row in rows):
        return launches_of(combine, target, parts)
    return piece_by_piece(combine, [target], parts)
