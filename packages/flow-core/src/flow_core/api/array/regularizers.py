"""Regularizers of variables, such as ``flow.regularizers.l2(0.0005)``.

Returns: A regularizer for `flow.get_variable`.
"""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.api.arguments import check_numbers
from flow_core.ir.graph import AttrValue

__all__ = ["l1", "l1_l2", "l2"]


@dataclass(frozen=True, slots=True)
class Regularizer:
    """A penalty on a variable w, which adds ``l1 * sign(w) + l2 * w`` to the gradient of w."""

    l1: float
    l2: float

    def to_attr(self) -> tuple[AttrValue, ...]:
        """Return the literal ``("l1_l2", l1, l2)``."""
        return ("l1_l2", self.l1, self.l2)


def l1_l2(l1: float = 0.01, l2: float = 0.01) -> Regularizer:
    """Return a penalty on a variable w that adds ``l1 * sign(w) + l2 * w`` to the gradient of w.

    Args:
        l1: the factor of sign(w).
        l2: the factor of w.

    >>> both = flow.regularizers.l1_l2(0.5, 0.5)
    >>> weights(flow.optimizer.SGD(0.1, momentum=0), regularizer=both)
    [1.0, 0.7, 0.475]
    """
    check_numbers("regularizers", l1=l1, l2=l2)
    return Regularizer(float(l1), float(l2))


def l1(l: float = 0.01) -> Regularizer:  # noqa: E741 - OneFlow's name
    """Return `l1_l2` with the factor ``l1=l`` and ``l2=0``.

    Args:
        l: the factor of sign(w).

    >>> weights(flow.optimizer.SGD(0.1, momentum=0), regularizer=flow.regularizers.l1(0.5))
    [1.0, 0.75, 0.55]
    """
    return l1_l2(l, 0.0)


def l2(l: float = 0.01) -> Regularizer:  # noqa: E741 - OneFlow's name
    """Return `l1_l2` with ``l1=0`` and the factor ``l2=l``.

    Args:
        l: the factor of w.

    >>> weights(flow.optimizer.SGD(0.1, momentum=0), regularizer=flow.regularizers.l2(0.5))
    [1.0, 0.75, 0.5625]
    """
    return l1_l2(0.0, l)
