"""A budget of work for a search: counted, not timed, so that results do not depend on the machine.

Each kind of work has a price in nanoseconds, about its time on one usual core.  A plan depends on
the program and its settings alone, and every process of a job finds the same one.
"""

from __future__ import annotations

from dataclasses import dataclass

TRANSITION, NODE, ENTRY, COLUMN = 500_000, 100_000, 20, 10_000_000
"""Prices: planning the boxing between two layouts; adding a node to a network; adding up an entry
of a table; a column of an integer program, of which the solver does a thousand in ten seconds."""


class BudgetExceeded(Exception):  # an outcome, not an error
    """The next piece of work costs more than the rest of the budget."""


@dataclass(slots=True)
class SearchBudget:
    """The rest of the work that a search may do, in nanoseconds.

    >>> budget = SearchBudget.of(2.0)
    >>> budget.spend(1000, TRANSITION)
    >>> budget.left, budget.allows(100_000_000, ENTRY)
    (1500000000, False)
    """

    left: int

    @classmethod
    def of(cls, seconds: float) -> SearchBudget:
        """Return a budget of some seconds of work."""
        return cls(round(seconds * 1e9))

    def allows(self, count: int, price: int) -> bool:
        """Whether the budget covers ``count`` units of work."""
        return count * price <= self.left

    def spend(self, count: int, price: int) -> None:
        """Deduct the price of ``count`` units of work.

        Raises:
            BudgetExceeded: the budget does not cover it; nothing is deducted.
        """
        if not self.allows(count, price):
            raise BudgetExceeded
        self.left -= count * price
