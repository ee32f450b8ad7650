"""Column sums of a matrix in two steps: partial sums of row ranges per block, then their sum."""

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
"""Minimum number of rows for two launches; with fewer, one thread sums a column."""
MOST_ACROSS = 32
"""Maximum number of columns per block."""
STRETCH, MOST_PARTS = 128, 64
"""Minimum number of rows per part of a tall matrix, and maximum number of parts."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor viewed as a matrix.

    Attributes:
        rows, columns: sizes.
        dtype: element type.
    """

    rows: int
    columns: int
    dtype: Any

    @classmethod
    def of(cls, type_: TensorType, columns: int) -> Matrix:
        """View a tensor as a matrix whose rows have ``columns`` elements."""
        return cls(type_.size // max(1, columns), columns, type_.dtype)

    @property
    def tall(self) -> bool:
        """Whether its columns are summed in two steps."""
        return self.rows >= LEAST and self.columns > 1 and self.dtype.is_floating

    @property
    def parts(self) -> int:
        """Number of row ranges; the same on every device, so that rounding is reproducible."""
        return max(1, min(self.rows // STRETCH, MOST_PARTS))

    @property
    def wide(self) -> Any:
        """The accumulation type in NumPy."""
        return np.float64 if self.dtype.name == "float64" else np.float32

    @property
    def nbytes(self) -> int:
        """Size of the partial sums in bytes; 0 if there are none."""
        sums = self.parts * self.columns * np.dtype(self.wide).itemsize
        return sums if self.tall else 0


def leading_matrix(type_: TensorType, axes: Sequence[int]) -> Matrix | None:
    """Return the matrix whose rows a reduction over the leading axes sums; None for other axes.

    >>> from flow_core.base.dtypes import float32
    >>> from flow_core.authoring.specs import tensor_type
    >>> leading_matrix(tensor_type((4, 5, 6), float32), (0, 1)).columns
    6
    """
    if tuple(axes) != tuple(range(len(axes))):
        return None
    return Matrix.of(type_, prod(type_.shape[len(axes) :]))


def column_sums(
    how: str,
    matrix: Matrix,
    operands: Sequence[DeviceArray],
    out: tuple[DeviceArray, TensorType],
    workspace: DeviceArray,
    n: int = 1,
) -> Iterator[Launch]:
    """Yield launches that sum over rows.

    Args:
        how: "Own", "Times" or "TimesNormal" of `source/columns.h`.
        matrix: the matrix.
        operands: the matrix and, as ``how`` requires, a second one of the same shape, row means
            and inverse standard deviations.
        out: the sums, and their type.
        workspace: memory for the partial sums.
        n: elements per row mean.
    """
    kind, wide = c_type(matrix.dtype), c_type_of(matrix.wide)
    statistic = c_type_of(operands[2].dtype) if len(operands) > 2 else wide
    kinds = (kind, kind, statistic, statistic)
    arrays = [*operands, *[None] * (4 - len(operands))]
    given = [Read(x, k) for x, k in zip(arrays, kinds, strict=True)]
    shape = (matrix.parts, matrix.columns)
    sums = workspace.part(0, shape, matrix.wide)
    threads = workspace.hardware.threads
    across = MOST_ACROSS if threads >= 2 * MOST_ACROSS else threads // 4  # as the kernel has it
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
