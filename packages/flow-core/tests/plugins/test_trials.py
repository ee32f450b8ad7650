"""Trial products detect a different summation order at any position of the product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import float16, float32, float64
from flow_core.ir.graph import tensor_type
from flow_core.plugins.trials import (
    LARGE,
    LEAST,
    MOST,
    bitwise_equal_in_trials,
    canceling_operands,
)


def summed(left: Any, right: Any, order: list[int]) -> Any:
    """Return a product whose terms are added one by one in a given order."""
    out = np.zeros((*left.shape[:-1], right.shape[-1]), left.dtype)
    for k in order:
        out += left[:, k, None] * right[k]
    return out


def halves(left: Any, right: Any) -> Any:
    """Return a product whose terms are added in two partial sums, as wider vectors do."""
    deep = left.shape[-1]
    even, odd = (summed(left, right, list(range(i, deep, 2))) for i in (0, 1))
    return even + odd


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("deep", [4, 5, 12, 16, 100])
def test_different_order_in_a_single_element_is_detected(deep: int, seed: int) -> None:
    types = tensor_type((5, deep), float32), tensor_type((deep, 5), float32)
    row, column = np.random.default_rng(seed).integers(5, size=2)

    def same(rng: np.random.Generator) -> bool:
        left, right = canceling_operands(rng, types, False, False)
        wanted = summed(left, right, list(range(deep)))
        found = wanted.copy()
        found[row, column] = halves(left, right)[row, column]
        return np.array_equal(wanted, found)

    assert not bitwise_equal_in_trials(25 * deep, same)


@pytest.mark.parametrize("sizes", [(1, MOST), (LARGE // 4, 4), (LARGE * 10, LEAST)])
def test_large_products_are_tried_less_often(sizes: tuple[int, int]) -> None:
    work, wanted = sizes
    drawn: list[int] = []

    def same(_: object) -> bool:
        drawn.append(1)
        return True

    assert bitwise_equal_in_trials(work, same)
    assert len(drawn) == wanted


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", [float16, float32, float64])
def test_trial_operands_nearly_cancel(turned: tuple[bool, bool], dtype: Any) -> None:
    shapes = [s[::-1] if t else s for s, t in zip([(3, 8), (8, 4)], turned, strict=True)]
    a, b = canceling_operands(
        np.random.default_rng(0), [tensor_type(s, dtype) for s in shapes], *turned
    )
    assert [a.shape, b.shape] == shapes
    assert a.dtype == b.dtype == dtype.accumulate.numpy
    left, right = (x.T if t else x for x, t in zip((a, b), turned, strict=True))
    assert np.abs(left @ right).max() < 0.1
