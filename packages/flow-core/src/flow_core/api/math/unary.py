"""Elementwise functions of one blob, from ``flow.math``.

Args:
    x: a floating-point blob.

Returns: A blob of the shape and type of ``x``.

Raises:
    InferenceError: the function does not take the element type.
"""

from __future__ import annotations

from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit_one

__all__ = [
    "abs", "ceil", "erf", "erfc", "exp", "expm1", "floor", "gelu", "gelu_grad", "lgamma", "log",
    "log1p", "log_sigmoid", "negative", "reciprocal", "reciprocal_no_nan", "relu", "rint",
    "round", "rsqrt", "sigmoid", "sigmoid_grad", "sigmoid_v2", "sign", "softplus", "sqrt",
    "square",
]  # fmt: skip


def abs(x: Blob, name: str | None = None) -> BlobDef:
    """Return the absolute value of each element.

    Args:
        x: a blob of floating-point numbers or integers.

    >>> run(flow.math.abs, [-1.5, 0, 2])
    array([1.5, 0. , 2. ], dtype=float32)
    """
    return emit_one("abs", x, name=name)


def ceil(x: Blob, name: str | None = None) -> BlobDef:
    """Return the least integer not below each element.

    >>> run(flow.math.ceil, [-1.5, 0.2, 2])
    array([-1.,  1.,  2.], dtype=float32)
    """
    return emit_one("ceil", x, name=name)


def erf(x: Blob, name: str | None = None) -> BlobDef:
    """Return the error function of each element.

    >>> run(flow.math.erf, [0, 1]).round(4)
    array([0.    , 0.8427], dtype=float32)
    """
    return emit_one("erf", x, name=name)


