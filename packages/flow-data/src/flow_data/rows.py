"""Kernels that treat each sample of a batch by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.base.errors import FlowError
from flow_data.instances import RowError, fail


@dataclass(frozen=True, slots=True)
class RowWork:
    """A launch that goes through the rows of a batch.

    A row reads and writes the same row of the op's inputs and outputs alone, so that a loader may
    take each row through several ops while it is in the cache.

    Attributes:
        op: type of the op.
        count: how many rows there are.
        work: does one of them.
    """

    op: str
    count: int
    work: Callable[[int], Any]

    def __call__(self) -> None:
        """Does all rows."""
        for row in range(self.count):
            self.at(row)

    def at(self, row: int) -> None:
        """Does one row.

        Raises:
            RowError: its sample cannot be used; the error says which row it is.
        """
        try:
            self.work(row)
        except RowError as error:
            error.row = row
            raise
        except (FlowError, MemoryError):  # no fault of the sample's
            raise
        except Exception as error:  # of whatever type the libraries raise
            found, allowed = f"{type(error).__name__}: {error}", "a sample that can be read"
            raise fail(self.op, row, found, allowed) from error


def each(op: str, count: int, work: Callable[[int], Any]) -> RowWork:
    """A launch of ``work(row)`` for all rows, whose errors say in which row they were."""
    return RowWork(op, count, work)


def each_instance(op: str, x: Any, out: Any, work: Callable[[Any], Any]) -> RowWork:
    """A launch of ``out[i] = work(x[i])`` for all instances."""

    def one(row: int) -> None:
        out[row] = work(x[row])

    return each(op, len(x), one)


@dataclass(frozen=True, slots=True)
class FromStep:
    """A launch that reads no input of its op: what it writes follows from the step's number."""

    launch: Launch

    def __call__(self) -> None:
        """Writes it."""
        self.launch()
