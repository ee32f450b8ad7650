"""Launches that reduce rows or columns of a matrix with the NumPy calls that are fastest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flow_core.base.arrays import Array
from flow_core.device import Launch

SHORT_ROW = 64
"""Maximum row length for reductions over a transposed copy.

For rows this short, the copy takes less time than NumPy's overhead per row.
"""


def row_sum(x: Array, out: Array, factor: float = 1.0) -> Launch:
    """Return a launch that writes ``factor`` times the row sums of x (n, m) to ``out`` (n, 1)."""
    return partial(np.matmul, x, np.full((x.shape[1], 1), factor, x.dtype), out)


def column_sum(x: Array, out: Array, factor: float = 1.0) -> Launch:
    """Return a launch that writes ``factor`` times the column sums of x (n, m) to ``out`` (m,)."""
    weights = np.full((1, x.shape[0]), factor, x.dtype)
    return partial(np.matmul, weights, x, out.reshape(1, -1))


def row_max(x: Array, out: Array, scratch: Array) -> Sequence[Launch]:
    """Return launches that write the row maxima of ``x`` (n, m) to ``out`` (n, 1).

    ``scratch`` must have n*m elements.
    """
    if x.shape[1] > SHORT_ROW:
        return (partial(np.maximum.reduce, x, axis=1, out=out, keepdims=True),)
    columns = scratch.reshape(x.shape[::-1])
    return (
        partial(np.copyto, columns, x.T),
        partial(np.maximum.reduce, columns, axis=0, out=out.reshape(-1)),
    )


def row_dots(x: Array, y: Array, out: Array) -> Launch:
    """Return a launch that writes the inner products of the rows of x and y (n, m) to ``out``."""
    return partial(np.einsum, "ij,ij->i", x, y, out=out)


def column_dots(x: Array, y: Array, out: Array) -> Launch:
    """Return a launch that writes the inner products of the columns of x and y to ``out``."""
    return partial(np.einsum, "ij,ij->j", x, y, out=out)
