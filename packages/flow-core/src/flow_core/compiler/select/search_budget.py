"""A budget of work for a search.

Work is counted, not timed, so that results do not depend on the speed of the machine.  Each kind of
work has a price in nanoseconds, which is about the time that the work takes on a typical core.  A
plan therefore depends only on the program and its settings, and all processes of a job find the
same plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

TRANSITION, NODE, ENTRY, COLUMN = 500_000, 100_000, 20, 10_000_000
"""The prices, in nanoseconds, of four kinds of work.

The kinds are: planning the boxing between two layouts; adding a node to a network; adding up one
entry of a table; and solving one column of an integer program, of which the solver does a thousand
in ten seconds.
"""


class BudgetExceeded(Exception):  # an outcome, not an error
    """The next piece of work costs more than the rest of the budget."""


@dataclass(slots=True)
class SearchBudget:
    """The work that a search may still do, in nanoseconds.

    >>> budget = SearchBudget.of(2.0)
    >>> budget.spend(1000, TRANSITION)
    >>> budget.left, budget.allows(100_000_000, ENTRY)
    (1500000000, False)
    """

    left: int  # the work that it may still do
    spent: int = 0  # the work that it has done
    least: int = 0  # the smallest budget that covers all that this budget has covered
    most: float = inf  # the smallest budget that covers something that this budget has not covered

    @classmethod
    def of(cls, seconds: float) -> SearchBudget:
        """Return a budget for the given number of seconds of work."""
        return cls(round(seconds * 1e9))

    def allows(self, count: int, price: int) -> bool:
        """Return whether the budget covers ``count`` units of work at a price."""
        needed = self.spent + count * price
        covered = count * price <= self.left
        if covered:
            self.least = max(self.least, needed)
        else:
            self.most = min(self.most, needed)
        return covered

    def spend(self, count: int, price: int) -> None:
        """Deduct ``count`` units of work at a price.

        Raises:
            BudgetExceeded: the budget does not cover the work; in this case nothing is deducted.
        """
        if not self.allows(count, price):
            raise BudgetExceeded
        self.left -= count * price
        self.spent += count * price
