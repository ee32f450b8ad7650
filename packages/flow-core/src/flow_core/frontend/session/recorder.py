"""The recorder of a session: what is needed to run its last steps again.

The fed arrays of each step are copied into slots that later steps reuse, unless nothing can change
them; the step reads them there.  The variables are copied before a step of which at least K steps
follow before the next copy, and whenever something other than a recorded step has changed them.
The last K steps can then be replayed: from the variables of the latest copy before them, and the
fed arrays of all steps since.

Copies of large variables are further apart, so that they take at most `SHARE` of the processor
time, but at most `LONGEST` times K steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.alignment import ALIGNMENT, aligned
from flow_core.base.arrays import Array
from flow_core.base.config import Settings
from flow_core.base.errors import ConfigError, UnsupportedError
from flow_core.base.formats.recorded_steps import RecordedStep, Recording, write_recording
from flow_core.base.planning import is_planning
from flow_core.base.shutdown import call_at_shutdown, cancel_at_shutdown
from flow_core.device import World
from flow_core.frontend.session.variable_storage import StoredVariable, whole, window
from flow_core.runtime.recorded import Slot
from flow_core.runtime.variable_writes import VariableWrites
from flow_core.sharding.sbp import Region

SHARE = 0.004
"""The part of the time that copies of variables may take."""

LONGEST = 4
"""How many times K steps copies of variables may be apart."""

SMALL = 1 << 16
"""The size in bytes up to which results are kept."""

BLOCK = 1 << 23
"""The bytes of memory that are allocated at once for copies of fed arrays: two huge pages or more,
which take a third of the time of many small ones."""

Parts = dict[str, dict[Region, Array]]
"""Copies of the parts of variables, by name and region."""


@dataclass(slots=True)
class _Kept:
    """A step of the ring.

    Attributes:
        number: the number of steps recorded before.
        job, step: the job and the number of its step.
        feeds: the fed arrays.
        slot: the memory that has the copied ones; None if none was copied.
        results: the results; None for large ones, and before the step has finished.
    """

    number: int
    job: str
    step: int
    feeds: list[Array]
    slot: Slot | None
    results: list[Array | None] | None = None


@dataclass(slots=True)
class _Snapshot:
    """The variables before a step.

    Attributes:
        number: the number of steps recorded before.
        parts: the values.
    """

    number: int
    parts: Parts


@dataclass(slots=True)
class Recorder:
    """Records the steps of a session.

    Args:
        file: the file that is written when the session is closed or the program ends.
        steps: K, the number of steps that can be replayed.
        stored: the session's allocated variables.
        writes: counts the writes to them.
    """

    file: Path
    steps: int
    stored: Mapping[str, StoredVariable]
    writes: VariableWrites
    _kept: deque[_Kept] = field(default_factory=deque)
    _snapshots: deque[_Snapshot] = field(default_factory=deque)
    _unused: list[Parts] = field(default_factory=list)
    _number: int = 0
    _writes: int = -1
    _due: float = 0
    _unneeded: float = float("inf")
    _next: float = 0
    _began: float = 0.0
    _seconds: float = float("inf")

    def bound(self) -> None:
        self._writes = -1

    def begin(
        self, job: str, step: int, feeds: Sequence[Array], free: list[Slot]
    ) -> tuple[Sequence[Array], Slot | None]:
        number = self._number
        if number >= self._next or self.writes.count != self._writes:
            self._prepare(number)
        slot: Slot | None = None
        kept: list[Array] = []
        all_copied = True
        for i, feed in enumerate(feeds):
            if _is_constant(feed):
                kept.append(feed)
                all_copied = False
                continue
            if slot is None:
                slot = free.pop() if free else self._new_slot(job, feeds, free)
            own = slot.arrays[i]
            own[...] = feed if isinstance(feed, np.ndarray) else feed[...]
            kept.append(own)
        self._kept.append(_Kept(number, job, step, kept, slot))
        self._number = number + 1
        return kept, slot if all_copied else None

    def finish(self, results: Sequence[Any]) -> None:
        self._writes = self.writes.count
        self._kept[-1].results = [x.copy() if _is_small(x) else None for x in results]

    def _prepare(self, number: int) -> None:
        """Drop steps that are not needed, copy the variables if it is time, and note when next."""
        if not number:
            call_at_shutdown(self.save)
        if number >= self._unneeded:
            self._drop_steps()
        if self.writes.count != self._writes or (number >= self._due and self._is_due()):
            self._copy_variables()
        self._next = min(self._unneeded, self._due)

    def _is_due(self) -> bool:
        """Return whether it is time for another copy of the variables; ask again after K steps."""
        since = self._number - self._snapshots[-1].number
        self._due += self.steps
        cheap = self._seconds <= SHARE * (time.process_time() - self._began)
        return cheap or since >= LONGEST * self.steps

    def _drop_steps(self) -> None:
        """Drop the steps that no replay of the last K steps needs."""
        last = self._number - self.steps
        while len(self._snapshots) > 1 and self._snapshots[1].number <= last:
            self._unused.append(self._snapshots.popleft().parts)
        while self._kept and self._kept[0].number < self._snapshots[0].number:
            slot = self._kept.popleft().slot
            if slot is not None:
                slot.free.append(slot)
        self._find_unneeded()

    def _find_unneeded(self) -> None:
        """Find the number of steps after which the first ones are not needed."""
        later = len(self._snapshots) > 1
        self._unneeded = self._snapshots[1].number + self.steps if later else float("inf")

    def _new_slot(self, job: str, feeds: Sequence[Array], free: list[Slot]) -> Slot:
        """Allocate adjacent slots for fed arrays; return one, and add the others to ``free``."""
        # all rows of a partial feed
        feeds = [feed if isinstance(feed, np.ndarray) else feed[...] for feed in feeds]
        for index, array in enumerate(feeds):
            if array.dtype.hasobject:
                raise UnsupportedError(
                    f"recording a step of job {job!r}",
                    found=f"fed objects in argument {index}",
                    allowed="arrays of numbers",
                    hint="unset FLOW_REPLAY, or feed arrays of numbers",
                )
        *starts, size = accumulate((aligned(array.nbytes) for array in feeds), initial=0)
        count = max(1, min(self.steps, BLOCK // max(size, 1)))
        memory = np.empty(count * size + ALIGNMENT, np.uint8)
        memory = memory[-memory.ctypes.data % ALIGNMENT :]
        for first in range(count):
            at = zip(starts, feeds, strict=True)
            parts = [memory[first * size + i :][: x.nbytes] for i, x in at]
            arrays = [p.view(x.dtype).reshape(x.shape) for p, x in zip(parts, feeds, strict=True)]
            free.append(Slot(arrays, free))
        return free.pop()

    def _copy_variables(self) -> None:
        started = time.process_time()
        parts = self._unused.pop() if self._unused else {}
        self._snapshots.append(_Snapshot(self._number, self._copied(parts)))
        self._find_unneeded()
        self._due = self._number + self.steps
        self._began = time.process_time()
        self._seconds = min(self._seconds, self._began - started)

    def _copied(self, before: Parts) -> Parts:
        """Return copies of all variables, in the memory of older ones if it fits."""
        found: Parts = {}
        for name, stored in self.stored.items():
            if not stored.is_whole:
                found[name] = {whole(stored.info): stored.numpy()}
                continue
            own = before.get(name, {})
            parts = {part.region: part for part in reversed(stored.parts.values())}
            found[name] = {
                region: _copy(part.array, own.get(region), part.driver)
                for region, part in parts.items()
            }
        return found

    # ---------------------------------------------------------------------------------- results

    def recording(self) -> Recording:
        """Return the steps that can be replayed, with the variables before the first one."""
        last = max(self._number - self.steps, 0)
        before = [s.number for s in self._snapshots if s.number <= last]
        first = max(before) if before else min((s.number for s in self._snapshots), default=0)
        kept = tuple(
            RecordedStep(
                k.job, k.step, tuple(k.feeds), None if k.results is None else tuple(k.results)
            )
            for k in self._kept
            if k.number >= first
        )
        variables = {
            s.number - first: {name: _assembled(parts) for name, parts in s.parts.items()}
            for s in self._snapshots
            if first <= s.number < first + len(kept)
        }
        return Recording(self.steps, kept, variables)

    def save(self) -> None:
        write_recording(self.file, self.recording())

    def close(self) -> None:
        """Write the file if there were steps; a later session may replace it."""
        if self._number:
            cancel_at_shutdown(self.save)
            self.save()


def recorder_of(
    settings: Settings,
    stored: Mapping[str, StoredVariable],
    writes: VariableWrites,
    world: World | None,
) -> Recorder | None:
    """Return the recorder that settings request for a session, if any.

    Raises:
        ConfigError: the program has several processes.
    """
    if not settings.replay or is_planning():
        return None
    if world is not None:
        raise ConfigError(
            "recording steps",
            found=f"FLOW_REPLAY={settings.replay!r} in a program of {world.size} processes",
            allowed="programs of one process",
        )
    return Recorder(Path(settings.replay), settings.replay_steps, stored, writes)


def _is_small(result: Any) -> bool:
    is_numbers = isinstance(result, np.ndarray) and not result.dtype.hasobject
    return is_numbers and result.nbytes <= SMALL


def _is_constant(array: Any) -> bool:
    """Return whether nothing can change an array: it and all that it is a view of are read-only."""
    while isinstance(array, np.ndarray) and not array.flags.writeable:
        if array.base is None:
            return not array.dtype.hasobject
        array = array.base
    return isinstance(array, bytes)


def _copy(array: Any, old: Array | None, driver: Any) -> Array:
    if not isinstance(array, np.ndarray):
        copied: Array = driver.copy_out(array)
        return copied
    if old is None or old.shape != array.shape or old.dtype != array.dtype:
        old = np.empty(array.shape, array.dtype)
    np.copyto(old, array)
    return old


def _assembled(parts: Mapping[Region, Array]) -> Array:
    """Return the whole variable, given the regions that devices hold."""
    regions = list(parts)
    ends = [max(region[axis][1] for region in regions) for axis in range(len(regions[0]))]
    first = next(iter(parts.values()))
    value = np.empty(ends, first.dtype)
    for region, array in parts.items():
        value[window(region)] = array
    return value
