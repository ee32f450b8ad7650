"""The report of a search for a form of a job that fits into the memory of its devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Searched:
    """A search among forms of a job, and the form that was chosen.

    Attributes:
        form: the chosen form in words.
        how: the settings that request it.
        levels: the level of each kind of change, in the order of the table of changes.
        device: the device that has the least free memory, as text.
        nbytes, limit: the bytes that it needs, and those that it has.
        seconds: the predicted time of a step.
        kinds: the kinds of changes that were combined.
        tried: the number of forms that were compiled.
        fitting: how many of these fit.
        left: the number of forms that were not compiled because the budget was spent.
        bound: a lower bound on the time of all forms that fit, by the cost model.
        runner_up: the next form that fits in words, and its time; None if no other fits.
        stages: the stages of the chosen form in words; none if it is not divided.
    """

    form: str
    how: tuple[str, ...]
    levels: tuple[int, ...]
    device: str
    nbytes: int
    limit: int
    seconds: float
    kinds: tuple[str, ...]
    tried: int
    fitting: int
    left: int
    bound: float
    runner_up: tuple[str, float] | None = None
    stages: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """The largest possible saving as a fraction of the time."""
        return max(0.0, 1 - self.bound / self.seconds) if self.seconds else 0.0

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the report as pairs of texts."""
        yield "form", f"{self.form}: {self.nbytes:,} of {self.limit:,} bytes of {self.device}"
        yield from ((f"stage {i}", stage) for i, stage in enumerate(self.stages, 1))
        kinds = ", ".join(self.kinds)
        left = f"; {self.left} more were left for lack of sbp_selector_seconds"
        yield (
            "forms searched",
            f"{self.tried} with {kinds}; {self.fitting} fit{left if self.left else ''}",
        )
        yield "step", f"{_milliseconds(self.seconds)}, gap at most {self.gap:.2%} among these forms"
        if self.runner_up is not None:
            name, seconds = self.runner_up
            yield "runner-up", f"{name}, {_milliseconds(seconds)}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
