"""``oneflow.python.ops.transpose_util``: permutations of axes."""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.base.shapes import normal_axis

__all__ = ["get_inversed_perm", "get_perm_when_transpose_axis_to_last_dim", "is_perm"]


def is_perm(perm: Sequence[int]) -> bool:
    """Whether numbers are those from 0 on, in any order.

    >>> is_perm((2, 0, 1)), is_perm((1, 2))
    (True, False)
    """
    return sorted(perm) == [*range(len(perm))]


def get_perm_when_transpose_axis_to_last_dim(num_axes: int, axis: int) -> tuple[int, ...]:
    """The permutation that puts an axis behind all others.

    >>> get_perm_when_transpose_axis_to_last_dim(4, 1)
    (0, 2, 3, 1)
    """
    last = normal_axis(axis, num_axes)
    return (*(i for i in range(num_axes) if i != last), last)


def get_inversed_perm(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes another.

    >>> get_inversed_perm((0, 2, 3, 1))
    (0, 3, 1, 2)
    """
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))
