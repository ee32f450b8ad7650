"""Initializers of variables, such as ``flow.random_normal_initializer(stddev=0.1)``.

Args:
    dtype: the element type of the variable.
    stddev: the standard deviation before truncation.
    mode: "fan_in", "fan_out" or "fan_avg".
    data_format: axis order of the weight: "NC..." for (out, in, window), "N...C" for (out, window,
        in), "" for a matrix (out, in).

Returns: An initializer for `flow.get_variable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from flow_core.api.arguments import check
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.dtypes import float32 as _float
from flow_core.ir.initializers import DISTRIBUTIONS, MODES, Initializer, fan

__all__ = [
    "constant_initializer", "glorot_normal_initializer", "glorot_uniform_initializer",
    "kaiming_initializer", "ones_initializer", "random_normal_initializer",
    "random_uniform_initializer", "truncated_normal", "truncated_normal_initializer",
    "variance_scaling_initializer", "xavier_normal_initializer", "xavier_uniform_initializer",
    "zeros_initializer",
]  # fmt: skip


def constant_initializer(value: float = 0, dtype: DType = _float) -> Initializer:
    """Return the initializer that sets every element to ``value``.

    Args:
        value: the number.
        dtype: element type of the variable; for integer types ``value`` is truncated.

    >>> run(flow.get_variable, "w", (100, 50), initializer=flow.constant_initializer(0.5))[0, :3]
    array([0.5, 0.5, 0.5], dtype=float32)
    """
    return Initializer("constant", (_number("constant_initializer", value, dtype),))


def zeros_initializer(dtype: DType = _float) -> Initializer:
    """Return the initializer that sets every element to 0.

    >>> run(flow.get_variable, "w", (100, 50), initializer=flow.zeros_initializer())[0, :3]
    array([0., 0., 0.], dtype=float32)
    """
    return constant_initializer(0.0, dtype)


def ones_initializer(dtype: DType = _float) -> Initializer:
    """Return the initializer that sets every element to 1.

    >>> run(flow.get_variable, "w", (100, 50), initializer=flow.ones_initializer())[0, :3]
    array([1., 1., 1.], dtype=float32)
    """
    return constant_initializer(1.0, dtype)


def random_uniform_initializer(
    minval: float = 0, maxval: float = 1, dtype: DType = _float
) -> Initializer:
    """Return an initializer that draws uniform numbers between ``minval`` and ``maxval``.

    Args:
        minval: lower bound, included.
        maxval: upper bound; included for integer types only.

    Raises: InferenceError: ``minval`` is larger than ``maxval``.

    >>> chosen = flow.random_uniform_initializer(-0.1, 0.1)
    >>> w = run(flow.get_variable, "w", (100, 50), initializer=chosen)
    >>> bool(abs(w).max() <= 0.1)
    True
    """
    what = "random_uniform_initializer"
    bounds = (_number(what, minval, dtype), _number(what, maxval, dtype))
    check(bounds[0] <= bounds[1], what, f"minval={minval}, maxval={maxval}", "minval <= maxval")
    kind = "random_uniform" if as_dtype(dtype).is_floating else "random_uniform_int"
    return Initializer(kind, bounds)


def random_normal_initializer(
    mean: float = 0.0, stddev: float = 1.0, seed: int | None = None, dtype: DType | None = None
) -> Initializer:
    """Return an initializer that draws normally distributed numbers.

    Args:
        mean: mean of the distribution.
        stddev: standard deviation of the distribution.
        seed: must be None; pass ``random_seed`` to ``flow.get_variable`` instead.
        dtype: must be None; pass ``dtype`` to ``flow.get_variable`` instead.

    Raises: InferenceError: ``seed`` or ``dtype`` is given.

    >>> chosen = flow.random_normal_initializer(stddev=0.1)
    >>> w = run(flow.get_variable, "w", (100, 50), initializer=chosen)
    >>> bool(abs(w.std() - 0.1) < 0.01)
    True
    """
    check(
        seed is None and dtype is None,
        "random_normal_initializer",
        f"seed={seed!r}, dtype={dtype!r}",
        "None for both",
        "pass random_seed and dtype to flow.get_variable",
    )
    return Initializer("random_normal", (float(mean), float(stddev)))


def truncated_normal_initializer(mean: float = 0.0, stddev: float = 1.0) -> Initializer:
    """Return an initializer that draws normal numbers at most 2 ``stddev`` away from the mean.

    Args:
        mean: the mean.

    >>> chosen = flow.truncated_normal_initializer(stddev=0.1)
    >>> w = run(flow.get_variable, "w", (100, 50), initializer=chosen)
    >>> bool(abs(w).max() <= 0.2)
    True
    """
    return Initializer("truncated_normal", (float(mean), float(stddev)))


def truncated_normal(stddev: float = 1.0) -> Initializer:
    """Return a `truncated_normal_initializer` with mean 0.

    >>> chosen = flow.truncated_normal(0.1)
    >>> w = run(flow.get_variable, "w", (100, 50), initializer=chosen)
    >>> bool(abs(w).max() <= 0.2)
    True
    """
    return truncated_normal_initializer(0.0, stddev)


def glorot_uniform_initializer(data_format: str = "") -> Initializer:
    """Return an initializer that draws uniform numbers of variance 2 / (fan_in + fan_out).

    >>> chosen = flow.glorot_uniform_initializer()
    >>> w = run(flow.get_variable, "w", (100, 50), initializer=chosen)
    >>> bool(abs(w).max() < 0.2)
    True
    """
    return variance_scaling_initializer(1.0, "fan_avg", "random_uniform", data_format)


def glorot_normal_initializer(data_format: str = "") -> Initializer:
    """Return an initializer that draws normal numbers of variance 2 / (fan_in + fan_out).

    >>> chosen = flow.glorot_normal_initializer()
    >>> w = run(flow.get_variable, "w", (100, 50), initializer=chosen)
    >>> bool(abs(w.std() - (2 / 150) ** 0.5) < 0.01)
    True
    """
    return variance_scaling_initializer(1.0, "fan_avg", "random_normal", data_format)


xavier_uniform_initializer = glorot_uniform_initializer
xavier_normal_initializer = glorot_normal_initializer


def variance_scaling_initializer(
    scale: float = 1.0,
    mode: str = "fan_in",
    distribution: str = "truncated_normal",
    data_format: str = "",
) -> Initializer:
    """Return an initializer that draws numbers of mean 0 and variance ``scale / fan``.

    Args:
        scale: a positive factor.
        distribution: "truncated_normal", "random_normal" or "random_uniform".

    Raises: InferenceError: an argument has a value that is not listed here.

    >>> chosen = flow.variance_scaling_initializer(2.0)
    >>> w = run(flow.get_variable, "w", (100, 50), initializer=chosen)
    >>> bool(abs(w.std() - 0.2) < 0.02)
    True
    """
    what = "variance_scaling_initializer"
    mode = _choice(what, "mode", mode.lower(), MODES)
    distribution = _choice(what, "distribution", distribution.lower(), DISTRIBUTIONS)
    return Initializer(
        "variance_scaling", (float(scale), mode, distribution, _layout(what, data_format))
    )


def kaiming_initializer(
    shape: Sequence[int],
    distribution: str = "random_normal",
    mode: str = "fan_in",
    nonlinearity: str | None = "leaky_relu",
    negative_slope: float = 0.0,
    data_format: str = "NCHW",
) -> Initializer:
    """Return an initializer that draws numbers of standard deviation ``gain / sqrt(fan)``.

    Args:
        shape: shape of the variable, at least rank 2.
        distribution: "random_normal" or "random_uniform".
        nonlinearity: the activation that follows, which determines the gain: "leaky_relu", "relu",
            "tanh", "sigmoid" or None.
        negative_slope: slope of leaky_relu below 0.
        data_format: "NCHW" or "NHWC".

    Raises: InferenceError: an argument has a value that is not listed here.

    >>> chosen = flow.kaiming_initializer((100, 50))
    >>> w = run(flow.get_variable, "w", (100, 50), initializer=chosen)
    >>> bool(abs(w.std() - 0.2) < 0.01)
    True
    """
    what = "kaiming_initializer"
    check(len(shape) >= 2 and min(shape) > 0, what, f"shape {tuple(shape)}", "rank >= 2, no 0")
    _choice(what, "data_format", data_format, ("NCHW", "NHWC"))
    _choice(what, "mode", mode, MODES)
    _choice(what, "distribution", distribution, ("random_normal", "random_uniform"))
    gain = _gain(what, nonlinearity, negative_slope)
    std = gain / sqrt(fan(shape, mode, _layout(what, data_format)))
    if distribution == "random_normal":
        return random_normal_initializer(0.0, std)
    return random_uniform_initializer(-sqrt(3.0) * std, sqrt(3.0) * std)


def _gain(what: str, nonlinearity: str | None, negative_slope: float) -> float:
    gains = {
        "None": 1.0,
        "sigmoid": 1.0,
        "tanh": 5.0 / 3,
        "relu": sqrt(2.0),
        "leaky_relu": sqrt(2.0 / (1 + negative_slope**2)),
    }
    return gains[_choice(what, "nonlinearity", str(nonlinearity), tuple(gains))]


def _layout(what: str, data_format: str) -> str:
    if data_format.startswith("NC"):
        return "channels_first"
    if data_format.startswith("N") and data_format.endswith("C"):
        return "channels_last"
    check(data_format == "", what, f"data_format={data_format!r}", '"NC...", "N...C" or ""')
    return ""


def _number(what: str, value: float, dtype: DType) -> int | float:
    dtype = as_dtype(dtype)
    check(
        dtype.is_floating or dtype.is_integer, what, f"dtype {dtype}", "a floating or integer type"
    )
    return float(value) if dtype.is_floating else int(value)


def _choice(what: str, name: str, value: str, allowed: tuple[str, ...]) -> str:
    check(value in allowed, what, f"{name}={value!r}", ", ".join(allowed))
    return value
