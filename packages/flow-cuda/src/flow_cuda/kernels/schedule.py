"""Learning-rate schedules as C++ functions of the step, so that a captured step evaluates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flow_cuda.codegen.program import Kernel, Scalars, make_kernel

PI = "3.14159265358979323846"


Number = Callable[[float], str]
"""A function that adds a number to the parameters of a kernel and returns the parameter's name."""


def _progress(number: Number, steps: int, staircase: bool) -> str:
    part = f"step / {number(steps)}"
    return f"floor({part})" if staircase else f"({part})"


def _exponential(number: Number, steps: int, decay: float, staircase: bool) -> str:
    return f"rate * pow({number(decay)}, {_progress(number, steps, staircase)})"


def _inverse_time(number: Number, steps: int, decay: float, staircase: bool) -> str:
    return f"rate / (1.0 + {number(decay)} * {_progress(number, steps, staircase)})"


def _natural_exp(number: Number, steps: int, decay: float, staircase: bool) -> str:
    return f"rate * exp(-{number(decay)} * {_progress(number, steps, staircase)})"


def _pieces(number: Number, boundaries: tuple[int, ...], values: tuple[float, ...]) -> str:
    """Return a piecewise constant expression; a boundary belongs to the piece on its left."""
    text = number(values[-1])
    for boundary, value in zip(reversed(boundaries), reversed(values[:-1]), strict=True):
        text = f"(step <= {number(boundary)} ? {number(value)} : {text})"
    return text


def _scaling(number: Number, boundaries: tuple[int, ...], scales: tuple[float, ...]) -> str:
    return f"rate * {_pieces(number, boundaries, scales)}"


def _polynomial(number: Number, steps: int, end: float, power: float, cycle: bool) -> str:
    n, e = number(steps), number(end)
    period = f"({n} * (step > 0 ? ceil(step / {n}) : 1.0))" if cycle else n
    part = f"(step < {period} ? step : {period}) / {period}"
    return f"(rate - {e}) * pow(1.0 - {part}, {number(power)}) + {e}"


def _part(number: Number, steps: int) -> str:
    n = number(steps)
    return f"((step < {n} ? step : {n}) / {n})"


def _cosine(number: Number, steps: int, alpha: float) -> str:
    a = number(alpha)
    return f"rate * ((1.0 - {a}) * (0.5 * (1.0 + cos({PI} * {_part(number, steps)}))) + {a})"


def _linear_cosine(number: Number, steps: int, periods: float, alpha: float, beta: float) -> str:
    part = _part(number, steps)
    wave = f"(0.5 * (1.0 + cos(2.0 * {PI} * {number(periods)} * {part})))"
    return f"rate * (({number(alpha)} + 1.0 - {part}) * {wave} + {number(beta)})"


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


def rate_kernel(attrs: Mapping[str, Any]) -> tuple[Kernel, list[int | float]]:
    """Return the kernel that maps the step number to the rate, and the kernel's scalars."""
    scalars = Scalars()

    def number(value: float) -> str:
        return scalars.add("double", float(value))

    decay, warmup = attrs["learning_rate_decay"], attrs["warmup_conf"]
    text = DECAYS[decay[0]](number, *decay[1:]) if decay else "rate"
    if warmup:
        text = f"({_warmup(number, *warmup)} : {text})"
    rate = number(attrs["learning_rate"])
    body = (
        f"if (first_item()) return;\ndouble step = (double)*now, rate = {rate};\n"
        f"*out = (float)({text});"
    )
    parameters = (("const i64 *", "now"), ("float *", "out"), *scalars.parameters)
    return make_kernel("rate", parameters, body), scalars.values


def _warmup(number: Number, kind: str, steps: int, multiplier: float) -> str:
    """Return the beginning of a ?: expression: the condition and the rate of warm-up steps."""
    n, factor = number(steps), number(multiplier)
    if kind == "linear":
        factor = f"({factor} + (1.0 - {factor}) * (step / {n}))"
    return f"step < {n} ? rate * {factor}"
