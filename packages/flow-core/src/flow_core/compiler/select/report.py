"""The report of a selection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flow_core.compiler.select.price import Cost


@dataclass(frozen=True, slots=True)
class Report:
    """The search for a selection, and its result."""

    selector: str  # name of the selector that found the selection
    # How the optimum was searched for ("elimination", "integer program", or "op by op" for no
    # search), or why it was not found.
    method: str
    cost: Cost
    greedy: Cost | None  # the cost of greedy's selection; None if greedy finds none
    bound: int | None  # a lower bound on all costs, in picoseconds; None if not known
    seconds: float  # the time that the selection took
    grid: tuple[int, ...] | None = None  # chosen for the devices; None for that of the placements
    grids: tuple[tuple[int, ...], ...] = ()  # the other hierarchies that were searched

    @property
    def gap(self) -> float | None:
        """The largest possible saving as a fraction of the cost; None if not known."""
        if self.bound is None:
            return None
        return max(0.0, 1 - self.bound / self.cost.total) if self.cost.total else 0.0

    def __str__(self) -> str:
        return "; ".join(f"{key} {value}" for key, value in self.rows())

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the report as pairs of texts."""
        yield "selector", self.selector
        yield "search", f"{self.method}, {self.seconds:.2f} s"
        yield "cost", str(self.cost)
        if self.greedy is not None:
            yield "greedy's", str(self.greedy)
        gap = "not known" if self.gap is None else f"at most {self.gap:.2%}"
        if not self.grids:
            yield "gap", gap
            return
        yield "grid", "one dimension" if self.grid is None else _product(self.grid)
        yield "gap", f"{gap}, among one dimension and {', '.join(map(_product, self.grids))}"


def _product(hierarchy: tuple[int, ...]) -> str:
    return " x ".join(map(str, hierarchy))
