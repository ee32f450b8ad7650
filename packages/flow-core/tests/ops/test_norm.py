"""Normalization beyond the kernel kit: moving statistics, large means, blocks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from flow_core.base.dtypes import float32
from flow_core.builtin.numpy_kernels.nn import norm
from flow_core.builtin.numpy_kernels.nn.norm import KERNELS
from flow_core.ops.nn.norm import OPS
from flow_core.plugins.specs import Sample
from flow_core.testing.checks import check_kernel, query, run_kernel

SPECS = {spec.type: spec for spec in OPS}
BY_OP = {kernel.op: kernel for kernel in KERNELS}


def run(op: str, *arrays: Any, **attrs: Any) -> tuple[Any, ...]:
    return run_kernel(BY_OP[op], query(SPECS[op], arrays, attrs), arrays)


def batch_norm(x: Any, parameters: Any, training: bool, momentum: float = 0.9) -> Any:
    mean, variance, gamma, beta = (np.full(x.shape[1], v, parameters) for v in (1, 4, 1, 0))
    run(
        "normalization", x, mean, variance, gamma, beta,
        axis=1, training=training, momentum=momentum,
    )  # fmt: skip
    return mean, variance


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("wide", [False, True])
def test_training_updates_the_statistics(dtype: Any, wide: bool) -> None:
    x = np.arange(12).reshape(3, 2, 2).astype(dtype)
    parameters = np.float32 if wide and np.dtype(dtype).itemsize == 2 else dtype
    mean, variance = batch_norm(x, parameters, training=True)
    own, spread = x.astype(np.float64).mean((0, 2)), x.astype(np.float64).var((0, 2), ddof=1)
    tolerance = 2e-2 if np.dtype(parameters).itemsize == 2 else 1e-6
    np.testing.assert_allclose(mean.astype(np.float64), 0.9 + 0.1 * own, tolerance)
    np.testing.assert_allclose(variance.astype(np.float64), 3.6 + 0.1 * spread, tolerance)


def test_inference_does_not_change_the_statistics() -> None:
    mean, variance = batch_norm(np.ones((2, 3, 4), np.float32), np.float32, training=False)
    np.testing.assert_array_equal(mean, 1)
    np.testing.assert_array_equal(variance, 4)


def test_single_value_per_channel_has_no_unbiased_variance() -> None:
    _, variance = batch_norm(np.ones((1, 3, 1), np.float32), np.float32, training=True)
    np.testing.assert_allclose(variance, 3.6)


@pytest.mark.parametrize("shape", [(64, 3, 7), (448, 3)])
def test_mean_far_from_zero_keeps_precision(shape: tuple[int, ...]) -> None:
    x = (1000 + np.random.default_rng(0).normal(0, 1, shape)).astype(np.float32)
    others = tuple(i for i in range(x.ndim) if i != 1)
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    found = run("normalization", x, zeros, ones, ones, zeros, axis=1, training=True, epsilon=0.0)
    np.testing.assert_allclose(found[2], 1 / x.astype(np.float64).std(others), rtol=1e-4)


CASES = [
    pytest.param(op, sample, id=f"{op}-{i}")
    for op in SPECS
    for i, sample in enumerate(SPECS[op].samples(np.random.default_rng(1)))  # type: ignore[misc]
]


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_results_are_independent_of_the_block_size(
    op: str, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm, "BLOCK_BYTES", 48)
    check_kernel(SPECS[op], BY_OP[op], sample, float32)