def erfc(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``1 - erf(x)``, accurate also where the result is small.

    >>> run(flow.math.erfc, [0, 1]).round(4)
    array([1.    , 0.1573], dtype=float32)
    """
    return emit_one("erfc", x, name=name)


def exp(x: Blob, name: str | None = None) -> BlobDef:
    """Return the exponential of each element.

    >>> run(flow.math.exp, [0, 1]).round(4)
    array([1.    , 2.7183], dtype=float32)
    """
    return emit_one("exp", x, name=name)


def expm1(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``exp(x) - 1``, accurate also for ``x`` near 0.

    >>> run(flow.math.expm1, [0, 1]).round(4)
    array([0.    , 1.7183], dtype=float32)
    """
    return emit_one("expm1", x, name=name)


def floor(x: Blob, name: str | None = None) -> BlobDef:
    """Return the greatest integer not above each element.

    >>> run(flow.math.floor, [-1.5, 0.2, 2])
    array([-2.,  0.,  2.], dtype=float32)
    """
    return emit_one("floor", x, name=name)


def gelu(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``x`` times the standard normal cumulative distribution function of ``x``.

    >>> run(flow.math.gelu, [-1, 0, 1]).round(4)
    array([-0.1587,  0.    ,  0.8413], dtype=float32)
    """
    return emit_one("gelu", x, name=name)


def lgamma(x: Blob, name: str | None = None) -> BlobDef:
    """Return the logarithm of the absolute value of the gamma function of each element.

    >>> run(flow.math.lgamma, [1, 5]).round(4)
    array([0.    , 3.1781], dtype=float32)
    """
    return emit_one("lgamma", x, name=name)


def log(x: Blob, name: str | None = None) -> BlobDef:
    """Return the natural logarithm of each element; nan below 0.

    >>> run(flow.math.log, [1, 10]).round(4)
    array([0.    , 2.3026], dtype=float32)
    """
    return emit_one("log", x, name=name)


def log1p(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``log(1 + x)``, accurate also for ``x`` near 0.

    >>> run(flow.math.log1p, [0, 1]).round(4)
    array([0.    , 0.6931], dtype=float32)
    """
    return emit_one("log1p", x, name=name)


def log_sigmoid(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``log(sigmoid(x))`` without overflow.

    >>> run(flow.math.log_sigmoid, [0, 1]).round(4)
    array([-0.6931, -0.3133], dtype=float32)
    """
    return emit_one("log_sigmoid", x, name=name)


def negative(x: Blob, name: str | None = None) -> BlobDef:
    """Return the negative of each element.

    Args:
        x: a blob of floating-point numbers or integers.

    >>> run(flow.math.negative, [-1.5, 0, 2])
    array([ 1.5, -0. , -2. ], dtype=float32)
    """
    return emit_one("negative", x, name=name)


def reciprocal(x: Blob, name: str | None = None) -> BlobDef:
    """Return the reciprocal of each element.

    >>> run(flow.math.reciprocal, [2, -4])
    array([ 0.5 , -0.25], dtype=float32)
    """
    return emit_one("reciprocal", x, name=name)


def reciprocal_no_nan(x: Blob, name: str | None = None) -> BlobDef:
    """Return the reciprocal of each element; 0 where the element is 0.

    >>> run(flow.math.reciprocal_no_nan, [2, 0])
    array([0.5, 0. ], dtype=float32)
    """
    return emit_one("reciprocal_no_nan", x, name=name)


def relu(x: Blob, name: str | None = None) -> BlobDef:
    """Return the maximum of each element and 0.

    >>> run(flow.nn.relu, [-1, 0, 2])
    array([0., 0., 2.], dtype=float32)
    """
    return emit_one("relu", x, name=name)


def rint(x: Blob, name: str | None = None) -> BlobDef:
    """Return the integer nearest to each element; halves round to even.

    >>> run(flow.math.rint, [-1.5, 0.5, 1.2])
    array([-2.,  0.,  1.], dtype=float32)
    """
    return emit_one("rint", x, name=name)


def round(x: Blob, name: str | None = None) -> BlobDef:
    """Return the integer nearest to each element; halves round to even, as in OneFlow.

    >>> run(flow.math.round, [-1.5, 0.5, 1.2])
    array([-2.,  0.,  1.], dtype=float32)
    """
    return emit_one("round", x, name=name)


def rsqrt(x: Blob, name: str | None = None) -> BlobDef:
    """Return the reciprocal of the square root of each element.

    >>> run(flow.math.rsqrt, [4, 0.25])
    array([0.5, 2. ], dtype=float32)
    """
    return emit_one("rsqrt", x, name=name)


def sigmoid(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``1 / (1 + exp(-x))``.

    >>> run(flow.math.sigmoid, [0, 1]).round(4)
    array([0.5   , 0.7311], dtype=float32)
    """
    return emit_one("sigmoid", x, name=name)


def sigmoid_v2(x: Blob, name: str | None = None) -> BlobDef:
    """Do the same as `sigmoid`.

    >>> run(flow.math.sigmoid_v2, [0, 1]).round(4)
    array([0.5   , 0.7311], dtype=float32)
    """
    return emit_one("sigmoid_v2", x, name=name)


def sign(x: Blob, name: str | None = None) -> BlobDef:
    """Return the sign of each element: -1, 0 or 1.

    Args:
        x: a blob of floating-point numbers or integers.

    >>> run(flow.math.sign, [-1.5, 0, 2])
    array([-1.,  0.,  1.], dtype=float32)
    """
    return emit_one("sign", x, name=name)


def softplus(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``log(1 + exp(x))`` without overflow.

    >>> run(flow.math.softplus, [0, 1]).round(4)
    array([0.6931, 1.3133], dtype=float32)
    """
    return emit_one("softplus", x, name=name)


def sqrt(x: Blob, name: str | None = None) -> BlobDef:
    """Return the square root of each element; nan below 0.

    >>> run(flow.math.sqrt, [4, 0.25])
    array([2. , 0.5], dtype=float32)
    """
    return emit_one("sqrt", x, name=name)


def square(x: Blob, name: str | None = None) -> BlobDef:
    """Return the square of each element.

    Args:
        x: a blob of floating-point numbers or integers.

    >>> run(flow.math.square, [-1.5, 2])
    array([2.25, 4.  ], dtype=float32)
    """
    return emit_one("square", x, name=name)


def sigmoid_grad(y: Blob, dy: Blob, name: str | None = None) -> BlobDef:
    """Return ``dy * y * (1 - y)``: the gradient of `sigmoid`, computed from its output ``y``.

    Args:
        y: the output of the `sigmoid`.
        dy: the gradient of ``y``, of its shape and type.

    Returns: The gradient of the input of the `sigmoid`.

    >>> run(flow.math.sigmoid_grad, [0.5, 0.25], [1, 1])
    array([0.25  , 0.1875], dtype=float32)
    """
    return emit_one("sigmoid_grad", y, dy, name=name)


def gelu_grad(x: Blob, dy: Blob, name: str | None = None) -> BlobDef:
    """Return ``dy`` times the derivative of `gelu` at its input ``x``.

    Args:
        x: the input of the `gelu`.
        dy: the gradient of its output, of the shape and type of ``x``.

    Returns: The gradient of ``x``.

    >>> run(flow.math.gelu_grad, [0, 1], [1, 1]).round(4)
    array([0.5   , 1.0833], dtype=float32)
    """
    return emit_one("gelu_grad", x, dy, name=name)
