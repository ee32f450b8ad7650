"""Kernels that treat each sample of a batch by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flow_core.device import Launch
from flow_data.instances import RowError, fail


def each(op: str, count: int, work: Callable[[int], Any]) -> Launch:
    """A launch of ``work(row)`` for all rows, whose errors say in which row they were."""
    return partial(_run, op, count, work)


def _run(op: str, count: int, work: Callable[[int], Any]) -> None:
    row = 0
    try:
        for row in range(count):
            work(row)
    except RowError as error:
        error.row = row
        raise
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise fail(op, row, f"{type(error).__name__}: {error}", "a sample that can be read") from (
            error
        )


def each_instance(op: str, x: Any, out: Any, work: Callable[[Any], Any]) -> Launch:
    """A launch of ``out[i] = work(x[i])`` for all instances."""

    def one(row: int) -> None:
        out[row] = work(x[row])

    return each(op, len(x), one)
