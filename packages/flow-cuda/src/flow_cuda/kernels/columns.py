"""Sums over the rows of a matrix, by column, in two steps: blocks take stretches of rows."""

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
"""Rows from which on this is worth two launches; below, a thread does a column."""
MOST_ACROSS = 32
"""Columns that a block takes side by side."""
STRETCH, MOST_PARTS = 128, 64
"""Rows that a block takes at least where there are many, and stretches at most."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor as rows and columns.

    Attributes:
        rows, columns: sizes.
        dtype: of its elements.
    """

    rows: int
    columns: int
    dtype: Any

    @classmethod
    def of(cls, type_: TensorType, columns: int) -> Matrix:
        """A tensor whose last axes have so many elements together."""
        return cls(type_.size // max(1, columns), columns, type_.dtype)

    @property
    def tall(self) -> bool:
        """Whether its columns are summed in two steps."""
        return self.rows >= LEAST and self.columns > 1 and self.dtype.is_floating

    @property
    def parts(self) -> int:
        """Stretches of rows, on every device the same."""
        return max(1, min(self.rows // STRETCH, MOST_PARTS))

    @property
    def wide(self) -> Any:
        """In what it is summed, for numpy."""
        return np.float64 if self.dtype.name == "float64" else np.float32

    @property
    def nbytes(self) -> int:
        """Bytes of the sums of stretches; 0 where there are none."""
        sums = self.parts * self.columns * np.dtype(self.wide).itemsize
        return sums if self.tall else 0


def leading(type_: TensorType, axes: Sequence[int]) -> Matrix | None:
    """The matrix whose rows a reduction over the first axes sums; None where others go.

    >>> from flow_core.base.dtypes import float32
    >>> from flow_core.authoring.specs import tensor_type
    >>> leading(tensor_type((4, 5, 6), float32), (0, 1)).columns
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
    room: DeviceArray,
    n: int = 1,
) -> Iterator[Launch]:
    """Launches that sum over rows.

    Args:
        how: "Own", "Times" or "TimesNormal" of `source/columns.h`.
        matrix: what is summed.
        operands: the matrix, another one like it, means and inverse deviations of rows, as far
            as they are needed.
        out: the sums and their type.
        room: bytes of the workspace.
        n: elements of a row that has a mean.
    """
    kind, wide = c_type(matrix.dtype), c_type_of(matrix.wide)
    statistic = c_type_of(operands[2].dtype) if len(operands) > 2 else wide
    kinds = (kind, kind, statistic, statistic)
    arrays = [*operands, *[None] * (4 - len(operands))]
    given = [Read(x, k) for x, k in zip(arrays, kinds, strict=True)]
    shape = (matrix.parts, matrix.columns)
    sums = room.part(0, shape, matrix.wide)
    threads = room.hardware.threads
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
    """Elements of numpy's type in C++."""
    return c_type(as_dtype(dtype))
