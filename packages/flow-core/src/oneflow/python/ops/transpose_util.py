"""``oneflow.python.ops.transpose_util``: permutations of axes."""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.api.calls.published import publish as _publish
from flow_core.base.shapes import normal_axis

__all__ = ["get_inversed_perm", "get_perm_when_transpose_axis_to_last_dim", "is_perm"]


def is_perm(perm: Sequence[int]) -> bool:
    """Return whether n numbers are a permutation of 0 to n - 1.

    >>> is_perm((2, 0, 1)), is_perm((1, 2))
    (True, False)
    """
    return sorted(perm) == [*range(len(perm))]


def get_perm_when_transpose_axis_to_last_dim(num_axes: int, axis: int) -> tuple[int, ...]:
    """Return the permutation that moves an axis to the end.

    >>> get_perm_when_transpose_axis_to_last_dim(4, 1)
    (0, 2, 3, 1)
    """
    last = normal_axis(axis, num_axes)
    return (*(i for i in range(num_axes) if i != last), last)


def get_inversed_perm(perm: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse of a permutation.

    >>> get_inversed_perm((0, 2, 3, 1))
    (0, 3, 1, 2)
    """
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


_publish(globals())
