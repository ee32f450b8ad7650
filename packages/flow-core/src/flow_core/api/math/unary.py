"""Elementwise functions of one blob: the first part of ``flow.math``.

All give a blob of the shape and element type of ``x``.  `abs`, `negative`, `sign` and `square`
take integers too; the others take floating types only and raise `InferenceError` for others.
"""

from __future__ import annotations

from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.emit import emit
from flow_core.ir.graph import AttrValue

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


def one(op_type: str, *inputs: BlobDef, name: str | None = None, **attrs: AttrValue) -> BlobDef:
    """Adds an op of one output."""
    blob: BlobDef = emit(op_type, *inputs, name=name, **attrs)
    return blob


def inner(name: str | None, step: str) -> str | None:
    """The name of an inner step, None (a unique one) if the function got no name.

    >>> inner("act", "tanh"), inner(None, "tanh")
    ('act_tanh', None)
    """
    return None if name is None else f"{name}_{step}"


def abs(x: BlobDef, name: str | None = None) -> BlobDef:
    """The absolute value of each element."""
    return one("abs", x, name=name)


def acos(x: BlobDef, name: str | None = None) -> BlobDef:
    """The arc cosine of each element, in radians; nan outside [-1, 1]."""
    return one("acos", x, name=name)


def acosh(x: BlobDef, name: str | None = None) -> BlobDef:
    """The inverse hyperbolic cosine of each element; nan below 1."""
    return one("acosh", x, name=name)


def asin(x: BlobDef, name: str | None = None) -> BlobDef:
    """The arc sine of each element, in radians; nan outside [-1, 1]."""
    return one("asin", x, name=name)


def asinh(x: BlobDef, name: str | None = None) -> BlobDef:
    """The inverse hyperbolic sine of each element."""
    return one("asinh", x, name=name)


def atan(x: BlobDef, name: str | None = None) -> BlobDef:
    """The arc tangent of each element, in radians."""
    return one("atan", x, name=name)


def atanh(x: BlobDef, name: str | None = None) -> BlobDef:
    """The inverse hyperbolic tangent of each element; nan outside [-1, 1]."""
    return one("atanh", x, name=name)


def ceil(x: BlobDef, name: str | None = None) -> BlobDef:
    """The least integer not below each element."""
    return one("ceil", x, name=name)


def cos(x: BlobDef, name: str | None = None) -> BlobDef:
    """The cosine of each element, in radians."""
    return one("cos", x, name=name)


def cosh(x: BlobDef, name: str | None = None) -> BlobDef:
    """The hyperbolic cosine of each element."""
    return one("cosh", x, name=name)


def erf(x: BlobDef, name: str | None = None) -> BlobDef:
    """The error function of each element."""
    return one("erf", x, name=name)


def erfc(x: BlobDef, name: str | None = None) -> BlobDef:
    """``1 - erf(x)``, accurate where that is small."""
    return one("erfc", x, name=name)


def exp(x: BlobDef, name: str | None = None) -> BlobDef:
    """e to the power of each element."""
    return one("exp", x, name=name)


def expm1(x: BlobDef, name: str | None = None) -> BlobDef:
    """``exp(x) - 1``, accurate near 0."""
    return one("expm1", x, name=name)


def floor(x: BlobDef, name: str | None = None) -> BlobDef:
    """The greatest integer not above each element."""
    return one("floor", x, name=name)


def gelu(x: BlobDef, name: str | None = None) -> BlobDef:
    """``x`` times the normal distribution's function of ``x``."""
    return one("gelu", x, name=name)


def lgamma(x: BlobDef, name: str | None = None) -> BlobDef:
    """The logarithm of the absolute value of the gamma function."""
    return one("lgamma", x, name=name)


def log(x: BlobDef, name: str | None = None) -> BlobDef:
    """The natural logarithm of each element; nan below 0."""
    return one("log", x, name=name)


def log1p(x: BlobDef, name: str | None = None) -> BlobDef:
    """``log(1 + x)``, accurate near 0."""
    return one("log1p", x, name=name)


def log_sigmoid(x: BlobDef, name: str | None = None) -> BlobDef:
    """``log(sigmoid(x))`` without overflow."""
    return one("log_sigmoid", x, name=name)


def negative(x: BlobDef, name: str | None = None) -> BlobDef:
    """Each element with its sign changed."""
    return one("negative", x, name=name)


def reciprocal(x: BlobDef, name: str | None = None) -> BlobDef:
    """One divided by each element."""
    return one("reciprocal", x, name=name)


def reciprocal_no_nan(x: BlobDef, name: str | None = None) -> BlobDef:
    """One divided by each element, 0 where the element is 0."""
    return one("reciprocal_no_nan", x, name=name)


def relu(x: BlobDef, name: str | None = None) -> BlobDef:
    """Each element, or 0 where it is negative."""
    return one("relu", x, name=name)


def rint(x: BlobDef, name: str | None = None) -> BlobDef:
    """The nearest integer; halves go to the even one."""
    return one("rint", x, name=name)


def round(x: BlobDef, name: str | None = None) -> BlobDef:
    """The nearest integer; halves go to the even one, as in the original."""
    return one("round", x, name=name)


def rsqrt(x: BlobDef, name: str | None = None) -> BlobDef:
    """One divided by the square root of each element."""
    return one("rsqrt", x, name=name)


def sigmoid(x: BlobDef, name: str | None = None) -> BlobDef:
    """``1 / (1 + exp(-x))``."""
    return one("sigmoid", x, name=name)


def sigmoid_v2(x: BlobDef, name: str | None = None) -> BlobDef:
    """Same as `sigmoid`."""
    return one("sigmoid_v2", x, name=name)


def sign(x: BlobDef, name: str | None = None) -> BlobDef:
    """-1, 0 or 1 by the sign of each element."""
    return one("sign", x, name=name)


def sin(x: BlobDef, name: str | None = None) -> BlobDef:
    """The sine of each element, in radians."""
    return one("sin", x, name=name)


def sinh(x: BlobDef, name: str | None = None) -> BlobDef:
    """The hyperbolic sine of each element."""
    return one("sinh", x, name=name)


def softplus(x: BlobDef, name: str | None = None) -> BlobDef:
    """``log(1 + exp(x))`` without overflow."""
    return one("softplus", x, name=name)


def sqrt(x: BlobDef, name: str | None = None) -> BlobDef:
    """The square root of each element; nan below 0."""
    return one("sqrt", x, name=name)


def square(x: BlobDef, name: str | None = None) -> BlobDef:
    """The square of each element."""
    return one("square", x, name=name)


def tan(x: BlobDef, name: str | None = None) -> BlobDef:
    """The tangent of each element, in radians."""
    return one("tan", x, name=name)


def tanh(x: BlobDef, name: str | None = None) -> BlobDef:
    """The hyperbolic tangent of each element."""
    return one("tanh", x, name=name)


def tanh_v2(x: BlobDef, name: str | None = None) -> BlobDef:
    """Same as `tanh`."""
    return one("tanh", x, name=name)


def sigmoid_grad(y: BlobDef, dy: BlobDef, name: str | None = None) -> BlobDef:
    """``dy * y * (1 - y)``: the gradient of `sigmoid` from its output ``y``."""
    return one("sigmoid_grad", y, dy, name=name)


def gelu_grad(x: BlobDef, dy: BlobDef, name: str | None = None) -> BlobDef:
    """``dy`` times the derivative of `gelu` at its input ``x``."""
    return one("gelu_grad", x, dy, name=name)
