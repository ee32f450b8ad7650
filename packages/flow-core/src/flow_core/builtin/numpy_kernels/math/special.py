"""The error function and the log-gamma function, computed with NumPy's elementary functions.

The coefficients were fitted for these kernels.  ``TAIL`` approximates ``(1 + 2x) exp(x*x) erfc(x)``
by a polynomial in ``(x - 3) / (x + 3)`` for all x >= 0.  ``CENTER`` approximates ``erf(x) / x`` by
a polynomial in ``x*x`` for |x| <= 1, and ``NUMERATOR / DENOMINATOR`` approximates the same function
for |x| <= 4 in float32 precision.
"""

from __future__ import annotations

from math import log, pi

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.steps import Steps

TAIL = (
    8.700868004194577e-10, 9.74789152865646e-10, -8.409946132110319e-09,
    -1.3250001719947136e-08, 4.159155579312064e-08, 1.0168740380282692e-07,
    -1.4130814587598856e-07, -6.164026634200888e-07, 3.5659223227665164e-07,
    3.4722067840411197e-06, -7.31376810736222e-07, -2.0100455050704197e-05,
    4.949437917172782e-06, 0.00012509931261232631, -0.00010515978929990118,
    -0.0007798322632310295, 0.001888690357739988, 0.0025293918148706408,
    -0.02377051491854141, 0.06830802734406669, -0.1192736634153105, 0.12964515870275767,
    -0.047562294353450836, -0.13562110612458114, 1.2530080582697296,
)  # fmt: skip
TAIL_SINGLE = (
    3.89175151e-06, 7.72041393e-05, -1.04221177e-04, -7.26160801e-04, 1.8882157e-03,
    2.49882261e-03, -2.37703887e-02, 6.83166973e-02, -1.19273678e-01, 1.29644091e-01,
    -4.75622938e-02, -1.35621068e-01, 1.25300806e00,
)  # fmt: skip
CENTER = (
    5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08,
    -1.6350312701054695e-07, 1.6461000484121368e-06, -1.4925595266831182e-05,
    0.0001205533111164271, -0.000854832698083379, 0.0052239776248180145, -0.026866170645076792,
    0.11283791670954879, -0.3761263890318375, 1.1283791670955126,
)  # fmt: skip
NUMERATOR = (
    2.033551826250519e-06, 2.8234972300924513e-04, 3.7225121286819803e-03,
    5.260124063155588e-02, 1.896009820502232e-01, 1.1283791575978854e00,
)  # fmt: skip
DENOMINATOR = (
    3.7793443878720674e-05, 1.1493955879792865e-03, 1.4880782825077273e-02,
    1.1373956867991417e-01, 5.0136247359027e-01, 1.0,
)  # fmt: skip
STIRLING = (
    -3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12
)  # fmt: skip
DIGAMMA = (
    -3617 / 8160, 1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12
)  # fmt: skip
SHIFT = 8


def erf(s: Steps, x: Array, out: Array) -> Array:
    """Record erf(x); ``out`` can be ``x``."""
    return _erf_single(s, x, out) if x.dtype == np.float32 else _erf_double(s, x, out)


def _erf_single(s: Steps, x: Array, out: Array) -> Array:
    clipped, square, top, bottom = s.temp(), s.temp(), s.temp(), s.temp()
    s(np.maximum, x, -4.0, out=clipped)
    s(np.minimum, clipped, 4.0, out=clipped)
    s(np.multiply, clipped, clipped, out=square)
    s.polynomial(NUMERATOR, square, top)
    s.polynomial(DENOMINATOR, square, bottom)
    s(np.multiply, top, clipped, out=top)
    return s(np.divide, top, bottom, out=out)


def _erf_double(s: Steps, x: Array, out: Array) -> Array:
    size, tail, square, center = s.temp(), s.temp(), s.temp(), s.temp()
    s(np.absolute, x, out=size)
    _erfc_of_size(s, size, tail)
    s(np.subtract, 1.0, tail, out=tail)
    s(np.copysign, tail, x, out=tail)
    s(np.minimum, size, 1.0, out=square)
    s(np.multiply, square, square, out=square)
    s.polynomial(CENTER, square, center)
    s(np.multiply, center, x, out=center)
    return s.select(s.test(np.less, size, 1.0), center, tail, out)


def erfc(s: Steps, x: Array, out: Array) -> Array:
    """Record erfc(x) with full relative precision in the right tail; ``out`` can be ``x``."""
    size, tail = s.temp(), s.temp()
    s(np.absolute, x, out=size)
    negative = s.indicator(np.less, x, 0.0)
    _erfc_of_size(s, size, tail)
    # erfc(-x) = 2 - erfc(x): the result is tail (1 - 2n) + 2n, with n = 1 for negative x, else 0
    s(np.multiply, negative, 2.0, out=negative)
    s(np.subtract, 1.0, negative, out=size)
    s(np.multiply, tail, size, out=tail)
    return s(np.add, tail, negative, out=out)


