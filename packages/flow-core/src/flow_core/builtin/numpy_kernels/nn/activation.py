"""Kernels of the activation functions and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import kernel, scalar, ufunc_kernel
from flow_core.builtin.numpy_kernels.math import special
from flow_core.builtin.numpy_kernels.steps import Steps, composite
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec


def _relu(ctx: BindContext) -> Launch:
    (x,), (y,) = ctx.inputs, ctx.outputs
    return call(np.maximum, x, scalar(0, x), out=y)


def _relu_grad(s: Steps) -> None:
    y, dy = s.inputs
    s.keep(s.test(np.greater, y, 0.0), dy, s.out)


def _sigmoid(s: Steps) -> None:
    (x,), y = s.inputs, s.out
    s(np.negative, x, out=y)
    s(np.exp, y, out=y)
    s(np.add, y, 1.0, out=y)
    s(np.reciprocal, y, out=y)


def _sigmoid_grad(s: Steps) -> None:
    y, dy = s.inputs
    slope = s(np.subtract, 1.0, y, out=s.temp())
    s(np.multiply, slope, y, out=slope)
    s(np.multiply, slope, dy, out=s.out)


def _tanh_grad(s: Steps) -> None:
    y, dy = s.inputs
    slope = s(np.multiply, y, y, out=s.temp())
    s(np.subtract, 1.0, slope, out=slope)
    s(np.multiply, slope, dy, out=s.out)


def _normal_share(s: Steps, x: Array) -> Array:
    """Record the cumulative normal distribution function, 0.5 (1 + erf(x / sqrt 2))."""
    share = s(np.multiply, x, sqrt(0.5), out=s.temp())
    special.erf(s, share, share)
    s(np.add, share, 1.0, out=share)
    return s(np.multiply, share, 0.5, out=share)


def _gelu(s: Steps) -> None:
    (x,) = s.inputs
    s(np.multiply, x, _normal_share(s, x), out=s.out)


def _gelu_grad(s: Steps) -> None:
    x, dy = s.inputs
    slope = _normal_share(s, x)
    density = s(np.multiply, x, x, out=s.temp())
    s(np.multiply, density, -0.5, out=density)
    s(np.exp, density, out=density)
    s(np.multiply, density, x, out=density)
    s(np.multiply, density, 1 / sqrt(2 * pi), out=density)
    s(np.add, slope, density, out=slope)
    s(np.multiply, slope, dy, out=s.out)


def _bounded(s: Steps, x: Array, low: float, high: float, out: Array) -> Array:
    s(np.maximum, x, low, out=out)
    return s(np.minimum, out, high, out=out)


def _inside(s: Steps, x: Array, low: float, high: float) -> Array:
    """Record a mask that is True where low < x < high."""
    mask = s.test(np.greater, x, low)
    return s(np.logical_and, mask, s.test(np.less, x, high), out=mask)


def _hardsigmoid_of(s: Steps, x: Array, out: Array) -> Array:
    s(np.divide, x, 6.0, out=out)
    s(np.add, out, 0.5, out=out)
    return _bounded(s, out, 0.0, 1.0, out)


def _hardsigmoid_grad(s: Steps) -> None:
    x, dy = s.inputs
    sixth = s(np.divide, dy, 6.0, out=s.temp())
    s.keep(_inside(s, x, -3.0, 3.0), sixth, s.out)


def _hardswish(s: Steps) -> None:
    (x,) = s.inputs
    s(np.multiply, x, _hardsigmoid_of(s, x, s.temp()), out=s.out)


def _hardswish_grad(s: Steps) -> None:
    x, dy = s.inputs
    slope = _hardsigmoid_of(s, x, s.temp())
    ramp = s(np.divide, x, 6.0, out=s.temp())
    s.keep(_inside(s, x, -3.0, 3.0), ramp, ramp)
    s(np.add, slope, ramp, out=slope)
    s(np.multiply, slope, dy, out=s.out)


def _hardtanh(s: Steps) -> None:
    _bounded(s, s.inputs[0], s.attrs["min_val"], s.attrs["max_val"], s.out)


def _hardtanh_grad(s: Steps) -> None:
    y, dy = s.inputs
    s.keep(_inside(s, y, s.attrs["min_val"], s.attrs["max_val"]), dy, s.out)


def _sloped(s: Steps, x: Array, alpha: Array) -> None:
    """Record max(x, 0) + alpha min(x, 0)."""
    below = s(np.minimum, x, 0.0, out=s.temp())
    s(np.multiply, below, alpha, out=below)
    s(np.maximum, x, 0.0, out=s.out)
    s(np.add, s.out, below, out=s.out)


def _sloped_grad(s: Steps, x: Array, alpha: Array, dy: Array) -> None:
    """Record dy where x > 0, else alpha dy."""
    above = s.test(np.greater, x, 0.0)
    s.select(above, dy, s(np.multiply, dy, alpha, out=s.temp()), s.out)


def _leaky_relu_grad(s: Steps) -> None:
    x, dy = s.inputs
    _sloped_grad(s, x, s.attrs["alpha"], dy)


def _prelu_grad(s: Steps) -> None:
    dy, x, alpha = s.inputs
    _sloped_grad(s, x, alpha, dy)


def _elu(s: Steps) -> None:
    (x,) = s.inputs
    below = s(np.minimum, x, 0.0, out=s.temp())
    s(np.expm1, below, out=below)
    s(np.multiply, below, s.attrs["alpha"], out=below)
    s(np.maximum, x, 0.0, out=s.out)
    s(np.add, s.out, below, out=s.out)


def _elu_grad(s: Steps) -> None:
    x, dy = s.inputs
    slope = s(np.minimum, x, 0.0, out=s.temp())
    s(np.exp, slope, out=slope)
    s(np.multiply, slope, s.attrs["alpha"], out=slope)
    s(np.multiply, slope, dy, out=slope)
    s.select(s.test(np.greater, x, 0.0), dy, slope, s.out)


BODIES: dict[str, Callable[[Steps], object]] = {
    "sigmoid": _sigmoid,
    "sigmoid_v2": _sigmoid,
    "sigmoid_grad": _sigmoid_grad,
    "tanh_grad": _tanh_grad,
    "gelu": _gelu,
    "gelu_grad": _gelu_grad,
    "hardsigmoid": lambda s: _hardsigmoid_of(s, s.inputs[0], s.out),
    "hardsigmoid_grad": _hardsigmoid_grad,
    "hardswish": _hardswish,
    "hardswish_grad": _hardswish_grad,
    "hardtanh": _hardtanh,
    "hardtanh_grad": _hardtanh_grad,
    "relu_grad": _relu_grad,
    "leaky_relu": lambda s: _sloped(s, s.inputs[0], s.attrs["alpha"]),
    "leaky_relu_grad": _leaky_relu_grad,
    "elu": _elu,
    "elu_grad": _elu_grad,
    "prelu": lambda s: _sloped(s, *s.inputs),
    "prelu_input_grad": _prelu_grad,
}

KERNELS: tuple[KernelSpec, ...] = (
    kernel("relu", _relu),
    ufunc_kernel("tanh", np.tanh),
    *(composite(op, body) for op, body in BODIES.items()),
)
