"""Costs in whole picoseconds, itemized by purpose."""

from __future__ import annotations

from dataclasses import dataclass, fields

PICO = 10**12

NEVER = 1 << 53
"""The cost of an impossible choice: larger than any sum of costs, and exact in all arithmetic."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost in picoseconds, itemized by purpose.

    >>> (Cost(communication=5) + Cost(compute=2)).total
    7
    """

    communication: int = 0
    compute: int = 0
    memory: int = 0
    convention: int = 0
    buckets: int = 0

    @property
    def total(self) -> int:
        """The sum of all items, which selectors minimize."""
        return self.communication + self.compute + self.memory + self.convention + self.buckets

    def __add__(self, other: Cost) -> Cost:
        return Cost(  # written out, because selectors add up many costs
            self.communication + other.communication,
            self.compute + other.compute,
            self.memory + other.memory,
            self.convention + other.convention,
            self.buckets + other.buckets,
        )

    def __str__(self) -> str:
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        parts = [f"{microseconds(cost)} {name}" for name, cost in named.items() if cost]
        return f"{microseconds(self.total)} ({', '.join(parts)})"


def microseconds(cost: int) -> str:
    """Format a number of picoseconds in microseconds.

    >>> microseconds(1_500_000)
    '1.5 us'
    """
    return f"{cost / 1e6:.1f} us"


def picoseconds(seconds: float) -> int:
    """Convert seconds to whole picoseconds, and infinity to `NEVER`."""
    return min(round(seconds * PICO), NEVER) if seconds < NEVER / PICO else NEVER


NOTHING = Cost()
