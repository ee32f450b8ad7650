"""Elementwise functions of one blob, from ``flow.math``.

All of them return a blob of the shape and element type of ``x``.  `abs`, `negative`, `sign` and
`square` also take integers; the other functions raise `InferenceError` unless the type is floating.
"""

from __future__ import annotations

from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit_one

__all__ = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "gelu",
    "gelu_grad",
    "lgamma",
    "log",
    "log1p",
    "log_sigmoid",
    "negative",
    "reciprocal",
    "reciprocal_no_nan",
    "relu",
    "rint",
    "round",
    "rsqrt",
    "sigmoid",
    "sigmoid_grad",
    "sigmoid_v2",
    "sign",
    "sin",
    "sinh",
    "softplus",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "tanh_v2",
]


def abs(x: Blob, name: str | None = None) -> BlobDef:
    """Return the absolute value of each element."""
    return emit_one("abs", x, name=name)


def acos(x: Blob, name: str | None = None) -> BlobDef:
    """Return the arc cosine of each element, in radians; nan outside [-1, 1]."""
    return emit_one("acos", x, name=name)


def acosh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the inverse hyperbolic cosine of each element; nan below 1."""
    return emit_one("acosh", x, name=name)


def asin(x: Blob, name: str | None = None) -> BlobDef:
    """Return the arc sine of each element, in radians; nan outside [-1, 1]."""
    return emit_one("asin", x, name=name)


def asinh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the inverse hyperbolic sine of each element."""
    return emit_one("asinh", x, name=name)


def atan(x: Blob, name: str | None = None) -> BlobDef:
    """Return the arc tangent of each element, in radians."""
    return emit_one("atan", x, name=name)


def atanh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the inverse hyperbolic tangent of each element; nan outside [-1, 1]."""
    return emit_one("atanh", x, name=name)


def ceil(x: Blob, name: str | None = None) -> BlobDef:
    """Return the least integer not below each element."""
    return emit_one("ceil", x, name=name)


def cos(x: Blob, name: str | None = None) -> BlobDef:
    """Return the cosine of each element, in radians."""
    return emit_one("cos", x, name=name)


def cosh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the hyperbolic cosine of each element."""
    return emit_one("cosh", x, name=name)


def erf(x: Blob, name: str | None = None) -> BlobDef:
    """Return the error function of each element."""
    return emit_one("erf", x, name=name)


def erfc(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``1 - erf(x)``, accurate also where the result is small."""
    return emit_one("erfc", x, name=name)


def exp(x: Blob, name: str | None = None) -> BlobDef:
    """Return the exponential of each element."""
    return emit_one("exp", x, name=name)


def expm1(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``exp(x) - 1``, accurate also for ``x`` near 0."""
    return emit_one("expm1", x, name=name)


def floor(x: Blob, name: str | None = None) -> BlobDef:
    """Return the greatest integer not above each element."""
    return emit_one("floor", x, name=name)


def gelu(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``x`` times the standard normal cumulative distribution function of ``x``."""
    return emit_one("gelu", x, name=name)


def lgamma(x: Blob, name: str | None = None) -> BlobDef:
    """Return the logarithm of the absolute value of the gamma function of each element."""
    return emit_one("lgamma", x, name=name)


def log(x: Blob, name: str | None = None) -> BlobDef:
    """Return the natural logarithm of each element; nan below 0."""
    return emit_one("log", x, name=name)


def log1p(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``log(1 + x)``, accurate also for ``x`` near 0."""
    return emit_one("log1p", x, name=name)


def log_sigmoid(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``log(sigmoid(x))`` without overflow."""
    return emit_one("log_sigmoid", x, name=name)


def negative(x: Blob, name: str | None = None) -> BlobDef:
    """Return the negative of each element."""
    return emit_one("negative", x, name=name)


def reciprocal(x: Blob, name: str | None = None) -> BlobDef:
    """Return the reciprocal of each element."""
    return emit_one("reciprocal", x, name=name)


def reciprocal_no_nan(x: Blob, name: str | None = None) -> BlobDef:
    """Return the reciprocal of each element; 0 where the element is 0."""
    return emit_one("reciprocal_no_nan", x, name=name)


def relu(x: Blob, name: str | None = None) -> BlobDef:
    """Return the maximum of each element and 0."""
    return emit_one("relu", x, name=name)


def rint(x: Blob, name: str | None = None) -> BlobDef:
    """Return the integer nearest to each element; halves round to even."""
    return emit_one("rint", x, name=name)


def round(x: Blob, name: str | None = None) -> BlobDef:
    """Return the integer nearest to each element; halves round to even, as in OneFlow."""
    return emit_one("round", x, name=name)


def rsqrt(x: Blob, name: str | None = None) -> BlobDef:
    """Return the reciprocal of the square root of each element."""
    return emit_one("rsqrt", x, name=name)


def sigmoid(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``1 / (1 + exp(-x))``."""
    return emit_one("sigmoid", x, name=name)


def sigmoid_v2(x: Blob, name: str | None = None) -> BlobDef:
    """Do the same as `sigmoid`."""
    return emit_one("sigmoid_v2", x, name=name)


def sign(x: Blob, name: str | None = None) -> BlobDef:
    """Return the sign of each element: -1, 0 or 1."""
    return emit_one("sign", x, name=name)


def sin(x: Blob, name: str | None = None) -> BlobDef:
    """Return the sine of each element, in radians."""
    return emit_one("sin", x, name=name)


def sinh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the hyperbolic sine of each element."""
    return emit_one("sinh", x, name=name)


def softplus(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``log(1 + exp(x))`` without overflow."""
    return emit_one("softplus", x, name=name)


def sqrt(x: Blob, name: str | None = None) -> BlobDef:
    """Return the square root of each element; nan below 0."""
    return emit_one("sqrt", x, name=name)


def square(x: Blob, name: str | None = None) -> BlobDef:
    """Return the square of each element."""
    return emit_one("square", x, name=name)


def tan(x: Blob, name: str | None = None) -> BlobDef:
    """Return the tangent of each element, in radians."""
    return emit_one("tan", x, name=name)


def tanh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the hyperbolic tangent of each element."""
    return emit_one("tanh", x, name=name)


def tanh_v2(x: Blob, name: str | None = None) -> BlobDef:
    """Do the same as `tanh`."""
    return emit_one("tanh", x, name=name)


def sigmoid_grad(y: Blob, dy: Blob, name: str | None = None) -> BlobDef:
    """Return ``dy * y * (1 - y)``: the gradient of `sigmoid`, computed from its output ``y``."""
    return emit_one("sigmoid_grad", y, dy, name=name)


def gelu_grad(x: Blob, dy: Blob, name: str | None = None) -> BlobDef:
    """Return ``dy`` times the derivative of `gelu` at its input ``x``."""
    return emit_one("gelu_grad", x, dy, name=name)
