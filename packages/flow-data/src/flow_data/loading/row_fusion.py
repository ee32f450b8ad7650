"""Row fusion: apply several ops to a sample while it is in the processor's cache.

If a loader executes op by op, a batch of decoded images exceeds the cache and occupies memory until
the next batch. If it executes row by row, an image is decoded, cropped, resized and normalized in
the cache, and its memory is reused for the next image.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from flow_core.authoring.backends import Launch
from flow_data.loading.body import Member, Slot
from flow_data.rows import RowWork, StepLaunch


class Stopped(Exception):
    """The exception that ends work on a batch when the loader is deleted."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A launch of a loader's op."""

    member: int  # index of the op
    name: str  # of the op
    launch: Launch

    def run(self, stop: threading.Event, seconds: dict[str, float]) -> None:
        """Run the launch and add its time to ``seconds``."""
        if stop.is_set():
            raise Stopped
        began = perf_counter()
        self.launch()
        seconds[self.name] = seconds.get(self.name, 0.0) + perf_counter() - began


@dataclass(frozen=True, slots=True)
class FusedRows:
    """Consecutive stages that are all applied to a row before the next row."""

    names: tuple[str, ...]  # of the ops
    works: tuple[RowWork, ...]  # the ops' functions that process a row
    temporaries: tuple[Any, ...]  # buffers of instances that only the fused ops read

    def run(self, stop: threading.Event, seconds: dict[str, float]) -> None:
        """Process all rows, and add the time of each stage to ``seconds``."""
        spent = [0.0] * len(self.works)
        for row in range(self.works[0].count):
            if stop.is_set():
                raise Stopped
            for k, work in enumerate(self.works):
                began = perf_counter()
                work.run_row(row)
                spent[k] += perf_counter() - began
            for buffer in self.temporaries:
                buffer[row] = None
        for name, value in zip(self.names, spent, strict=True):
            seconds[name] = seconds.get(name, 0.0) + value


Link = tuple[Stage, RowWork]


def fuse_rows(
    stages: Sequence[Stage],  # the stages in the order of the ops
    members: Sequence[Member],
    arrays: Sequence[Sequence[Any]],  # the buffers of the outputs of each op
    kept: Sequence[Slot],  # the members' outputs that steps consume
) -> list[Stage | FusedRows]:
    """Fuse stages that work row by row, and move other stages before these where possible."""
    parts: list[Stage | FusedRows] = []
    chain: list[Link] = []
    for stage in stages:
        work = stage.launch
        if isinstance(work, RowWork) and (not chain or work.count == chain[0][1].count):
            chain.append((stage, work))
        elif not _reads(stage, chain, members):
            parts.append(stage)
        else:
            parts += _fused(chain, members, arrays, kept)
            chain = [(stage, work)] if isinstance(work, RowWork) else []
            parts += [] if chain else [stage]
    return parts + _fused(chain, members, arrays, kept)


def _reads(stage: Stage, chain: Sequence[Link], members: Sequence[Member]) -> bool:
    if isinstance(stage.launch, StepLaunch):
        return False
    sources = {m for m, _ in members[stage.member].inputs} | {stage.member}
    return any(link.member in sources for link, _ in chain)


def _fused(
    chain: Sequence[Link],
    members: Sequence[Member],
    arrays: Sequence[Sequence[Any]],
    kept: Sequence[Slot],
) -> list[Stage | FusedRows]:
    if len(chain) < 2:
        return [stage for stage, _ in chain]
    inside = {stage.member for stage, _ in chain}
    outside = {s for i, m in enumerate(members) if i not in inside for s in m.inputs} | set(kept)
    temporaries = [
        buffer
        for i in sorted(inside)
        for k, buffer in enumerate(arrays[i])
        if buffer.dtype == object and (i, k) not in outside
    ]
    names = tuple(stage.name for stage, _ in chain)
    return [FusedRows(names, tuple(work for _, work in chain), tuple(temporaries))]
