"""The report of a search for a form of a job that fits into the memory of its devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Searched:
    """A search among forms of a job, and the form that was chosen."""

    form: str  # the chosen form in words
    how: tuple[str, ...]  # the settings that request it
    levels: tuple[int, ...]  # of each kind of change, in the order of the table of changes
    device: str  # the device that has the least free memory, as text
    nbytes: int  # the bytes that it needs
    limit: int  # the bytes that it has
    seconds: float  # the predicted time of a step
    kinds: tuple[str, ...]  # the kinds of changes that were combined
    tried: int  # the number of forms that were compiled
    fitting: int  # how many of these fit
    left: int  # the number of forms that were not compiled because the budget was spent
    bound: float  # a lower bound on the time of all forms that fit, by the cost model
    runner_up: tuple[str, float] | None = None  # the next form that fits, and its time
    stages: tuple[str, ...] = ()  # of the chosen form in words; none if it is not divided

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