def _erfc_of_size(s: Steps, x: Array, out: Array) -> Array:
    """Record erfc(x) for x >= 0."""
    t, weight, power = s.temp(), s.temp(), s.temp()
    # above 100, erfc is 0 in every type; the bound keeps infinity out of the quotient
    bounded = s(np.minimum, x, 100.0, out=s.temp())
    s(np.add, bounded, 3.0, out=weight)
    s(np.subtract, bounded, 3.0, out=t)
    s(np.divide, t, weight, out=t)
    s.polynomial(TAIL_SINGLE if x.dtype == np.float32 else TAIL, t, weight)
    s(np.multiply, bounded, 2.0, out=t)
    s(np.add, t, 1.0, out=t)
    s(np.divide, weight, t, out=weight)
    _exp_of_minus_square(s, bounded, t, power)
    return s(np.multiply, weight, power, out=out)


def _exp_of_minus_square(s: Steps, x: Array, head: Array, out: Array) -> None:
    """Record exp(-x*x) as a product of two exponentials, with x = head + rest.

    ``head`` is a multiple of 1/16, so that head*head is exact.
    """
    rest = s.temp()
    s(np.multiply, x, 16.0, out=head)
    s(np.trunc, head, out=head)
    s(np.multiply, head, 1 / 16, out=head)
    s(np.subtract, x, head, out=rest)
    s(np.add, x, head, out=out)
    s(np.multiply, rest, out, out=rest)
    s(np.multiply, head, head, out=head)
    for part in (head, rest):
        s(np.negative, part, out=part)
        s(np.exp, part, out=part)
    s(np.multiply, head, rest, out=out)


def _reflected(s: Steps, x: Array) -> Array:
    """Record the larger one of x and 1 - x."""
    far = s(np.subtract, 1.0, x, out=s.temp())
    return s(np.maximum, x, far, out=far)


def _angle(s: Steps, x: Array) -> Array:
    """Record pi times the signed distance from x to the nearest integer."""
    angle = s(np.rint, x, out=s.temp())
    s(np.subtract, x, angle, out=angle)
    return s(np.multiply, angle, pi, out=angle)


def _series(s: Steps, coefficients: tuple[float, ...], z: Array) -> tuple[Array, Array]:
    """Record 1/z, and 1/z times a polynomial in 1/z**2."""
    inverse = s(np.reciprocal, z, out=s.temp())
    square = s(np.multiply, inverse, inverse, out=s.temp())
    value = s.polynomial(coefficients, square, s.temp())
    return inverse, s(np.multiply, value, inverse, out=value)


def lgamma(s: Steps, x: Array, out: Array) -> Array:
    """Record log|gamma(x)|, computed by Stirling's series for z >= 8 and reflection, in float64."""
    w = _reflected(s, x)
    near, z, factor = s.indicator(np.less, w, SHIFT), s.temp(), s.temp()
    product = s(np.minimum, w, SHIFT, out=s.temp())
    s(np.add, product, 0.0, out=factor)
    for _ in range(1, SHIFT):
        s(np.add, factor, 1.0, out=factor)
        s(np.multiply, product, factor, out=product)
    s(np.log, product, out=product)
    s(np.multiply, product, near, out=product)
    s(np.multiply, near, float(SHIFT), out=z)
    s(np.add, z, w, out=z)
    _, value = _series(s, STIRLING, z)
    # for infinite z, (z - 1/2)(log z - 1) is infinite, whereas z log z - z is NaN
    s(np.log, z, out=factor)
    s(np.subtract, factor, 1.0, out=factor)
    s(np.subtract, z, 0.5, out=z)
    s(np.multiply, z, factor, out=z)
    s(np.add, value, z, out=value)
    s(np.add, value, 0.5 * log(2 * pi) - 0.5, out=value)
    s(np.subtract, value, product, out=value)
    mirrored = _angle(s, x)
    s(np.sin, mirrored, out=mirrored)
    s(np.absolute, mirrored, out=mirrored)
    # the logarithm of pi / sin, which is infinite for subnormal numbers
    s(np.log, mirrored, out=mirrored)
    s(np.subtract, log(pi), mirrored, out=mirrored)
    # at a pole, the result is infinite also if the value is
    s(np.minimum, value, float(np.finfo(np.float64).max), out=product)
    s(np.subtract, mirrored, product, out=mirrored)
    return s.select(s.test(np.less, x, 0.5), mirrored, value, out)


def digamma(s: Steps, x: Array, out: Array) -> Array:
    """Record the derivative of `lgamma` in float64."""
    w = _reflected(s, x)
    near, z, total, term = s.indicator(np.less, w, SHIFT), s.temp(), s.temp(), s.temp()
    s(np.reciprocal, w, out=total)
    for k in range(1, SHIFT):
        s(np.add, w, float(k), out=term)
        s(np.reciprocal, term, out=term)
        s(np.add, total, term, out=total)
    s(np.multiply, total, near, out=total)
    s(np.multiply, near, float(SHIFT), out=z)
    s(np.add, z, w, out=z)
    inverse, value = _series(s, DIGAMMA, z)
    s(np.multiply, value, inverse, out=value)
    s(np.multiply, inverse, 0.5, out=inverse)
    s(np.add, value, inverse, out=value)
    s(np.log, z, out=z)
    s(np.subtract, z, value, out=value)
    s(np.subtract, value, total, out=value)
    mirrored = _angle(s, x)
    s(np.tan, mirrored, out=mirrored)
    s(np.divide, pi, mirrored, out=mirrored)
    s(np.subtract, value, mirrored, out=mirrored)
    return s.select(s.test(np.less, x, 0.5), mirrored, value, out)
