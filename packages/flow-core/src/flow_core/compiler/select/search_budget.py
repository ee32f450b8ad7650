"""How much a search may do: counted, not timed, so that it ends alike on all machines.

What is counted has a price in nanoseconds, about what it takes on one usual core.  A plan then
depends on the program and its settings alone, and every process of a job finds the same one.
"""

from __future__ import annotations

from dataclasses import dataclass

TRANSITION, NODE, ENTRY, COLUMN = 500_000, 100_000, 20, 10_000_000
"""Planning the boxing between two layouts; adding a node to a network; adding up an entry of a
table; a column of an integer program, of which the solver can do a thousand in ten seconds."""


class Spent(Exception):  # an outcome, not an error
    """The next thing to do would take more than what is left."""


@dataclass(slots=True)
class Effort:
    """What is left of the work that a search may do, in nanoseconds.

    >>> effort = Effort.of(2.0)
    >>> effort.spend(1000, TRANSITION)
    >>> effort.left, effort.allows(100_000_000, ENTRY)
    (1500000000, False)
    """

    left: int

    @classmethod
    def of(cls, seconds: float) -> Effort:
        """So many seconds of work."""
        return cls(round(seconds * 1e9))

    def allows(self, count: int, price: int) -> bool:
        """Whether there is enough left for so much of something."""
        return count * price <= self.left

    def spend(self, count: int, price: int) -> None:
        """Takes the price of something off.

        Raises:
            Spent: there is not enough left; nothing has been taken off.
        """
        if not self.allows(count, price):
            raise Spent
        self.left -= count * price
