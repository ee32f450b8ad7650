"""Ops that compute numbers once per step: learning rates and the dynamic loss scale.

A schedule consists of three literals: the base learning rate, a decay ``(kind, *params)`` or None,
and a warm-up ``(kind, steps, multiplier)`` or None.  During warm-up, the decay is not applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, cos, exp, floor, pi, sqrt
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import FLOATS, float32, int64
from flow_core.base.errors import nearest
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.declare import OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import any_partial
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import P, S, Signatures, signature

DecayRule = Callable[..., float]
"""A function ``rule(rate, step, *params)`` that computes the learning rate at a step from the base
rate.
"""


@dataclass(frozen=True, slots=True)
class Decay:
    """A row of the table of decays: parameter names, formula, and whether the first is a period."""

    params: tuple[str, ...]
    rule: DecayRule
    period: bool = True


def _progress(step: int, steps: int, staircase: bool) -> float:
    return floor(step / steps) if staircase else step / steps


def _exponential(rate: float, step: int, steps: int, decay_rate: float, staircase: bool) -> float:
    return float(rate * decay_rate ** _progress(step, steps, staircase))


def _inverse_time(rate: float, step: int, steps: int, decay_rate: float, staircase: bool) -> float:
    return rate / (1.0 + decay_rate * _progress(step, steps, staircase))


def _natural_exp(rate: float, step: int, steps: int, decay_rate: float, staircase: bool) -> float:
    return rate * exp(-decay_rate * _progress(step, steps, staircase))


def _piece(step: int, boundaries: tuple[int, ...]) -> int:
    """Return the number of boundaries less than ``step``."""
    return sum(step > boundary for boundary in boundaries)


def _piecewise_constant(
    _: float, step: int, boundaries: tuple[int, ...], values: tuple[float, ...]
) -> float:
    return values[_piece(step, boundaries)]


def _piecewise_scaling(
    rate: float, step: int, boundaries: tuple[int, ...], scales: tuple[float, ...]
) -> float:
    return rate * scales[_piece(step, boundaries)]


def _polynomial(rate: float, step: int, steps: int, end: float, power: float, cycle: bool) -> float:
    if cycle:
        steps *= max(1, ceil(step / steps))
    return float((rate - end) * (1.0 - min(step, steps) / steps) ** power + end)


def _cosine(rate: float, step: int, steps: int, alpha: float) -> float:
    wave = 0.5 * (1.0 + cos(pi * min(step, steps) / steps))
    return rate * ((1.0 - alpha) * wave + alpha)


def _linear_cosine(
    rate: float, step: int, steps: int, num_periods: float, alpha: float, beta: float
) -> float:
    part = min(step, steps) / steps
    wave = 0.5 * (1.0 + cos(2.0 * pi * num_periods * part))
    return rate * ((alpha + 1.0 - part) * wave + beta)


DECAYS: dict[str, Decay] = {
    "exponential": Decay(("steps", "decay_rate", "staircase"), _exponential),
    "inverse_time": Decay(("steps", "decay_rate", "staircase"), _inverse_time),
    "natural_exp": Decay(("steps", "decay_rate", "staircase"), _natural_exp),
    "piecewise_constant": Decay(("boundaries", "values"), _piecewise_constant, period=False),
    "piecewise_scaling": Decay(("boundaries", "scales"), _piecewise_scaling, period=False),
    "polynomial": Decay(("steps", "end_learning_rate", "power", "cycle"), _polynomial),
    "cosine": Decay(("steps", "alpha"), _cosine),
    "linear_cosine": Decay(("steps", "num_periods", "alpha", "beta"), _linear_cosine),
}

WARMUPS = ("constant", "linear")


def warmup_factor(kind: str, step: int, steps: int, multiplier: float) -> float:
    """Return the factor on the base learning rate at a step of the warm-up.

    >>> warmup_factor("linear", 5, 10, 0.5), warmup_factor("constant", 5, 10, 0.2)
    (0.75, 0.2)
    """
    if kind == "constant":
        return multiplier
    return multiplier + (1.0 - multiplier) * (step / steps)


def scheduled_rate(
    step: int, rate: float, decay: tuple[Any, ...] | None, warmup: tuple[Any, ...] | None
) -> float:
    """Return the learning rate at a step.

    >>> scheduled_rate(3, 0.1, ("piecewise_constant", (2,), (0.1, 0.01)), None)
    0.01
    """
    if warmup is not None and step < warmup[1]:
        return rate * warmup_factor(warmup[0], step, warmup[1], warmup[2])
    if decay is None:
        return rate
    return DECAYS[decay[0]].rule(rate, step, *decay[1:])


def corrected_rate(rate: float, step: int, beta1: float, beta2: float) -> float:
    """Return the learning rate that corrects the bias of Adam's moments at a step, counted from 0.

    >>> round(corrected_rate(1.0, 0, 0.9, 0.99), 6)
    1.0
    """
    count = max(step + 1, 1)  # steps count from 0
    return rate * sqrt(1.0 - beta2**count) / (1.0 - beta1**count)


def is_number(type_: TensorType, *dtypes: Any) -> bool:
    """Return whether a value is a single element of one of the given types."""
    return type_.size == 1 and len(type_.shape) <= 1 and type_.dtype in dtypes


def sum_sbp(ctx: SbpContext) -> Signatures:
    """Map S(i) to P(sum), for an op that returns one sum over all elements."""
    return tuple(signature((S(i),), (P,)) for i in range(len(ctx.inputs[0].shape)))


def _check_step(ctx: InferContext, index: int) -> None:
    step = ctx.inputs[index]
    ctx.check(is_number(step, int64), f"train_step of type {step}", "int64[]")


def _check_decay(ctx: InferContext, decay: tuple[Any, ...] | None) -> None:
    if decay is None:
        return
    row = DECAYS.get(decay[0])
    if row is None or len(decay) != len(row.params) + 1:
        hint = "" if row else nearest(str(decay[0]), DECAYS)
        known = "; ".join(", ".join((kind, *r.params)) for kind, r in DECAYS.items())
        ctx.fail(f"learning rate decay {decay!r}", known, hint or None)
    if row.period:
        ctx.check(decay[1] > 0, f"{decay[1]} decay steps", "at least 1")
    else:
        ctx.check(
            len(decay[2]) == len(decay[1]) + 1,
            f"{len(decay[1])} boundaries and {len(decay[2])} {row.params[1]}",
            "one boundary fewer than pieces",
        )


def _check_warmup(ctx: InferContext, warmup: tuple[Any, ...] | None) -> None:
    if warmup is None:
        return
    ctx.check(
        len(warmup) == 3 and warmup[0] in WARMUPS,
        f"warm-up {warmup!r}",
        "(kind, steps, multiplier) with kind constant or linear",
    )
    kind, steps, multiplier = warmup
    low = multiplier >= 0 if kind == "linear" else multiplier > 0
    ctx.check(
        low and multiplier < 1 and steps >= 0,
        f"{kind} warm-up of {steps} steps with multiplier {multiplier}",
        "steps >= 0 and a multiplier between 0 and 1",
    )


RATE_EXAMPLES: tuple[tuple[Any, ...], ...] = (
    ("exponential", 10, 0.9, False),
    ("exponential", 10, 0.9, True),
    ("inverse_time", 7, 0.5, False),
    ("inverse_time", 7, 0.5, True),
    ("natural_exp", 9, 0.3, False),
    ("natural_exp", 9, 0.3, True),
    ("piecewise_constant", (10, 20), (0.1, 0.01, 0.001)),
    ("piecewise_scaling", (10, 20), (1.0, 0.5, 0.1)),
    ("polynomial", 12, 0.001, 2.0, False),
    ("polynomial", 12, 0.001, 1.0, True),
    ("cosine", 15, 0.1),
    ("linear_cosine", 15, 0.5, 0.0, 0.001),
)
"""Return one decay per kind and flag, for samples and tests."""


def _rate_sample(step: int, decay: Any, warmup: Any) -> Sample:
    attrs = {"learning_rate": 0.1, "learning_rate_decay": decay, "warmup_conf": warmup}
    return Sample((np.array(step, np.int64),), attrs, gradient=False)


class LearningRateSchedule(OpDef):
    """The learning rate of the current step."""

    schema = "learning_rate_schedule(train_step) -> out"
    attrs = {"learning_rate": REQUIRED, "learning_rate_decay": None, "warmup_conf": None}

    def infer(self, ctx: InferContext) -> Types:
        _check_step(ctx, 0)
        _check_decay(ctx, ctx.attrs["learning_rate_decay"])
        _check_warmup(ctx, ctx.attrs["warmup_conf"])
        return (tensor_type(ctx.inputs[0].shape, float32),)

    def reference(
        self, step: Any, *, learning_rate: float, learning_rate_decay: Any, warmup_conf: Any
    ) -> Any:
        rate = scheduled_rate(int(np.max(step)), learning_rate, learning_rate_decay, warmup_conf)
        return np.full(np.shape(step), rate)

    def samples(self, rng: Rng) -> Samples:
        for decay in (None, *RATE_EXAMPLES):
            for step in (0, 11, 40):
                yield _rate_sample(step, decay, None)
        for warmup in (("linear", 10, 0.1), ("constant", 10, 0.1), ("linear", 0, 0.0)):
            for step in (0, 5, 10):
                yield _rate_sample(step, RATE_EXAMPLES[0], warmup)
        yield Sample(
            (np.array([3], np.int64),),
            {"learning_rate": 0.25, "learning_rate_decay": RATE_EXAMPLES[0]},
            gradient=False,
            note="shape (1,)",
        )


class AdamBiasCorrectionLearningRate(OpDef):
    """The learning rate with Adam's bias correction."""

    schema = "adam_bias_correction_learning_rate(learning_rate, train_step) -> out"
    attrs = {"beta1": 0.9, "beta2": 0.999}

    def infer(self, ctx: InferContext) -> Types:
        rate = ctx.inputs[0]
        ctx.check(is_number(rate, *FLOATS), f"learning_rate of type {rate}", "one floating number")
        _check_step(ctx, 1)
        for name in ("beta1", "beta2"):
            ctx.check(0 <= ctx.attrs[name] < 1, f"{name} {ctx.attrs[name]}", "0 <= beta < 1")
        return (rate,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        return any_partial(ctx, 0)

    def reference(self, rate: Any, step: Any, *, beta1: float, beta2: float) -> Any:
        corrected = corrected_rate(float(np.max(rate)), int(np.max(step)), beta1, beta2)
        return np.full(np.shape(rate), corrected)

    def samples(self, rng: Rng) -> Samples:
        for step in (0, 1, 7, 5000):
            yield Sample(
                (np.array(0.01, np.float32), np.array(step, np.int64)),
                {"beta1": 0.8, "beta2": 0.99},
                gradient=False,
            )


class CountNotFinite(OpDef):
    """The number of infinite or NaN elements, as int64."""

    schema = "count_not_finite(x) -> y"
    sbp = staticmethod(sum_sbp)

    def infer(self, ctx: InferContext) -> Types:
        ctx.check(
            ctx.inputs[0].dtype.is_floating, f"input of type {ctx.inputs[0]}", "a floating type"
        )
        return (tensor_type((), int64),)

    def reference(self, x: Array) -> Array:
        return np.array(np.size(x) - np.isfinite(x).sum(), np.int64)

    def samples(self, rng: Rng) -> Samples:
        x = rng.uniform(-1, 1, (3, 5))
        yield Sample((x,), gradient=False)
        x = x.copy()
        x[0, 1:3], x[1, 1] = np.inf, -np.inf
        yield Sample((x,), gradient=False, note="3 not finite")
        yield Sample((rng.uniform(-1, 1, (0, 2)),), gradient=False, note="no elements")


class DynamicLossScaleSchedule(OpDef):
    """Increase the loss scale after many finite steps, decrease it after a non-finite one."""

    schema = "dynamic_loss_scale_schedule(count_not_finite, loss_scale, good_step_counter)"
    attrs = {"increment_period": 2000, "multiplier": 2.0}
    mutates = (1, 2)
    effect = True

    def infer(self, ctx: InferContext) -> Types:
        for name, type_, dtype in zip(
            self.inputs, ctx.inputs, (int64, float32, int64), strict=True
        ):
            ctx.check(
                is_number(type_, dtype), f"{name} of type {type_}", f"{dtype}[] or {dtype}[1]"
            )
        period, multiplier = ctx.attrs["increment_period"], ctx.attrs["multiplier"]
        ctx.check(period >= 1, f"increment_period {period}", "at least 1 step")
        ctx.check(multiplier > 1, f"multiplier {multiplier}", "more than 1")
        return ()

    def reference(
        self, bad: Array, scale: Array, good_steps: Array, *, increment_period: int,
        multiplier: float,
    ) -> tuple[Array, Array]:  # fmt: skip
        if np.max(bad):
            return np.maximum(scale / multiplier, 1.0), np.zeros_like(good_steps)
        if int(np.max(good_steps)) + 1 < increment_period:
            return scale.copy(), good_steps + 1
        largest = float(np.finfo(np.float32).max)
        larger = scale.astype(np.float64) * multiplier
        return np.minimum(larger, largest), np.zeros_like(good_steps)

    def samples(self, rng: Rng) -> Samples:
        for bad, scale, good_steps in (
            (0, 8.0, 0), (3, 8.0, 0), (0, 8.0, 3), (2, 8.0, 3), (1, 1.5, 2), (0, 3e38, 3),
            (0, 8.0, 2),
        ):  # fmt: skip
            inputs = np.array(bad), np.array(scale, np.float32), np.array(good_steps)
            attrs = {"increment_period": 4, "multiplier": 4.0}
            yield Sample(inputs, attrs, False, fixed=(1,))
        inputs = np.array([0]), np.array([8.0], np.float32), np.array([1999])
        yield Sample(inputs, {}, False, "shape (1,)", fixed=(1,))


OPS = specs(
    LearningRateSchedule, AdamBiasCorrectionLearningRate, CountNotFinite, DynamicLossScaleSchedule
)
