"""Results of stages that the compilations of one search share.

The forms of a job that a search compiles often differ in a late stage only: the same graph is
distributed by several selectors, at several prices of memory, and for one device of each class
before all devices.  Where selectors agree, the later stages have the same result, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Result = TypeVar("Result")

SIZE = 32
"""The largest number of results of a stage that are kept."""

PLANS = 8
"""Maximum number of kept plans, which need more memory than the results of other stages."""


class Recent(Generic[Key, Result]):
    """The last results of a function, which are found by comparing its arguments.

    >>> recent = Recent[list[int], int](size=2)
    >>> for numbers in ([1], [2], [1], [3], [2]):
    ...     print(recent.get(numbers, lambda: numbers and print("made") or sum(numbers)))
    made
    1
    made
    2
    1
    made
    3
    made
    2
    """

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._found: list[tuple[Key, Result]] = []

    def get(self, key: Key, make: Callable[[], Result]) -> Result:
        """Return the result for equal arguments, which is made and kept if it is not known."""
        at = next((i for i, (known, _) in enumerate(self._found) if known == key), None)
        row = (key, make()) if at is None else self._found.pop(at)
        self._found = [row, *self._found][: self._size]
        return row[1]


class StageCache:
    """The results of the stages."""

    def __init__(self) -> None:
        self.optimized = Recent[Any, Any]()  # logical graphs after their passes
        self.searches = Recent[Any, Any]()  # for SBP signatures
        self.lowered = Recent[Any, Any](PLANS)  # physical graphs of a device per class, plans
        # The results of functions of single ops and values, by their arguments; the key of a table
        # has the function and what it depends on besides them.
        self.tables = Recent[Any, dict[Any, Any]]()
