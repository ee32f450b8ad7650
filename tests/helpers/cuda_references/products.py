"""Fused matrix products in NumPy, and their samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flow_core.authoring.specs import AttrValue, Sample
from flow_core.base.arrays import Array

Attrs = Mapping[str, AttrValue]
_ROOT = 0.7978845608028654  # sqrt(2 / pi)


def gelu(x: Array) -> Any:
    """Compute GELU in its tanh approximation."""
    return 0.5 * x * (1 + np.tanh(_ROOT * (x + 0.044715 * x**3)))


def _operands(a: Array, b: Array, attrs: Attrs) -> tuple[Array, Array]:
    return (a.T if attrs["transpose_a"] else a), (b.T if attrs["transpose_b"] else b)


def _product(a: Array, b: Array, attrs: Attrs) -> Any:
    left, right = _operands(a, b, attrs)
    return attrs["alpha"] * (left @ right)


def matmul(a: Array, b: Array, bias: Array, **attrs: AttrValue) -> Any:
    activation = {"": lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu": gelu}
    return activation[attrs["activation"]](_product(a, b, attrs) + bias)


def matmul_sum(a: Array, b: Array, **attrs: AttrValue) -> tuple[Array, Array]:
    left, right = _operands(a, b, attrs)
    return _product(a, b, attrs), left.sum(1) if attrs["side"] == "a" else right.sum(0)


def _cases(
    rng: np.random.Generator,
) -> Iterator[tuple[Array, Array, tuple[int, int], dict[str, AttrValue]]]:
    for m, k, n in ((3, 5, 4), (9, 17, 131), (1, 7, 1)):
        for t in range(4):
            a = rng.uniform(-1, 1, (k, m) if t & 1 else (m, k))
            b = rng.uniform(-1, 1, (n, k) if t & 2 else (k, n))
            yield a, b, (m, n), {"transpose_a": bool(t & 1), "transpose_b": bool(t & 2)}


def product_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for i, (a, b, (_, n), attrs) in enumerate(_cases(rng)):
        given = {**attrs, "activation": ("", "relu", "gelu")[i % 3], "alpha": 1.0 + i % 2}
        yield Sample((a, b, rng.uniform(-1, 1, n)), given, gradient=False)


def sum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for i, (a, b, _, attrs) in enumerate(_cases(rng)):
        yield Sample((a, b), {**attrs, "side": "ab"[i % 2]}, gradient=False)
