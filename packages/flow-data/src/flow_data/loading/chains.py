"""Samples taken through several ops at a time, while they are in the cache.

Op by op, a batch of decoded pictures is larger than any cache, and all of it is held until the
next batch.  Row by row, a picture is decoded, cropped, resized and normalised where it lies, and
the next one takes its memory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from flow_core.authoring.backends import Launch
from flow_data.loading.body import Member, Slot
from flow_data.rows import FromStep, RowWork


class Stopped(Exception):
    """The loader is gone."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A launch of a loader's op.

    Attributes:
        member: which op.
        name: its name.
        launch: what it does.
    """

    member: int
    name: str
    launch: Launch

    def run(self, stop: threading.Event, seconds: dict[str, float]) -> None:
        """Does it, and notes how long it took."""
        if stop.is_set():
            raise Stopped
        began = perf_counter()
        self.launch()
        seconds[self.name] = seconds.get(self.name, 0.0) + perf_counter() - began


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages that each row goes through, one after the other.

    Attributes:
        names: the ops' names.
        works: what they do to a row.
        passing: buffers of instances that nobody reads after the chain.
    """

    names: tuple[str, ...]
    works: tuple[RowWork, ...]
    passing: tuple[Any, ...]

    def run(self, stop: threading.Event, seconds: dict[str, float]) -> None:
        """Does all rows, and notes how long each stage took."""
        spent = [0.0] * len(self.works)
        for row in range(self.works[0].count):
            if stop.is_set():
                raise Stopped
            for k, work in enumerate(self.works):
                began = perf_counter()
                work.at(row)
                spent[k] += perf_counter() - began
            for buffer in self.passing:
                buffer[row] = None
        for name, value in zip(self.names, spent, strict=True):
            seconds[name] = seconds.get(name, 0.0) + value


Link = tuple[Stage, RowWork]


def chained(
    stages: Sequence[Stage],
    members: Sequence[Member],
    arrays: Sequence[Sequence[Any]],
    kept: Sequence[Slot],
) -> list[Stage | Chain]:
    """The stages in an order of the same results, with neighbours that go row by row as chains.

    Args:
        stages: in the order of the ops.
        members: the loader's ops.
        arrays: the buffers of their outputs.
        kept: the outputs that are handed over.
    """
    parts: list[Stage | Chain] = []
    chain: list[Link] = []
    for stage in stages:
        work = stage.launch
        if isinstance(work, RowWork) and (not chain or work.count == chain[0][1].count):
            chain.append((stage, work))
        elif not _reads(stage, chain, members):
            parts.append(stage)
        else:
            parts += _linked(chain, members, arrays, kept)
            chain = [(stage, work)] if isinstance(work, RowWork) else []
            parts += [] if chain else [stage]
    return parts + _linked(chain, members, arrays, kept)


def _reads(stage: Stage, chain: Sequence[Link], members: Sequence[Member]) -> bool:
    """Whether a stage reads what a stage of the chain writes."""
    if isinstance(stage.launch, FromStep):
        return False
    sources = {m for m, _ in members[stage.member].inputs} | {stage.member}
    return any(link.member in sources for link, _ in chain)


def _linked(
    chain: Sequence[Link],
    members: Sequence[Member],
    arrays: Sequence[Sequence[Any]],
    kept: Sequence[Slot],
) -> list[Stage | Chain]:
    if len(chain) < 2:
        return [stage for stage, _ in chain]
    inside = {stage.member for stage, _ in chain}
    outside = {s for i, m in enumerate(members) if i not in inside for s in m.inputs} | set(kept)
    passing = [
        buffer
        for i in sorted(inside)
        for k, buffer in enumerate(arrays[i])
        if buffer.dtype == object and (i, k) not in outside
    ]
    names = tuple(stage.name for stage, _ in chain)
    return [Chain(names, tuple(work for _, work in chain), tuple(passing))]
