"""Matrix products with fused operations; passes replace ops of flow-core by them.

The ops have no gradients and no SBP rules, because passes create them after differentiation and
after the split into one op per device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flow_core.authoring.op_rules import product_work
from flow_core.authoring.specs import (
    REQUIRED,
    AttrValue,
    InferContext,
    OpSpec,
    Sample,
    SbpContext,
    TensorType,
    tensor_type,
)
from flow_core.base.arrays import Array
from flow_core.base.dtypes import uint8

Types = tuple[TensorType, ...]
Attrs = Mapping[str, AttrValue]
PRODUCT = {"transpose_a": False, "transpose_b": False, "alpha": 1.0}
MASK_BITS, SAVED_STEP = 128, 8

_ROOT = 0.7978845608028654  # sqrt(2 / pi)


def gelu(x: Array) -> Any:
    """Compute GELU in its tanh approximation."""
    return 0.5 * x * (1 + np.tanh(_ROOT * (x + 0.044715 * x**3)))


def gelu_slope(x: Array) -> Any:
    """Compute the derivative of `gelu`."""
    t = np.tanh(_ROOT * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * _ROOT * (1 + 3 * 0.044715 * x**2)


def out_type(a: TensorType, b: TensorType, attrs: Attrs) -> TensorType:
    """Return the type of a product of two matrices."""
    m = a.shape[1 if attrs["transpose_a"] else 0]
    n = b.shape[0 if attrs["transpose_b"] else 1]
    return tensor_type((m, n), a.dtype)


def saved_type(out: TensorType, activation: str) -> TensorType:
    """Return the type of the tensor saved for the backward pass.

    For ReLU, the tensor is a bit mask; for GELU, it holds the elements before activation.

    >>> from flow_core.base.dtypes import float32
    >>> saved_type(tensor_type((3, 130), float32), "relu").shape
    (3, 32)
    """
    m, n = out.shape
    if activation == "relu":
        return tensor_type((m, -(-n // MASK_BITS) * MASK_BITS // 8), uint8)
    return tensor_type((m, -(-n // SAVED_STEP) * SAVED_STEP), out.dtype)


def _types(ctx: InferContext) -> Types:
    out = out_type(ctx.inputs[0], ctx.inputs[1], ctx.attrs)
    return (out, saved_type(out, ctx.attrs["activation"])) if ctx.attrs["saved"] else (out,)


def _grad_types(ctx: InferContext) -> Types:
    out = out_type(ctx.inputs[0], ctx.inputs[1], ctx.attrs)
    return (out, tensor_type(out.shape[1:], out.dtype)) if ctx.attrs["summed"] else (out,)


def _sum_types(ctx: InferContext) -> Types:
    out = out_type(ctx.inputs[0], ctx.inputs[1], ctx.attrs)
    return out, tensor_type((out.shape[0 if ctx.attrs["side"] == "a" else 1],), out.dtype)


def _operands(a: Array, b: Array, attrs: Attrs) -> tuple[Array, Array]:
    return (a.T if attrs["transpose_a"] else a), (b.T if attrs["transpose_b"] else b)


def _product(a: Array, b: Array, attrs: Attrs) -> Any:
    left, right = _operands(a, b, attrs)
    return attrs["alpha"] * (left @ right)


def _matmul(a: Array, b: Array, bias: Array, **attrs: AttrValue) -> Array | tuple[Array, ...]:
    value = _product(a, b, attrs) + bias
    activation = {"": lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu": gelu}
    y = activation[attrs["activation"]](value)
    return (y, _saved(value, attrs["activation"])) if attrs["saved"] else y


def _saved(value: Array, activation: str) -> Array:
    n = value.shape[1]
    if activation == "gelu":
        return np.pad(value, ((0, 0), (0, -n % SAVED_STEP)))
    bits = np.pad(value > 0, ((0, 0), (0, -n % MASK_BITS)))
    return np.packbits(bits, axis=1, bitorder="little")


def _grad(a: Array, b: Array, saved: Array, **attrs: AttrValue) -> Array | tuple[Array, ...]:
    dz = _product(a, b, attrs)
    n = dz.shape[1]
    if attrs["activation"] == "gelu":
        dz = dz * gelu_slope(saved[:, :n])
    else:
        dz = dz * np.unpackbits(saved, axis=1, bitorder="little")[:, :n]
    return (dz, dz.sum(0)) if attrs["summed"] else dz


def _sum(a: Array, b: Array, **attrs: AttrValue) -> tuple[Array, Array]:
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


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for i, (a, b, (_, n), attrs) in enumerate(_cases(rng)):
        given = {**attrs, "activation": ("", "relu", "gelu")[i % 3], "alpha": 1.0 + i % 2}
        yield Sample((a, b, rng.uniform(-1, 1, n)), given, gradient=False)


def _grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for i, (a, b, (m, n), attrs) in enumerate(_cases(rng)):
        activation = ("relu", "gelu")[i % 2]
        saved = _saved(rng.uniform(-1, 1, (m, n)), activation)
        given = {**attrs, "activation": activation, "summed": i % 3 != 1}
        yield Sample((a, b, saved), given, gradient=False)


def _sum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for i, (a, b, _, attrs) in enumerate(_cases(rng)):
        yield Sample((a, b), {**attrs, "side": "ab"[i % 2]}, gradient=False)


def _work(ctx: SbpContext) -> float:
    return product_work(ctx.inputs[0], ctx.inputs[1], ctx.outputs[0])


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="cuda_matmul",
        internal=True,
        inputs=("a", "b", "bias"),
        outputs=("out*",),
        infer=_types,
        attrs={**PRODUCT, "activation": "", "saved": False},
        reference=_matmul,
        work=_work,
        samples=_samples,
        doc="A matrix product with bias and activation, and the tensor for the backward pass.",
    ),
    OpSpec(
        type="cuda_matmul_grad",
        internal=True,
        inputs=("a", "b", "saved"),
        outputs=("out*",),
        infer=_grad_types,
        attrs={**PRODUCT, "activation": REQUIRED, "summed": False},
        reference=_grad,
        work=_work,
        samples=_grad_samples,
        doc="A matrix product times an activation's derivative, and its sum over rows.",
    ),
    OpSpec(
        type="cuda_matmul_sum",
        internal=True,
        inputs=("a", "b"),
        outputs=("out", "sum"),
        infer=_sum_types,
        attrs={**PRODUCT, "side": REQUIRED},
        reference=_sum,
        work=_work,
        samples=_sum_samples,
        doc="A matrix product, and the sum of one operand over the reduction dimension.",
    ),
)
