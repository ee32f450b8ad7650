"""Launches that reduce the rows of a matrix, using the fastest NumPy calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flow_core.base.arrays import Array
from flow_core.device import Launch

SHORT_ROW = 64
"""Maximum row length for reduction over a transposed copy; NumPy's cost per row is higher."""


def row_sum(x: Array, out: Array, factor: float = 1.0) -> Launch:
    """``out`` (n, 1) = ``factor`` times the sums of the rows of ``x`` (n, m), by BLAS."""
    return partial(np.matmul, x, np.full((x.shape[1], 1), factor, x.dtype), out)


def column_sum(x: Array, out: Array, factor: float = 1.0) -> Launch:
    """``out`` (m,) = ``factor`` times the sums of the columns of ``x`` (n, m), by BLAS."""
    weights = np.full((1, x.shape[0]), factor, x.dtype)
    return partial(np.matmul, weights, x, out.reshape(1, -1))


def row_max(x: Array, out: Array, scratch: Array) -> Sequence[Launch]:
    """``out`` (n, 1) = the maxima of the rows of ``x`` (n, m); scratch holds n*m elements."""
    if x.shape[1] > SHORT_ROW:
        return (partial(np.maximum.reduce, x, axis=1, out=out, keepdims=True),)
    columns = scratch.reshape(x.shape[::-1])
    return (
        partial(np.copyto, columns, x.T),
        partial(np.maximum.reduce, columns, axis=0, out=out.reshape(-1)),
    )


def row_dots(x: Array, y: Array, out: Array) -> Launch:
    """``out`` (n,) = the inner products of the rows of two (n, m) matrices."""
    return partial(np.einsum, "ij,ij->i", x, y, out=out)


def column_dots(x: Array, y: Array, out: Array) -> Launch:
    """``out`` (m,) = the inner products of the columns of two (n, m) matrices."""
    return partial(np.einsum, "ij,ij->j", x, y, out=out)
