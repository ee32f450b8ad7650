"""Dropout beyond the kernel kit: the contract of the mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.base import philox
from flow_core.base.errors import InferenceError
from flow_core.base.philox import CHUNK
from flow_core.builtin.numpy_kernels.nn.dropout import KERNELS
from flow_core.ops.nn.dropout import OPS
from flow_core.testing.checks import query, run_kernel

MASK = next(spec for spec in OPS if spec.type == "random_mask_like")


def mask(shape: Any, rate: float, *, seed: int | None = None, job: int = 5, step: int = 0) -> Any:
    like = np.zeros(shape, np.float32)
    asked = query(MASK, (like,), {"rate": rate, "seed": seed})
    return run_kernel(KERNELS[0], asked, (like,), seed=job, step=step)[0]


@pytest.mark.parametrize("size", [1, 9, CHUNK, 2 * CHUNK + 13])
def test_mask_matches_the_documented_draw(size: int) -> None:
    expected = np.float32(0.3) < philox.uniform(5, (size,), step=4)
    np.testing.assert_array_equal(mask((size,), 0.3, step=4), expected)


def test_fraction_of_dropped_elements() -> None:
    assert abs(mask((100, 1000), 0.2).mean() - 0.8) < 0.01


def test_rate_zero_keeps_all_elements_except_exact_zeros_of_the_draw() -> None:
    assert mask((10000,), 0.0).mean() > 0.999


def test_masks_differ_by_step_and_job_and_the_attribute_seed_has_priority() -> None:
    first = mask((1000,), 0.5)
    assert (first != mask((1000,), 0.5, step=1)).any()
    assert (first != mask((1000,), 0.5, job=6)).any()
    seeded = mask((1000,), 0.5, seed=-7)
    np.testing.assert_array_equal(seeded, mask((1000,), 0.5, seed=-7, job=6))


@pytest.mark.parametrize("rate", [1.0, -0.1])
def test_invalid_rates_are_rejected(rate: float) -> None:
    with pytest.raises(InferenceError, match="0 <= rate < 1"):
        mask((3,), rate)
