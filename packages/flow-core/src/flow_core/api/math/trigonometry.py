"""Trigonometric and hyperbolic functions and their inverses, from ``flow.math``.

Args:
    x: a floating-point blob.

Returns: A blob of the shape and type of ``x``.

Raises:
    InferenceError: the element type of ``x`` is not floating.
"""

from __future__ import annotations

from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit_one

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan",
    "tanh", "tanh_v2",
]  # fmt: skip


def acos(x: Blob, name: str | None = None) -> BlobDef:
    """Return the arc cosine of each element, in radians; nan outside [-1, 1].

    >>> run(flow.math.acos, [-1, 0, 1]).round(4)
    array([3.1416, 1.5708, 0.    ], dtype=float32)
    """
    return emit_one("acos", x, name=name)


def acosh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the inverse hyperbolic cosine of each element; nan below 1.

    >>> run(flow.math.acosh, [1, 2]).round(4)
    array([0.   , 1.317], dtype=float32)
    """
    return emit_one("acosh", x, name=name)


def asin(x: Blob, name: str | None = None) -> BlobDef:
    """Return the arc sine of each element, in radians; nan outside [-1, 1].

    >>> run(flow.math.asin, [-1, 0, 1]).round(4)
    array([-1.5708,  0.    ,  1.5708], dtype=float32)
    """
    return emit_one("asin", x, name=name)


def asinh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the inverse hyperbolic sine of each element.

    >>> run(flow.math.asinh, [0, 1]).round(4)
    array([0.    , 0.8814], dtype=float32)
    """
    return emit_one("asinh", x, name=name)


def atan(x: Blob, name: str | None = None) -> BlobDef:
    """Return the arc tangent of each element, in radians.

    >>> run(flow.math.atan, [0, 1]).round(4)
    array([0.    , 0.7854], dtype=float32)
    """
    return emit_one("atan", x, name=name)


def atanh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the inverse hyperbolic tangent of each element; nan outside [-1, 1].

    >>> run(flow.math.atanh, [0, 0.5]).round(4)
    array([0.    , 0.5493], dtype=float32)
    """
    return emit_one("atanh", x, name=name)


def cos(x: Blob, name: str | None = None) -> BlobDef:
    """Return the cosine of each element, in radians.

    >>> run(flow.math.cos, [0, 1]).round(4)
    array([1.    , 0.5403], dtype=float32)
    """
    return emit_one("cos", x, name=name)


def cosh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the hyperbolic cosine of each element.

    >>> run(flow.math.cosh, [0, 1]).round(4)
    array([1.    , 1.5431], dtype=float32)
    """
    return emit_one("cosh", x, name=name)


def sin(x: Blob, name: str | None = None) -> BlobDef:
    """Return the sine of each element, in radians.

    >>> run(flow.math.sin, [0, 1]).round(4)
    array([0.    , 0.8415], dtype=float32)
    """
    return emit_one("sin", x, name=name)


def sinh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the hyperbolic sine of each element.

    >>> run(flow.math.sinh, [0, 1]).round(4)
    array([0.    , 1.1752], dtype=float32)
    """
    return emit_one("sinh", x, name=name)


def tan(x: Blob, name: str | None = None) -> BlobDef:
    """Return the tangent of each element, in radians.

    >>> run(flow.math.tan, [0, 1]).round(4)
    array([0.    , 1.5574], dtype=float32)
    """
    return emit_one("tan", x, name=name)


def tanh(x: Blob, name: str | None = None) -> BlobDef:
    """Return the hyperbolic tangent of each element.

    >>> run(flow.math.tanh, [0, 1]).round(4)
    array([0.    , 0.7616], dtype=float32)
    """
    return emit_one("tanh", x, name=name)


def tanh_v2(x: Blob, name: str | None = None) -> BlobDef:
    """Do the same as `tanh`.

    >>> run(flow.math.tanh_v2, [0, 1]).round(4)
    array([0.    , 0.7616], dtype=float32)
    """
    return emit_one("tanh", x, name=name)
