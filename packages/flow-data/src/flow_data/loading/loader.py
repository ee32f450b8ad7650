"""The loader: several threads prefetch batches in bounded memory.

A loader is an actor with a register of slots. Each slot has the buffers of a batch and the launches
of the loader's ops on these buffers. Worker threads fill slots, and steps consume these in order; a
consumed slot is filled again for the next step that has no slot yet. The step number determines the
batch, so that the result does not depend on the order in which threads fill slots.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from flow_core.authoring.backends import BOXING, Launch
from flow_core.authoring.specs import BindContext, KernelQuery, load
from flow_core.base.arrays import Array
from flow_core.base.philox import op_seed
from flow_data.instances import RowError
from flow_data.loading.body import Member, copies, decode
from flow_data.loading.row_fusion import Stage, fuse_rows
from flow_data.loading.source import READERS, Source, open_source
from flow_data.loading.stats import LoaderStats, new_stats
from flow_data.loading.workers import Job, WorkerLimits, prefetch_count, workers

log = logging.getLogger("flow_data")


class Slot:
    """The buffers of a batch, and the launches that fill these buffers."""

    def __init__(
        self,
        members: Sequence[Member],
        ctx: BindContext,
        sources: dict[int, Source],  # the sources of the loader's readers, by index of the member
        kept: Sequence[tuple[int, int]],  # the members' outputs that steps consume
        stop: threading.Event,  # an event that is set when the loader is deleted
        stats: LoaderStats,
    ) -> None:
        self.step = np.zeros((), np.int64)
        self.arrays = [[np.empty(t.shape, t.dtype.numpy) for t in m.outputs] for m in members]
        self._sources = sources
        stages = [
            Stage(i, m.name, launch)
            for i, m in enumerate(members)
            if i not in sources
            for launch in self._bind(m, i, ctx)
        ]
        self._parts = fuse_rows(stages, members, self.arrays, kept)
        self._stop = stop
        self._stats = stats

    def _bind(self, member: Member, index: int, ctx: BindContext) -> Sequence[Launch]:
        inputs = tuple(self.arrays[m][k] for m, k in member.inputs)
        if member.type == BOXING:
            return copies(member, inputs, self.arrays[index])
        query = _query(member, ctx)
        find = ctx.query.find
        if find is None:
            raise RuntimeError("a loader needs a query that finds kernels")
        kernel = find(query)
        size = kernel.workspace(query) if kernel.workspace else None
        bound = load(kernel.load)(
            BindContext(
                query,
                inputs,
                tuple(self.arrays[index]),
                None if size is None else np.empty(size, np.uint8),
                self.step,
                op_seed(ctx.seed, member.logical),
            )
        )
        return bound if isinstance(bound, tuple | list) else (bound,)

    def fill(self, step: int) -> None:
        """Fill the slot with the batch of a step; replace corrupt samples if allowed."""
        self.step[...] = step
        refs = {i: source.refs(step) for i, source in self._sources.items()}
        self._note_broken()
        unread = {i: set(range(len(rows))) for i, rows in refs.items()}
        bad: set[int] = set()
        while True:
            try:
                self._fill(refs, unread)
                return
            except RowError as error:
                if not self._may_skip(error):
                    self._add_origin(error, refs)
                    raise
                self._replace(refs, error, bad)
                for rows in unread.values():
                    rows.add(error.row)

    def _note_broken(self) -> None:
        found = [message for source in self._sources.values() for message in source.broken()]
        for message in self._stats.add_broken(found) if found else ():
            log.warning("skipped the rest of a file: %s", message)

    def _may_skip(self, error: RowError) -> bool:
        return error.row >= 0 and any(source.skip for source in self._sources.values())

    def _add_origin(self, error: RowError, refs: dict[int, list[Any]]) -> None:
        """Add the origin of the corrupt sample to an error."""
        for i, rows in refs.items():
            if 0 <= error.row < len(rows):
                origin = str(self._sources[i].origin(rows[error.row]))
                if origin not in str(error):
                    error.add_note(f"  sample: {origin}")

    def _replace(self, refs: dict[int, list[Any]], error: RowError, bad: set[int]) -> None:
        """Replace a corrupt sample by a valid sample of the batch."""
        self._add_origin(error, refs)
        bad.add(error.row)
        count = min(len(rows) for rows in refs.values())
        order = [*range(error.row - 1, -1, -1), *range(error.row + 1, count)]
        valid = next((row for row in order if row not in bad), None)
        if valid is None:
            raise error
        for rows in refs.values():
            rows[error.row] = rows[valid]
        message = "; ".join([str(error).replace("\n", " "), *getattr(error, "__notes__", ())])
        self._stats.add_skipped(message)
        log.warning("skipped a corrupt sample: %s", message)

    def _fill(self, refs: dict[int, list[Any]], unread: dict[int, set[int]]) -> None:
        seconds: dict[str, float] = {}
        started = time.perf_counter()
        for i, source in self._sources.items():
            for row in sorted(unread[i]):
                _read(source, refs[i][row], row, self.arrays[i])
                unread[i].remove(row)
        seconds["read"] = time.perf_counter() - started
        for part in self._parts:
            part.run(self._stop, seconds)
        self._stats.add_stages(seconds)


def _read(source: Source, ref: Any, row: int, arrays: Sequence[Array]) -> None:
    try:
        source.read(ref, row, arrays)
    except RowError as error:
        error.row = row
        raise


def _query(member: Member, ctx: BindContext) -> KernelQuery:
    members = list(decode(ctx.query.attrs["body"]))
    inputs = tuple(members[m].outputs[k] for m, k in member.inputs)
    return KernelQuery(member.type, member.attrs, inputs, member.outputs, ctx.query.find)


class Loader:
    """A launch that prefetches batches and copies them to the outputs of steps.

    Args:
        ctx: the context of a ``data_loader`` op.
    """

    def __init__(self, ctx: BindContext) -> None:
        members = list(decode(ctx.attrs["body"]))
        self._outputs = ctx.outputs
        self._slots_of = tuple(ctx.attrs["outputs"])
        self._step = ctx.step
        self._sources = _sources(members, ctx.seed)
        self._limits = WorkerLimits.from_cores(ctx.cores)
        count = ceil(self._limits.waiting / _devices(members)) + prefetch_count()
        self.stats = new_stats(_name(members), count, self._limits)
        stop = threading.Event()
        self._free = [
            Slot(members, ctx, self._sources, self._slots_of, stop, self.stats)
            for _ in range(count)
        ]
        self._queue: deque[tuple[int, Slot, Job]] = deque()
        weakref.finalize(self, stop.set).atexit = False  # steps may still run at exit

    def __call__(self) -> None:
        """Copy the running step's batch to the outputs, and start to fill the slot again."""
        step = int(self._step)
        if not self._queue or self._queue[0][0] != step:
            self._start(step)
        level = sum(batch.done() for _, __, batch in self._queue)
        started = time.perf_counter()
        _, slot, batch = self._queue[0]
        if not batch.done():
            with workers().step_waiting():
                batch.wait()
        batch.result()
        arrived = time.perf_counter()
        for out, (member, index) in zip(self._outputs, self._slots_of, strict=True):
            np.copyto(out, slot.arrays[member][index])
        self._queue.popleft()
        self._submit(slot)
        self.stats.add_step(level, arrived - started, time.perf_counter() - arrived)

    def _start(self, step: int) -> None:
        """Start at a step: the first one, or the one after a restored checkpoint or an error."""
        for _, slot, batch in self._queue:
            if not batch.cancel():
                batch.wait()
            self._free.append(slot)
        self._queue.clear()
        self._next = step
        while self._free:
            self._submit(self._free.pop())

    def _submit(self, slot: Slot) -> None:
        step = self._next
        self._next += 1
        work = partial(slot.fill, step)
        self._queue.append((step, slot, workers().submit(work, self._limits)))


def _sources(members: Sequence[Member], seed: int) -> dict[int, Source]:
    return {
        i: open_source(m.type, m.attrs, op_seed(seed, m.logical), m.outputs[0].shape[0])
        for i, m in enumerate(members)
        if m.type in READERS
    }


def _devices(members: Sequence[Member]) -> int:
    """Return the number of devices over which the reader is split, each with its own loader."""
    reader = next(m for m in members if m.type in READERS)
    batch: Any = reader.attrs["batch_size"]
    return max(1, round(int(batch) / reader.outputs[0].shape[0]))


def _name(members: Sequence[Member]) -> str:
    return next(m.name for m in members if m.type in READERS)


def bind(ctx: BindContext) -> Launch:
    """Return the launch that copies the batch of a step to the outputs."""
    return Loader(ctx)
