"""Comparisons and selections of two blobs, or of a blob and a number, from ``flow.math``.

Shapes broadcast as in numpy; element types must be equal.  A Python number takes the element type
of the other operand.

Args:
    x, y: blobs of one element type whose shapes broadcast, or one blob and one number.

Returns: A blob of the broadcast shape of ``x`` and ``y``.

Raises:
    InferenceError: the types differ, the shapes do not broadcast, or neither operand is a blob.
"""

from __future__ import annotations

from flow_core.api.math.operands import Operand, pair
from flow_core.frontend.trace.blob import BlobDef

__all__ = [
    "equal", "greater", "greater_equal", "less", "less_equal", "logical_and", "maximum",
    "minimum", "not_equal",
]  # fmt: skip


def maximum(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return the elementwise maximum; in a tie, ``y`` receives the gradient.

    >>> run(flow.math.maximum, [1, 5], [4, 2])
    array([4., 5.], dtype=float32)
    """
    return pair("maximum", x, y, name)


def minimum(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return the elementwise minimum; in a tie, ``y`` receives the gradient.

    >>> run(flow.math.minimum, [1, 5], [4, 2])
    array([1., 2.], dtype=float32)
    """
    return pair("minimum", x, y, name)


def equal(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where the elements are equal, otherwise 0; int8.

    >>> run(flow.math.equal, [1, 2, 3], [2, 2, 2])
    array([0, 1, 0], dtype=int8)
    """
    return pair("equal", x, y, name)


def not_equal(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where the elements differ, otherwise 0; int8.

    >>> run(flow.math.not_equal, [1, 2, 3], [2, 2, 2])
    array([1, 0, 1], dtype=int8)
    """
    return pair("not_equal", x, y, name)


def less(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where ``x < y``, otherwise 0; int8.

    >>> run(flow.math.less, [1, 2, 3], [2, 2, 2])
    array([1, 0, 0], dtype=int8)
    """
    return pair("less", x, y, name)


def less_equal(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where ``x <= y``, otherwise 0; int8.

    >>> run(flow.math.less_equal, [1, 2, 3], [2, 2, 2])
    array([1, 1, 0], dtype=int8)
    """
    return pair("less_equal", x, y, name)


def greater(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where ``x > y``, otherwise 0; int8.

    >>> run(flow.math.greater, [1, 2, 3], [2, 2, 2])
    array([0, 0, 1], dtype=int8)
    """
    return pair("greater", x, y, name)


def greater_equal(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where ``x >= y``, otherwise 0; int8.

    >>> run(flow.math.greater_equal, [1, 2, 3], [2, 2, 2])
    array([0, 1, 1], dtype=int8)
    """
    return pair("greater_equal", x, y, name)


def logical_and(x: Operand, y: Operand, name: str | None = None) -> BlobDef:
    """Return 1 where neither element is 0, otherwise 0; int8.

    >>> run(flow.math.logical_and, [1, 0, 2], [1, 1, 0])
    array([1, 0, 0], dtype=int8)
    """
    return pair("logical_and", x, y, name)
