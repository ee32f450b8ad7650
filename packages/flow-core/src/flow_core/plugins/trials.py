"""Test by trial whether two ways to multiply matrices give bitwise equal results.

A library chooses kernels according to processor and shape, and the results of kernels with
different summation orders agree in many elements.  A trial draws operands whose products nearly
cancel, so that a different order changes most elements.  A trial makes several draws, since the
order may differ for only one element of a small product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flow_core.ir.graph import TensorType

MOST, LEAST = 8, 2
"""Number of draws for small and for large products."""
LARGE = 1 << 26
"""Target for the number of multiplications of all draws, which limits the draws of large products.
"""
REST = 1e-3
"""Relative size of what remains of two terms that nearly cancel."""


def bitwise_equal_in_trials(
    multiplications: int, same: Callable[[np.random.Generator], bool]
) -> bool:
    """Return whether a comparison holds for several draws.

    Args:
        multiplications: number of multiplications of one draw; determines the number of draws.
        same: a function that draws operands and compares the results.

    >>> bitwise_equal_in_trials(6, lambda rng: bool(rng.random() < 1))
    True
    """
    rng = np.random.default_rng(0)
    count = max(LEAST, min(MOST, LARGE // max(1, multiplications)))
    return all(same(rng) for _ in range(count))


def multiplications(types: Sequence[TensorType], transposed: bool) -> int:
    """Return the number of multiplications of a matrix product.

    Args:
        types: types of the operands.
        transposed: whether the right operand is transposed.

    >>> from flow_core.base.dtypes import float32
    >>> from flow_core.ir.graph import tensor_type
    >>> multiplications([tensor_type((2, 3), float32), tensor_type((3, 5), float32)], False)
    30
    """
    left, right = types
    return left.size * (right.shape[-2 if transposed else -1] if right.shape else 1)


def canceling_operands(
    rng: np.random.Generator, types: Sequence[TensorType], transpose_a: bool, transpose_b: bool
) -> tuple[Any, Any]:
    """Draw two operands, in the accumulation type, whose products nearly cancel."""
    a, b = (rng.standard_normal(t.shape).astype(t.dtype.accumulate.numpy) for t in types)
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    right = np.swapaxes(b, -1, -2) if transpose_b else b
    half, order = left.shape[-1] // 2, rng.permutation(left.shape[-1])
    one, other = order[:half], order[half : 2 * half]
    left[..., other] = left[..., one]
    rest = rng.standard_normal((*right.shape[:-2], half, right.shape[-1])) * REST
    right[..., other, :] = (rest - right[..., one, :]).astype(b.dtype)
    return a, b
