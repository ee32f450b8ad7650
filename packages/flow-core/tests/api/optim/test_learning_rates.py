"""Learning-rate schedules against their formulas, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.api.optim import optimizer as api
from flow_core.base.errors import FlowError, InferenceError
from flow_core.builtin.numpy_kernels.training.schedules import KERNELS
from flow_core.ops.training.schedules import OPS, scheduled_rate
from flow_core.testing.checks import query, run_kernel

BASE = 0.2
STEPS = range(0, 61)
SCHEDULE = OPS[0]


def polynomial(s: int) -> float:
    return (BASE - 0.01) * (1 - min(s, 20) / 20) ** 2 + 0.01


def cycled(s: int) -> float:
    length = 20 * max(1, math.ceil(s / 20))
    return (BASE - 0.01) * (1 - s / length) + 0.01


def cosine(s: int) -> float:
    return BASE * (0.9 * 0.5 * (1 + math.cos(math.pi * min(s, 20) / 20)) + 0.1)


def linear_cosine(s: int) -> float:
    s = min(s, 20)
    wave = 0.5 * (1 + math.cos(math.pi * 2 * 1.5 * s / 20))
    return BASE * ((0.2 + (20 - s) / 20) * wave + 0.05)


CASES: dict[str, tuple[Any, Callable[[int], float]]] = {
    "constant": (api.PiecewiseConstantScheduler([], [BASE]), lambda s: BASE),
    "pieces": (
        api.PiecewiseConstantScheduler([10, 30], [BASE, 0.02, 0.003]),
        lambda s: BASE if s <= 10 else 0.02 if s <= 30 else 0.003,
    ),
    "scales": (
        api.PiecewiseScalingScheduler(BASE, [10, 30], [0.5, 0.1]),
        lambda s: BASE * (1 if s <= 10 else 0.5 if s <= 30 else 0.1),
    ),
    "one scale": (
        api.PiecewiseScalingScheduler(BASE, [10, 30], 0.5),
        lambda s: BASE * (1 if s <= 10 else 0.5),
    ),
    "polynomial": (api.PolynomialScheduler(BASE, 20, 0.01, 2.0), polynomial),
    "cycle": (api.PolynomialScheduler(BASE, 20, 0.01, cycle=True), cycled),
    "cosine": (api.CosineScheduler(BASE, 20, 0.1), cosine),
    "linear cosine": (api.LinearCosineScheduler(BASE, 20, 1.5, 0.2, 0.05), linear_cosine),
    "exponential": (api.ExponentialScheduler(BASE, 8, 0.7), lambda s: BASE * 0.7 ** (s / 8)),
    "exponential stairs": (
        api.ExponentialScheduler(BASE, 8, 0.7, True),
        lambda s: BASE * 0.7 ** (s // 8),
    ),
    "inverse time": (
        api.InverseTimeScheduler(BASE, 8, 0.7),
        lambda s: BASE / (1 + 0.7 * s / 8),
    ),
    "inverse time stairs": (
        api.InverseTimeScheduler(BASE, 8, 0.7, True),
        lambda s: BASE / (1 + 0.7 * (s // 8)),
    ),
    "natural exp": (
        api.NaturalExpScheduler(BASE, 8, 0.7),
        lambda s: BASE * math.exp(-0.7 * s / 8),
    ),
    "natural exp stairs": (
        api.NaturalExpScheduler(BASE, 8, 0.7, True),
        lambda s: BASE * math.exp(-0.7 * (s // 8)),
    ),
}


def rate(scheduler: Any, step: int) -> float:
    """Return the rate computed by the kernel."""
    plan = scheduler.schedule()
    attrs = {
        "learning_rate": plan.rate,
        "learning_rate_decay": plan.decay,
        "warmup_conf": plan.warmup,
    }
    arrays = [np.array(step, np.int64)]
    (out,) = run_kernel(KERNELS[0], query(SCHEDULE, arrays, attrs), arrays)
    assert out.dtype == np.float32
    return float(out)


@pytest.mark.parametrize("case", CASES)
def test_formula(case: str) -> None:
    scheduler, formula = CASES[case]
    found = [rate(scheduler, s) for s in STEPS]
    np.testing.assert_allclose(found, [formula(s) for s in STEPS], 1e-6, 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_linear_warmup(case: str) -> None:
    scheduler, formula = CASES[case]
    scheduler.warmup = api.warmup.linear(12, 0.25)
    try:
        found = [rate(scheduler, s) for s in STEPS]
    finally:
        scheduler.warmup = None
    wanted = [BASE * (0.25 + 0.75 * s / 12) if s < 12 else formula(s) for s in STEPS]
    np.testing.assert_allclose(found, wanted, 1e-6, 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_constant_warmup(case: str) -> None:
    scheduler, formula = CASES[case]
    scheduler.warmup = api.warmup.constant(12, 0.25)
    try:
        found = [rate(scheduler, s) for s in STEPS]
    finally:
        scheduler.warmup = None
    wanted = [BASE * 0.25 if s < 12 else formula(s) for s in STEPS]
    np.testing.assert_allclose(found, wanted, 1e-6, 1e-9)


@given(st.integers(0, 10**12), st.sampled_from(list(CASES)))
def test_never_above_the_base_rate(step: int, case: str) -> None:
    plan = CASES[case][0].schedule()
    found = scheduled_rate(step, plan.rate, plan.decay, plan.warmup)
    assert 0 <= found <= BASE * 1.25 + 1e-9


@pytest.mark.parametrize(
    "attrs",
    [
        {"learning_rate_decay": ("cosin", 10, 0.1)},
        {"learning_rate_decay": ("cosine", 10)},
        {"learning_rate_decay": ("cosine", 0, 0.1)},
        {"learning_rate_decay": ("piecewise_constant", (1, 2), (0.1, 0.2))},
        {"warmup_conf": ("linear", 10)},
        {"warmup_conf": ("quadratic", 10, 0.5)},
        {"warmup_conf": ("constant", 10, 0.0)},
        {"warmup_conf": ("linear", -1, 0.5)},
    ],
)
def test_wrong_literals(attrs: dict[str, Any]) -> None:
    with pytest.raises(InferenceError):
        query(SCHEDULE, [np.array(0, np.int64)], {"learning_rate": 0.1, **attrs})


@pytest.mark.parametrize(
    "make",
    [
        lambda: api.CosineScheduler(100, 1e-3),  # the arguments are exchanged
        lambda: api.PolynomialScheduler(0.1, 12.5),
        lambda: api.PiecewiseConstantScheduler([7.5], [0.1, 0.2]),
        lambda: api.PiecewiseScalingScheduler(0.1, [7.5], 0.1),
        lambda: api.warmup.linear(0.1, 0.5),
    ],
)
def test_fractions_of_steps_are_refused(make: Any) -> None:
    with pytest.raises(FlowError, match="whole number"):
        make()


def test_whole_numbers_of_steps_may_be_floats() -> None:
    decay = api.CosineScheduler(0.1, 3e2).learning_rate_decay_conf
    assert decay == ("cosine", 300, 0.0)
    assert isinstance(decay[1], int)


def test_step_is_an_int64() -> None:
    with pytest.raises(InferenceError, match="train_step"):
        query(SCHEDULE, [np.array(0, np.int32)], {"learning_rate": 0.1})


@pytest.mark.parametrize("step", [0, 1, 9, 10_000])
def test_bias_correction(step: int) -> None:
    spec = next(s for s in OPS if s.type == "adam_bias_correction_learning_rate")
    kernel = next(k for k in KERNELS if k.op == spec.type)
    arrays = [np.array([0.01], np.float32), np.array([step], np.int64)]
    (out,) = run_kernel(kernel, query(spec, arrays, {"beta1": 0.9, "beta2": 0.99}), arrays)
    wanted = 0.01 * math.sqrt(1 - 0.99 ** (step + 1)) / (1 - 0.9 ** (step + 1))
    np.testing.assert_allclose(out, [wanted], 1e-6)


def test_nan_counts_as_not_finite() -> None:
    spec = next(s for s in OPS if s.type == "count_not_finite")
    kernel = next(k for k in KERNELS if k.op == spec.type)
    x = np.zeros(100_000, np.float32)
    x[[0, 40_000, 99_999]] = np.nan, np.inf, -np.inf
    (out,) = run_kernel(kernel, query(spec, [x], {}), [x])
    assert out.item() == 3
