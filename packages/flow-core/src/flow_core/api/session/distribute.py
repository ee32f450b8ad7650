"""Requests for distributions, and feeds of parts of a batch: ``flow.distribute``.

Returns: A distribution for `flow.get_variable` and `flow.parallel_cast`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from flow_core.api.deprecation import deprecates
from flow_core.base.errors import FeedError, InferenceError
from flow_core.base.shapes import balanced_range
from flow_core.frontend.config.scope import Entering, consistent_view, current_scope, mirrored_view
from flow_core.frontend.job.partial_feeds import LocalRows, RowsFunction, merged
from flow_core.frontend.session.session import default_session

__all__ = [
    "assert_is_valid_distribute", "auto", "broadcast", "consistent_strategy",
    "consistent_strategy_enabled", "local_rows", "mirrored_strategy",
    "mirrored_strategy_enabled", "rows", "rows_from", "split",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Distribution:
    """A request for a distribution of a blob.

    Attributes:
        kind: "split", "broadcast" or "auto".
        axis: the axis of a split, None otherwise.
    """

    kind: str
    axis: int | None = None


def split(axis: int) -> Distribution:
    """Request a split over the devices along an axis.

    Args:
        axis: the axis.

    >>> flow.distribute.split(0)
    Distribution(kind='split', axis=0)
    """
    if not isinstance(axis, int):
        raise InferenceError.at_caller(
            "distribute.split", found=repr(axis), allowed="an integer axis"
        )
    return Distribution("split", axis)


def broadcast() -> Distribution:
    """Request a copy of the whole blob on each device.

    >>> flow.distribute.broadcast()
    Distribution(kind='broadcast', axis=None)
    """
    return Distribution("broadcast")


def auto() -> Distribution:
    """Leave the distribution to the compiler.

    Returns: A distribution.

    >>> flow.distribute.auto()
    Distribution(kind='auto', axis=None)
    """
    return Distribution("auto")


def rows(array: object, at: int | range | Sequence[range]) -> LocalRows:
    """Feed some rows of a batch; other processes feed the other rows.

    The processes do not check that rows fed by several of them are equal.

    Args:
        array: the rows, in any form in which the job accepts the whole batch.
        at: the index of the first row in the whole batch, or the ranges of indices, in any order,
            whose rows the array holds one after the other; see `local_rows`.

    Returns: An argument of a job.

    Raises: FeedError: ``at`` is neither an index nor ranges.
    """
    where: Any = tuple(at) if isinstance(at, list | tuple) else (at,)
    if isinstance(at, Integral) and not isinstance(at, bool):
        where = int(at)
    elif not all(map(_is_plain, where)):
        raise FeedError.at_caller(
            "distribute.rows",
            found=f"at={at!r:.60}",
            allowed="an index, or ranges of indices with step 1",
        )
    return LocalRows(array, where)


def _is_plain(part: object) -> bool:
    return isinstance(part, range) and part.step == 1


def rows_from(function: Callable[[int, int], object]) -> RowsFunction:
    """Feed a batch by a function that returns the rows that this process needs.

    Args:
        function: function that returns a range of rows, given the index of the first row and the
            index after the last row.  Each step calls it once per device, possibly several times
            for the same rows.

    Returns: An argument of a job.

    Raises: FeedError: the argument is not callable.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((4, 1))) -> tp.Numpy:
    ...     return 2 * x
    >>> job(flow.distribute.rows_from(lambda start, stop: np.ones((stop - start, 1))))
    array([[2.],
           [2.],
           [2.],
           [2.]], dtype=float32)
    """
    if not callable(function):
        raise FeedError.at_caller(
            "distribute.rows_from",
            found=f"{function!r:.60}",
            allowed="a function of two row indices",
        )
    return RowsFunction(function)


def local_rows(count: int) -> tuple[range, ...]:
    """Return the rows of a batch that this process needs if the batch is split over the devices.

    The devices are those of the current scope or, outside all scopes, those of jobs without a
    scope.

    Args:
        count: number of rows of the whole batch.

    Returns: A list of ranges.

    >>> flow.distribute.local_rows(8)
    (range(0, 8),)
    """
    session = default_session()
    world = session.world
    placement = current_scope().placement or session.default_placement
    own = [
        range(*balanced_range(count, placement.size, i))
        for i in range(placement.size)
        if world is None or world.owner(placement.device(i)) == world.rank
    ]
    return merged(own)


def assert_is_valid_distribute(distribute: object) -> None:
    """Raise `InferenceError` unless the argument is a `split`, `broadcast` or `auto`.

    Args:
        distribute: any object.

    Raises: InferenceError: the object is not a distribution.

    >>> flow.distribute.assert_is_valid_distribute(flow.distribute.split(0))
    """
    if not isinstance(distribute, Distribution):
        raise InferenceError.at_caller(
            "use of a distribution",
            found=f"{distribute!r:.60}",
            allowed="flow.distribute.split(axis), broadcast() or auto()",
        )


@deprecates
def consistent_strategy() -> Entering:
    """Enter the consistent view; older name of ``flow.scope.consistent_view``.

    Returns: A context manager.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    ...     with flow.distribute.consistent_strategy():
    ...         return 2 * x
    >>> job([1, 2])
    array([2., 4.], dtype=float32)
    """
    return consistent_view()


@deprecates
def mirrored_strategy() -> Entering:
    """Enter the mirrored view; older name of ``flow.scope.mirrored_view``.

    Returns: A context manager.
    """
    return mirrored_view()


@deprecates
def consistent_strategy_enabled() -> bool:
    """Return whether the current view is consistent.

    Returns: True or False.

    >>> _ = run(lambda x: print(flow.distribute.consistent_strategy_enabled()) or x, [1, 2])
    True
    """
    return not current_scope().mirrored


@deprecates
def mirrored_strategy_enabled() -> bool:
    """Return whether the current view is mirrored.

    Returns: True or False.

    >>> _ = run(lambda x: print(flow.distribute.mirrored_strategy_enabled()) or x, [1, 2])
    False
    """
    return current_scope().mirrored
