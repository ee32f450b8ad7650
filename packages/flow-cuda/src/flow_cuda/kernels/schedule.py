"""Learning rates as C++ of the number of the step: a captured step computes its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flow_cuda.program import Kernel, named

PI = "3.14159265358979323846"


def _progress(steps: int, staircase: bool) -> str:
    part = f"step / {_double(steps)}"
    return f"floor({part})" if staircase else f"({part})"


def _double(value: Any) -> str:
    return f"(double){float(value)!r}"


def _exponential(steps: int, decay: float, staircase: bool) -> str:
    return f"rate * pow({_double(decay)}, {_progress(steps, staircase)})"


def _inverse_time(steps: int, decay: float, staircase: bool) -> str:
    return f"rate / (1.0 + {_double(decay)} * {_progress(steps, staircase)})"


def _natural_exp(steps: int, decay: float, staircase: bool) -> str:
    return f"rate * exp(-{_double(decay)} * {_progress(steps, staircase)})"


def _pieces(boundaries: tuple[int, ...], values: tuple[float, ...]) -> str:
    """The value of a piece; a boundary belongs to its left side."""
    text = _double(values[-1])
    for boundary, value in zip(reversed(boundaries), reversed(values[:-1]), strict=True):
        text = f"(step <= {_double(boundary)} ? {_double(value)} : {text})"
    return text


def _scaling(boundaries: tuple[int, ...], scales: tuple[float, ...]) -> str:
    return f"rate * {_pieces(boundaries, scales)}"


def _polynomial(steps: int, end: float, power: float, cycle: bool) -> str:
    n, e = _double(steps), _double(end)
    now = "(step > 1 ? step : 1.0)" if cycle else "step"
    period = f"({n} * ceil({now} / {n}))" if cycle else n
    part = f"({now} < {period} ? {now} : {period}) / {period}"
    return f"(rate - {e}) * pow(1.0 - {part}, {_double(power)}) + {e}"


def _part(steps: int) -> str:
    n = _double(steps)
    return f"((step < {n} ? step : {n}) / {n})"


def _cosine(steps: int, alpha: float) -> str:
    a = _double(alpha)
    return f"rate * ((1.0 - {a}) * (0.5 * (1.0 + cos({PI} * {_part(steps)}))) + {a})"


def _linear_cosine(steps: int, periods: float, alpha: float, beta: float) -> str:
    part = _part(steps)
    wave = f"(0.5 * (1.0 + cos(2.0 * {PI} * {_double(periods)} * {part})))"
    return f"rate * (({_double(alpha)} + 1.0 - {part}) * {wave} + {_double(beta)})"


DECAYS: Mapping[str, Callable[..., str]] = {
    "exponential": _exponential,
    "inverse_time": _inverse_time,
    "natural_exp": _natural_exp,
    "piecewise_constant": _pieces,
    "piecewise_scaling": _scaling,
    "polynomial": _polynomial,
    "cosine": _cosine,
    "linear_cosine": _linear_cosine,
}


def rate_kernel(attrs: Mapping[str, Any]) -> Kernel:
    """The kernel of a schedule: from the step's number to the rate."""
    decay, warmup = attrs["learning_rate_decay"], attrs["warmup_conf"]
    text = DECAYS[decay[0]](*decay[1:]) if decay else "rate"
    if warmup:
        kind, steps, multiplier = warmup
        factor = _double(multiplier)
        if kind == "linear":
            factor = f"({factor} + (1.0 - {factor}) * (step / {_double(steps)}))"
        text = f"(step < {_double(steps)} ? rate * {factor} : {text})"
    body = (
        f"if (first_item()) return;\ndouble step = (double)*now, rate = "
        f"{_double(attrs['learning_rate'])};\n*out = (float)({text});"
    )
    return named("rate", (("const i64 *", "now"), ("float *", "out")), body)
