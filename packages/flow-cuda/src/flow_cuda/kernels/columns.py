"""Column sums of a matrix in two steps: blocks sum ranges of rows, then the results are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import TensorType
from flow_core.base.dtypes import as_dtype
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import Read, call
from flow_cuda.kernels.binding import c_type

HEADER = "columns.h"
LEAST = 16
"""The minimum number of rows for two launches; with fewer rows, one thread sums each column."""
MOST_ACROSS = 32
"""The maximum number of columns per block."""
STRETCH, MOST_PARTS = 128, 64
"""The minimum number of rows per part of a tall matrix, and the maximum number of parts."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor viewed as a matrix."""

    rows: int
    columns: int
    dtype: Any

    @classmethod
    def of(cls, type_: TensorType, columns: int) -> Matrix:
        """View a tensor as a matrix whose rows have ``columns`` elements."""
        return cls(type_.size // max(1, columns), columns, type_.dtype)

    @property
    def tall(self) -> bool:
        """Whether the matrix has so many rows that its columns are summed in two steps."""
        return self.rows >= LEAST and self.columns > 1 and self.dtype.is_floating

    @property
    def parts(self) -> int:
        """Number of row ranges; equal on all devices, so that rounding is reproducible."""
        return max(1, min(self.rows // STRETCH, MOST_PARTS))

    @property
    def wide(self) -> Any:
        """The accumulation type, as a NumPy type."""
        return np.float64 if self.dtype.name == "float64" else np.float32

    @property
    def nbytes(self) -> int:
        """Size of the partial sums in bytes."""
        return int(self.parts * self.columns * np.dtype(self.wide).itemsize)


def leading_matrix(type_: TensorType, axes: Sequence[int]) -> Matrix | None:
    """Return the matrix whose rows a reduction adds up; None unless it is over leading axes.

    >>> from flow_core.base.dtypes import float32
    >>> from flow_core.authoring.specs import tensor_type
    >>> leading_matrix(tensor_type((4, 5, 6), float32), (0, 1)).columns
    6
    """
    if tuple(axes) != tuple(range(len(axes))):
        return None
    return Matrix.of(type_, prod(type_.shape[len(axes) :]))


def column_sums(
    how: str,  # "Own", "Times" or "TimesNormal" of `source/columns.h`
    matrix: Matrix,
    # The matrix and, if ``how`` requires them, a second matrix of the same shape, means of rows,
    # and inverse standard deviations of rows.
    operands: Sequence[DeviceArray],
    out: tuple[DeviceArray, TensorType],  # the array for the sums, and its type
    workspace: DeviceArray,
    n: int = 1,  # number of elements that share a mean
) -> Iterator[Launch]:
    """Yield launches that sum over rows."""
    kind, wide = c_type(matrix.dtype), c_type_of(matrix.wide)
    statistic = c_type_of(operands[2].dtype) if len(operands) > 2 else wide
    kinds = (kind, kind, statistic, statistic)
    arrays = [*operands, *[None] * (4 - len(operands))]
    given = [Read(x, k) for x, k in zip(arrays, kinds, strict=True)]
    shape = (matrix.parts, matrix.columns)
    sums = workspace.part(0, shape, matrix.wide)
    threads = workspace.hardware.threads
    across = MOST_ACROSS if threads >= 2 * MOST_ACROSS else threads // 4  # as in the kernel
    yield call(
        "column_parts", HEADER, (how, kind, statistic, wide),
        *given, sums, matrix.rows, matrix.columns, n, matrix.parts,
        items=-(-matrix.columns // across) * matrix.parts, blocks=True,
    )  # fmt: skip
    target, type_ = out
    types = (wide, c_type(type_))
    yield call(
        "column_totals", HEADER, types, Read(sums), target, matrix.columns, matrix.parts,
        items=matrix.columns,
    )  # fmt: skip


def c_type_of(dtype: Any) -> str:
    """Return the C++ type of a NumPy type."""
    return c_type(as_dtype(dtype))
