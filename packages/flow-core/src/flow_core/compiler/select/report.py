"""How a selection was found, for reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flow_core.compiler.select.price import Cost


@dataclass(frozen=True, slots=True)
class Report:
    """How a selection was found.

    Attributes:
        selector: whose answer it is.
        method: how the optimum was looked for: "elimination", "integer program", "op by op" where
            it was not, or why it was not found.
        cost: of the selection.
        greedy: of greedy's selection, None where greedy finds none.
        bound: no selection costs less, in picoseconds; None when not known.
        seconds: what the selection took.
    """

    selector: str
    method: str
    cost: Cost
    greedy: Cost | None
    bound: int | None
    seconds: float

    @property
    def gap(self) -> float | None:
        """How much of the cost could at most be saved, as a share of it; None if not known."""
        if self.bound is None:
            return None
        return max(0.0, 1 - self.bound / self.cost.total) if self.cost.total else 0.0

    def __str__(self) -> str:
        return "; ".join(f"{key} {value}" for key, value in self.rows())

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a report says, as pairs of texts."""
        yield "selector", self.selector
        yield "search", f"{self.method}, {self.seconds:.2f} s"
        yield "cost", str(self.cost)
        if self.greedy is not None:
            yield "greedy's", str(self.greedy)
        yield "gap", "not known" if self.gap is None else f"at most {self.gap:.2%}"
