"""Kernels that process the samples of a batch independently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.base.arrays import Array
from flow_core.base.errors import FlowError
from flow_data.instances import RowError, instance_error


@dataclass(frozen=True, slots=True)
class RowWork:
    """A launch that processes a batch one row at a time.

    The work on a row accesses only this row of the op's inputs and outputs, so that a loader can
    apply several ops to a row while the row is in the processor's cache.
    """

    op: str
    count: int  # number of rows
    work: Callable[[int], object]  # the function that processes one row

    def __call__(self) -> None:
        for row in range(self.count):
            self.run_row(row)

    def run_row(self, row: int) -> None:
        """Process one row.

        Raises `RowError` if the sample of the row is invalid; the error has the row number.
        """
        try:
            self.work(row)
        except RowError as error:
            error.row = row
            raise
        except (FlowError, MemoryError):  # not caused by the sample
            raise
        except Exception as error:  # libraries raise many types
            found, allowed = f"{type(error).__name__}: {error}", "a readable sample"
            raise instance_error(self.op, row, found, allowed) from error


def for_each_row(op: str, count: int, work: Callable[[int], object]) -> RowWork:
    """Return a launch that calls ``work(row)`` for all rows; its errors have the row number."""
    return RowWork(op, count, work)


def for_each_instance(op: str, x: Array, out: Array, work: Callable[[Any], object]) -> RowWork:
    """Return a launch that computes ``out[i] = work(x[i])`` for all instances."""

    def one(row: int) -> None:
        out[row] = work(x[row])

    return for_each_row(op, len(x), one)


@dataclass(frozen=True, slots=True)
class StepLaunch:
    """A launch that reads no input of its op; its result depends on the step number only."""

    launch: Launch

    def __call__(self) -> None:
        self.launch()
