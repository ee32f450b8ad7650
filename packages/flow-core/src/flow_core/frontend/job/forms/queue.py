"""The forms that a search has still to compile, in the order of their bounds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from flow_core.frontend.job.forms.form import Form, Levels
from flow_core.frontend.job.forms.table import (
    GRIDS,
    KINDS,
    LAYOUTS,
    MICRO,
    RECOMPUTED,
    STAGES,
    STATES,
    Change,
)

AS_IT_IS: Levels = (0,) * len(KINDS)


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A form to compile."""

    in_stages: bool  # whether it has stages of a pipeline, and comes after those without
    bound: float  # a lower bound on its time
    number: int  # the order of entries with equal bounds
    levels: Levels
    last: int = -1  # the position of the kind that was changed last
    before: Form | None = field(default=None, compare=False)  # the form without that change


class Queue:
    """A priority queue of forms to compile: those without stages first, each by its bound.

    Args:
        most: the strongest level of each kind.
        least: returns a lower bound on a form.
        is_pipeline: whether the job as it is has ops on several placements, which micro-batches
            let overlap.
    """

    def __init__(
        self, most: Levels, least: Callable[[Levels], float], is_pipeline: bool = False
    ) -> None:
        self._most, self._least, self._is_pipeline = most, least, is_pipeline
        self._heap = [Entry(False, 0.0, 0, AS_IT_IS)]
        self._seen = {AS_IT_IS}

    def pop(self) -> Entry | None:
        """Remove and return the form with the least bound; None if there is none."""
        return heapq.heappop(self._heap) if self._heap else None

    def put(self, entry: Entry) -> None:
        """Return a form that `pop` has removed to the queue."""
        heapq.heappush(self._heap, entry)

    def follow(self, form: Form, adds_work: bool, free: bool) -> None:
        """Add the forms that have one change more than a form.

        Args:
            adds_work: whether to add changes that only add work.
            free: whether its variables fit.
        """
        for i, change in self._next(form.levels):
            if self._overlaps(form.levels, i):
                if free:
                    self._add(form.levels, i, form.busiest, form)
            elif change.adds_work:
                if adds_work:
                    self._add(form.levels, i, form.seconds, form)
            elif not _has_work(form.levels) and (change.may_be_faster or not form.fits):
                self._add(form.levels, i, 0.0, form)

    def skip(self, entry: Entry) -> None:
        """Add the next level of the kind of which a level is not applicable to the job."""
        for i, change in self._next(entry.levels):
            fits = entry.before is not None and entry.before.fits
            may = change.may_be_faster or self._overlaps(entry.levels, i) or not fits
            if i == entry.last and may:
                bound = entry.bound if change.adds_work else 0.0
                self._add(entry.levels, i, bound, entry.before)

    def _next(self, levels: Levels) -> Iterator[tuple[int, Change]]:
        for i, kind in enumerate(KINDS):
            if levels[i] < self._most[i]:
                yield i, kind.levels[levels[i]]

    def _overlaps(self, levels: Levels, i: int) -> bool:
        """Return whether the next level of a kind lets stages of a pipeline overlap."""
        return KINDS[i] is MICRO and (self._is_pipeline or in_stages(levels))

    def _add(self, levels: Levels, i: int, bound: float, before: Form | None) -> None:
        following = (*levels[:i], levels[i] + 1, *levels[i + 1 :])
        if following not in self._seen:
            if KINDS[i] is not MICRO:
                bound = max(bound, self._least(following))
            entry = Entry(in_stages(following), bound, len(self._seen), following, i, before)
            heapq.heappush(self._heap, entry)
            self._seen.add(following)

    def ladder(self) -> Iterator[Levels]:
        """Yield forms of which each needs less memory than the one before, as a rule."""
        levels = list(AS_IT_IS)
        for kind in (STATES, RECOMPUTED, MICRO, LAYOUTS, GRIDS):
            i = KINDS.index(kind)
            for level in range(1, self._most[i] + 1):
                levels[i] = level
                yield tuple(levels)
        for kinds in ((RECOMPUTED, MICRO), (STATES, RECOMPUTED, MICRO)):
            for level in range(1, self._most[KINDS.index(STAGES)] + 1):
                chosen = [n if k in kinds else 0 for k, n in zip(KINDS, self._most, strict=True)]
                chosen[KINDS.index(STAGES)] = level
                yield tuple(chosen)


def in_stages(levels: Levels) -> bool:
    """Return whether a form has stages of a pipeline."""
    return levels[KINDS.index(STAGES)] > 0


def _has_work(levels: Levels) -> bool:
    """Return whether a form has a change that only adds work."""
    pairs = zip(KINDS, levels, strict=True)
    return any(level and kind.levels[level - 1].adds_work for kind, level in pairs)
