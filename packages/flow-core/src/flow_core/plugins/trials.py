"""Trials whether two ways to multiply matrices give the same bits.

Which of its kernels a library runs on which rows and columns depends on the processor and on the
shape, and kernels that add in different orders agree on many elements.  So a trial draws operands
whose products nearly cancel, where another order shows in most elements, and draws several times,
as the order may differ in a single element of a small product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flow_core.ir.graph import TensorType

MOST, LEAST = 8, 2
"""How often small and large products are tried."""
LARGE = 1 << 26
"""Multiplications from which a product is tried less often."""
REST = 1e-3
"""What is left of two terms that cancel, as a share of one."""


def agree(multiplications: int, same: Callable[[np.random.Generator], bool]) -> bool:
    """Whether a comparison holds on several draws.

    Args:
        multiplications: of one draw, which decides how many draws there are.
        same: draws operands and compares the results.

    >>> agree(6, lambda rng: bool(rng.random() < 1))
    True
    """
    rng = np.random.default_rng(0)
    count = max(LEAST, min(MOST, LARGE // max(1, multiplications)))
    return all(same(rng) for _ in range(count))


def multiplications(types: Sequence[TensorType], transposed: bool) -> int:
    """The multiplications of a matrix product; ``transposed`` says so of the right operand.

    >>> from flow_core.base.dtypes import float32
    >>> from flow_core.ir.graph import tensor_type
    >>> multiplications([tensor_type((2, 3), float32), tensor_type((3, 5), float32)], False)
    30
    """
    left, right = types
    return left.size * (right.shape[-2 if transposed else -1] if right.shape else 1)


def factors(
    rng: np.random.Generator, types: Sequence[TensorType], transpose_a: bool, transpose_b: bool
) -> tuple[Any, Any]:
    """Two operands, in the type in which they are summed, whose products nearly cancel."""
    a, b = (rng.standard_normal(t.shape).astype(t.dtype.accumulate.numpy) for t in types)
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    right = np.swapaxes(b, -1, -2) if transpose_b else b
    half, order = left.shape[-1] // 2, rng.permutation(left.shape[-1])
    one, other = order[:half], order[half : 2 * half]
    left[..., other] = left[..., one]
    rest = rng.standard_normal((*right.shape[:-2], half, right.shape[-1])) * REST
    right[..., other, :] = (rest - right[..., one, :]).astype(b.dtype)
    return a, b
