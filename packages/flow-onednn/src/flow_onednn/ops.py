"""The ops that the passes of this package create: fused ops, and ops on NHWC activations.

These ops have no gradients and no SBP rules, because they are created after differentiation and
after the split into ops on single devices. Convolution weights keep the layout of their variables:
(filters, channels, height, width), or channels-last if ``weights_last`` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import erf, inf, prod, sqrt

import numpy as np

from flow_core.authoring.convolutions import (
    conv_reference,
    data_grad_reference,
    filter_grad_reference,
)
from flow_core.authoring.layouts import TO_FIRST, TO_LAST
from flow_core.authoring.op_rules import OpDef, conv_work, product_work, specs
from flow_core.authoring.specs import (
    REQUIRED,
    AttrValue,
    InferContext,
    Sample,
    TensorType,
    tensor_type,
)
from flow_core.authoring.update_rules import BY_TYPE, COMMON
from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype, float32, int8, int32, uint8
from flow_core.base.shapes import window_output
from flow_onednn.panel_layout import pack, packed_columns, unpack
from flow_onednn.update_references import (
    JOINED,
    MOST_ROWS,
    Joined,
    joined_reference,
    joined_samples,
    matmul_sgd,
    matmul_sgd_samples,
    row_sums,
    sparse_reference,
    sparse_samples,
)

Types = tuple[TensorType, ...]
Attrs = Mapping[str, AttrValue]

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "": lambda y: y,
    "relu": lambda y: np.maximum(y, 0),
    "gelu": lambda y: 0.5 * y * (1 + np.vectorize(erf, otypes=[float])(y / sqrt(2))),
}


NOTED = {"reordered": 0, "reason": "", "memory": ""}
"""Attributes for reports: bytes that a kernel reorders at each launch, the reason for this, and
memory that the kernel allocates outside the plan."""


MATH = {"math": ""}
"""The type to which a product is allowed to round its float32 operands; empty for none."""


class Fused(OpDef):
    internal = True


def _like(ctx: InferContext, *shape: int) -> TensorType:
    return tensor_type(shape, ctx.inputs[0].dtype)


def _result(ctx: InferContext, *shape: int) -> TensorType:
    return tensor_type(shape, float32) if ctx.attrs.get("wide") else _like(ctx, *shape)


# --- convolutions

GEOMETRY = {
    "kernel_size": REQUIRED, "strides": REQUIRED, "dilation_rate": REQUIRED,
    "padding_before": REQUIRED, "groups": 1, "weights_last": False,
}  # fmt: skip


def _last(weight: Array, attrs: Attrs) -> Array:
    return weight if attrs["weights_last"] else np.moveaxis(weight, 1, -1)


def _conv(x: Array, weight: Array, *bias: Array, **attrs: AttrValue) -> Array:
    y = conv_reference(x, _last(weight, attrs), data_format="channels_last", **attrs)
    return ACTIVATIONS[attrs["activation"]](y + bias[0] if bias else y)


CASES: tuple[tuple[tuple[int, int, int, int], int, dict[str, AttrValue]], ...] = (
    ((2, 6, 7, 3), 4, {"kernel_size": (3, 3), "strides": (1, 1), "padding_before": (1, 1)}),
    ((1, 7, 5, 2), 6, {"kernel_size": (3, 2), "strides": (2, 1), "padding_before": (0, 1)}),
    ((3, 5, 5, 16), 32, {"kernel_size": (1, 1), "strides": (2, 2), "padding_before": (0, 0)}),
    ((1, 3, 3, 20), 33, {"kernel_size": (1, 1), "strides": (1, 1), "padding_before": (0, 0)}),
    ((2, 7, 5, 33), 17, {"kernel_size": (1, 1), "strides": (2, 3), "padding_before": (0, 0)}),
    ((1, 3, 4, 3), 24, {"kernel_size": (3, 2), "strides": (2, 1), "padding_before": (1, 1)}),
    ((2, 9, 9, 1), 8, {"kernel_size": (5, 5), "strides": (1, 1), "padding_before": (2, 2)}),
)


def _cases(rng: np.random.Generator) -> Iterator[tuple[Array, Array, Array, dict[str, AttrValue]]]:
    """Yield random x, weights, bias and attributes."""
    for shape, filters, geometry in CASES:
        attrs = {"dilation_rate": (1, 1), "groups": 1, **geometry}
        x = rng.uniform(-1, 1, shape)
        weight = rng.uniform(-1, 1, (filters, shape[-1], *geometry["kernel_size"]))
        bias = rng.uniform(-1, 1, filters)
        yield x, weight, bias, attrs | {"weights_last": False}
        yield x, np.moveaxis(weight, 1, -1).copy(), bias, attrs | {"weights_last": True}


def _gradient_case(x: Array, weight: Array, attrs: dict[str, AttrValue]) -> Array:
    after = {"padding_after": attrs["padding_before"], "activation": ""}
    return np.ones_like(_conv(x, weight, **attrs, **after))


_POOL = {
    "padding": REQUIRED, "padding_before": None, "padding_after": None, "pool_size": REQUIRED,
    "strides": REQUIRED, "ceil_mode": False, "data_format": "channels_last", "space": REQUIRED,
}  # fmt: skip


class Update(Fused):
    """An op that updates several small variables.

    Args:
        row: the rule and the form of the inputs.
    """

    outputs = ()
    effect = True

    def __init__(self, row: Joined) -> None:
        self.row, self.type, self.mutates = row, row.type, row.mutates
        step = ("train_step",) if row.rule.step else ()
        self.inputs = ("learning_rate", "scale_by_tensor", *step, "rows*")
        self.attrs = {"scaled": False, **dict.fromkeys((*COMMON, *row.rule.attrs), REQUIRED)}
        self.reference, self.samples = joined_reference(row), joined_samples(row)
        self.doc = f"`{row.rule.type}` of several small variables in one call."

    def infer(self, ctx: InferContext) -> Types:
        row, rest = self.row, ctx.inputs[self.row.head :]
        ctx.check(
            rest and len(rest) % row.row == 0 and len(rest) <= MOST_ROWS * row.row,
            f"{len(rest)} inputs after the first {row.head}",
            f"{row.row} per variable, of {MOST_ROWS} variables at most",
        )
        return ()


MATMUL_ATTRS = {"transpose_a": False, "transpose_b": False, "alpha": 1.0}
_PACKED = {
    "rows": REQUIRED, "deep": REQUIRED, "columns": REQUIRED, "activation": "", "wide": False,
    **MATH,
}  # fmt: skip

_PACKED_CONV = {
    **GEOMETRY, **MATH, "low": REQUIRED, "high": REQUIRED, "image": REQUIRED, "result": REQUIRED,
    "filters": REQUIRED, "bias": REQUIRED, "residual": REQUIRED, "bounded": REQUIRED,
    "residual_bounded": REQUIRED,
}  # fmt: skip


class Conv(Fused):
    """Convolution of NHWC activations, with bias and activation."""

    schema = "onednn_conv(x, weight, bias?) -> out"
    attrs = {**GEOMETRY, "padding_after": REQUIRED, "activation": "", **MATH, **NOTED}
    work = staticmethod(lambda ctx: conv_work(ctx.outputs[0], ctx.inputs[1]))
    reference = staticmethod(_conv)

    def infer(self, ctx: InferContext) -> Types:
        attrs, (n, *sizes, _) = ctx.attrs, ctx.inputs[0].shape
        pads = zip(attrs["padding_before"], attrs["padding_after"], strict=True)
        columns = (attrs[key] for key in ("kernel_size", "strides"))
        windows = zip(sizes, *columns, pads, attrs["dilation_rate"], strict=True)
        return (_like(ctx, n, *(window_output(*row) for row in windows), ctx.inputs[1].shape[0]),)

    def samples(self, rng: np.random.Generator) -> Iterator[Sample]:
        for x, weight, bias, attrs in _cases(rng):
            attrs = attrs | {"padding_after": attrs["padding_before"]}
            yield Sample((x, weight), attrs, gradient=False)
            yield Sample((x, weight, bias), attrs | {"activation": "relu"}, gradient=False)


class ConvDataGrad(Fused):
    """Gradient of the convolution input, of height and width ``space``."""

    schema = "onednn_conv_data_grad(dy, weight) -> dx"
    attrs = {**GEOMETRY, "space": REQUIRED, **MATH, **NOTED}
    work = staticmethod(lambda ctx: conv_work(*ctx.inputs))

    def infer(self, ctx: InferContext) -> Types:
        n = ctx.inputs[0].shape[0]
        axis = -1 if ctx.attrs["weights_last"] else 1
        channels = ctx.inputs[1].shape[axis] * ctx.attrs["groups"]
        return (_like(ctx, n, *ctx.attrs["space"], channels),)

    def reference(self, dy: Array, weight: Array, **attrs: AttrValue) -> Array:
        weight = _last(weight, attrs)
        like = np.empty((len(dy), *attrs["space"], weight.shape[-1] * attrs["groups"]), dy.dtype)
        return data_grad_reference(dy, weight, like, data_format="channels_last", **attrs)

    def samples(self, rng: np.random.Generator) -> Iterator[Sample]:
        for x, weight, _, attrs in _cases(rng):
            dy = rng.uniform(-1, 1, _gradient_case(x, weight, attrs).shape)
            yield Sample((dy, weight), attrs | {"space": x.shape[1:3]}, gradient=False)


class ConvFilterGrad(Fused):
    """Gradients of the convolution weights and, if ``bias`` is set, of the bias; in float32 if
    ``wide`` is set.
    """

    schema = "onednn_conv_filter_grad(dy, x) -> dw*"
    attrs = {**GEOMETRY, "bias": False, "wide": False, **MATH, **NOTED}
    work = staticmethod(lambda ctx: conv_work(ctx.inputs[0], ctx.outputs[0]))

    def infer(self, ctx: InferContext) -> Types:
        filters, channels = ctx.inputs[0].shape[-1], ctx.inputs[1].shape[-1]
        depth, kernel = (channels // ctx.attrs["groups"],), ctx.attrs["kernel_size"]
        last = ctx.attrs["weights_last"]
        dw = _result(ctx, filters, *((*kernel, *depth) if last else (*depth, *kernel)))
        return (dw, _result(ctx, filters)) if ctx.attrs["bias"] else (dw,)

    def reference(self, dy: Array, x: Array, **attrs: AttrValue) -> Array | tuple[Array, ...]:
        dw = filter_grad_reference(dy, x, data_format="channels_last", **attrs)
        dw = dw if attrs["weights_last"] else np.moveaxis(dw, -1, 1)
        return (dw, dy.sum((0, 1, 2))) if attrs["bias"] else dw

    def samples(self, rng: np.random.Generator) -> Iterator[Sample]:
        for x, weight, _, attrs in _cases(rng):
            dy = rng.uniform(-1, 1, _gradient_case(x, weight, attrs).shape)
            for bias in (False, True):
                yield Sample((dy, x), attrs | {"bias": bias}, gradient=False)


class Matmul(Fused):
    """Matrix product with bias and activation, in float32 if ``wide`` is set."""

    schema = "onednn_matmul(a, b, bias?) -> out"
    attrs = {**MATMUL_ATTRS, "activation": "", "wide": False, **MATH, **NOTED}
    work = staticmethod(lambda ctx: product_work(ctx.inputs[0], ctx.inputs[1], ctx.outputs[0]))

    def infer(self, ctx: InferContext) -> Types:
        (*stack, m, k), (*_, n, deep) = ctx.inputs[0].shape, ctx.inputs[1].shape
        m, k = (k, m) if ctx.attrs["transpose_a"] else (m, k)
        n, deep = (n, deep) if ctx.attrs["transpose_b"] else (deep, n)
        ctx.check(k == deep, f"inner sizes {k} and {deep}", "equal ones")
        for bias in ctx.inputs[2:]:
            ctx.check(bias.shape == (n,), f"a bias {bias}", f"one of shape ({n},)")
        return (_result(ctx, *stack, m, n),)

    def reference(self, a: Array, b: Array, *bias: Array, **attrs: AttrValue) -> Array:
        left = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
        right = np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b
        y = attrs["alpha"] * (left @ right)
        return ACTIVATIONS[attrs["activation"]](y + bias[0] if bias else y)

    def samples(self, rng: np.random.Generator) -> Iterator[Sample]:
        for m, k, n in ((3, 5, 4), (33, 17, 65), (1, 7, 1)):
            for t in range(4):
                a = rng.uniform(-1, 1, (k, m) if t & 1 else (m, k))
                b = rng.uniform(-1, 1, (n, k) if t & 2 else (k, n))
                attrs = {"transpose_a": bool(t & 1), "transpose_b": bool(t & 2)}
                activation = ("", "relu", "gelu", "relu")[t]
                inputs = (a, b, rng.uniform(-1, 1, n))
                yield Sample(inputs, attrs | {"activation": activation}, gradient=False)


class Pack(Fused):
    """Right operand of `onednn_packed_matmul`, packed in the library's layout."""

    schema = "onednn_pack(b) -> out"
    infer = staticmethod(lambda ctx: (_like(ctx, ctx.attrs["size"]),))
    attrs = {**_PACKED, "transpose_b": REQUIRED, "bias": REQUIRED, "size": REQUIRED}


class PackedMatmul(Fused):
    """`onednn_matmul` with packed weights."""

    schema = "onednn_packed_matmul(a, packed, bias?) -> out"
    infer = staticmethod(lambda ctx: (_result(ctx, ctx.attrs["rows"], ctx.attrs["columns"]),))
    attrs = _PACKED
    work = staticmethod(lambda c: 2.0 * prod(c.attrs[n] for n in ("rows", "deep", "columns")))


class PackConv(Fused):
    """Weights of `onednn_packed_conv` in the library's layout; the largest sum of the magnitudes of
    one filter, and the largest magnitude of the bias.
    """

    schema = "onednn_pack_conv(weight, bias?) -> packed, norms"
    infer = staticmethod(lambda ctx: (_like(ctx, ctx.attrs["size"]), tensor_type((2,), float32)))
    attrs = {**_PACKED_CONV, "size": REQUIRED}


def _packed_work(attrs: Attrs) -> float:
    taps: float = prod(attrs["kernel_size"]) * attrs["image"][-1] / attrs["groups"]
    return 2.0 * prod(attrs["result"]) * taps


class PackedConv(Fused):
    """Convolution of NHWC activations with packed weights, and a bound of the result's magnitudes.
    ``more`` are the bias, a residual, which is added, and bounds of x and of the residual; the
    result is limited to ``low`` and ``high``.
    """

    schema = "onednn_packed_conv(x, packed, norms, more*) -> y, bound"
    infer = staticmethod(lambda ctx: (_like(ctx, *ctx.attrs["result"]), tensor_type((1,), float32)))
    attrs = _PACKED_CONV
    work = staticmethod(lambda ctx: _packed_work(ctx.attrs))


class ConvChain(Fused):
    """Ops of type ``op`` with the attributes ``convs``, each on the result of the one before."""

    schema = "onednn_conv_chain(x, more*) -> out*"
    attrs = {"op": REQUIRED, "convs": REQUIRED, "outputs": REQUIRED}
    work = staticmethod(lambda ctx: sum(_packed_work(dict(c)) for c in ctx.attrs["convs"]))

    def infer(self, ctx: InferContext) -> Types:
        return tuple(tensor_type(shape, as_dtype(kind)) for shape, kind in ctx.attrs["outputs"])


_INT8_CONV = {
    **GEOMETRY, "relu": REQUIRED, "high": inf, "image": REQUIRED, "image_type": REQUIRED,
    "result": REQUIRED, "result_type": REQUIRED, "filters": REQUIRED, "transposed": False,
    "bias": REQUIRED, "residual_type": REQUIRED, "image_zero": 0, "result_zero": 0,
    "residual_zero": 0,
}  # fmt: skip


class PackInt8(Fused):
    """int8 weights of `onednn_int8_conv` in the library's layout, and the factors, the bias and the
    scale of its results, and two zero points. ``more`` are the bias, and the scales of the residual
    and of the result.
    """

    schema = (
        "onednn_pack_int8(weight, scale, x_scale, more*) -> packed, factors, bias, result, zeros"
    )
    attrs = {**_INT8_CONV, "size": REQUIRED}

    def infer(self, ctx: InferContext) -> Types:
        vector = tensor_type(ctx.attrs["result"][-1:], float32)
        packed = tensor_type((ctx.attrs["size"],), int8)
        return packed, vector, vector, tensor_type((1,), float32), tensor_type((2,), int32)


class Int8Conv(Fused):
    """Convolution of NHWC images of int8 with packed weights, and then relu if ``relu`` is set.
    The residual, if there is one, is added before; float32 results are at most ``high``.
    """

    schema = "onednn_int8_conv(x, packed, factors, bias, result, zeros, residual?) -> y"
    attrs = {**_INT8_CONV, "shape": REQUIRED}
    work = staticmethod(lambda ctx: _packed_work(ctx.attrs))

    def infer(self, ctx: InferContext) -> Types:
        return (tensor_type(ctx.attrs["shape"], as_dtype(ctx.attrs["result_type"])),)


class Quantize(Fused):
    """Levels of NCHW images, in NHWC: what `quantize_linear` and `onednn_reorder` compute."""

    schema = "onednn_quantize(x, scale, zero_point) -> y"

    def infer(self, ctx: InferContext) -> Types:
        sizes = tuple(ctx.inputs[0].shape[i] for i in TO_LAST)
        return (tensor_type(sizes, ctx.inputs[2].dtype),)


class PackPanels(Fused):
    """Weights of `onednn_panels`, packed."""

    schema = "onednn_pack_panels(b) -> packed"
    attrs = {"transpose_b": REQUIRED}

    def infer(self, ctx: InferContext) -> Types:
        rows, columns = ctx.inputs[0].shape
        deep, columns = (columns, rows) if ctx.attrs["transpose_b"] else (rows, columns)
        return (_like(ctx, deep * packed_columns(columns)),)

    def reference(self, b: Array, *, transpose_b: AttrValue) -> Array:
        weights = b.T if transpose_b else b
        packed = np.empty(len(weights) * packed_columns(weights.shape[1]), b.dtype)
        pack(weights, packed)
        return packed

    def samples(self, rng: np.random.Generator) -> Iterator[Sample]:
        for shape in ((7, 100), (33, 64), (1, 1)):
            for transpose in (False, True):
                b = rng.uniform(-1, 1, shape)
                yield Sample((b,), {"transpose_b": transpose}, gradient=False)


class Panels(Fused):
    """Product of few rows with packed weights, bias and relu."""

    schema = "onednn_panels(a, packed, bias?) -> out"
    attrs = {"columns": REQUIRED, "activation": ""}
    infer = staticmethod(lambda ctx: (_like(ctx, ctx.inputs[0].shape[0], ctx.attrs["columns"]),))
    work = staticmethod(lambda ctx: 2.0 * ctx.inputs[0].size * ctx.attrs["columns"])

    def reference(self, a: Array, packed: Array, *bias: Array, **attrs: AttrValue) -> Array:
        y = a @ unpack(packed, attrs["columns"])
        return ACTIVATIONS[attrs["activation"]](y + bias[0] if bias else y)

    def samples(self, rng: np.random.Generator) -> Iterator[Sample]:
        for rows, deep, columns in ((1, 7, 1), (5, 33, 70), (7, 16, 100), (13, 5, 128)):
            a, bias = rng.uniform(-1, 1, (rows, deep)), rng.uniform(-1, 1, columns)
            packed = rng.uniform(-1, 1, deep * packed_columns(columns))
            attrs = {"columns": columns, "activation": ("", "relu")[rows % 2]}
            yield Sample((a, packed, bias), attrs, gradient=False)


class MaxPool(Fused):
    """Max pooling to ``space``, and the positions of the maxima within their windows."""

    schema = "onednn_max_pool(x) -> y, places"
    attrs = {**_POOL, "places": REQUIRED}

    def infer(self, ctx: InferContext) -> Types:
        places = tensor_type((ctx.attrs["places"],), uint8)
        n, _, _, c = ctx.inputs[0].shape
        return _like(ctx, n, *ctx.attrs["space"], c), places


class Int8Pool(Fused):
    """Max pooling of levels to ``space``."""

    schema = "onednn_int8_pool(x) -> y"
    attrs = _POOL

    def infer(self, ctx: InferContext) -> Types:
        n, _, _, c = ctx.inputs[0].shape
        return (_like(ctx, n, *ctx.attrs["space"], c),)


class MaxPoolGrad(Fused):
    """Gradient of `onednn_max_pool`, of height and width ``space``."""

    schema = "onednn_max_pool_grad(dy, places) -> dx"
    attrs = _POOL

    def infer(self, ctx: InferContext) -> Types:
        n, _, _, c = ctx.inputs[0].shape
        return (_like(ctx, n, *ctx.attrs["space"], c),)


class NormRelu(Fused):
    """Batch normalization in training and relu, with relu's mask as bits."""

    schema = (
        "onednn_norm_relu(x, moving_mean, moving_variance, gamma, beta)"
        " -> y, mean, inv_variance, mask"
    )
    attrs = {"epsilon": 1e-5, "momentum": 0.9, "mask": REQUIRED}
    mutates = (1, 2)

    def infer(self, ctx: InferContext) -> Types:
        vector = tensor_type((ctx.inputs[0].shape[-1],), float32)
        mask = tensor_type((ctx.attrs["mask"],), uint8)
        return ctx.inputs[0], vector, vector, mask


class NormReluGrad(Fused):
    """Gradient of `onednn_norm_relu`."""

    schema = (
        "onednn_norm_relu_grad(x, dy, mean, inv_variance, gamma, mask) -> dx, gamma_diff, beta_diff"
    )
    attrs = {"epsilon": 1e-5}

    def infer(self, ctx: InferContext) -> Types:
        vector = tensor_type((ctx.inputs[0].shape[-1],), float32)
        return ctx.inputs[0], vector, vector


class NormAddRelu(Fused):
    """Batch normalization in training, residual addition and relu."""

    schema = (
        "onednn_norm_add_relu(x, moving_mean, moving_variance, gamma, beta, addend)"
        " -> y, mean, inv_variance"
    )
    attrs = {"epsilon": 1e-5, "momentum": 0.9}
    mutates = (1, 2)
    infer = NormReluGrad.infer

    def reference(
        self, x: Array, moving_mean: Array, moving_variance: Array, gamma: Array, beta: Array,
        addend: Array, *, epsilon: float, momentum: float,
    ) -> tuple[Array, ...]:  # fmt: skip
        rows = x.reshape(-1, x.shape[-1])
        mean, variance = rows.mean(0), rows.var(0)
        inverse = 1 / np.sqrt(variance + epsilon)
        unbiased = variance * len(rows) / max(len(rows) - 1, 1)
        return (
            np.maximum((x - mean) * inverse * gamma + beta + addend, 0),
            mean,
            inverse,
            momentum * moving_mean + (1 - momentum) * mean,
            momentum * moving_variance + (1 - momentum) * unbiased,
        )

    def samples(self, rng: np.random.Generator) -> Iterator[Sample]:
        for shape in ((2, 5, 3, 4), (70, 33), (1, 3)):
            x, addend = rng.uniform(1, 3, shape), rng.uniform(-1, 1, shape)
            vectors = (rng.uniform(0.5, 2, shape[-1]) for _ in range(4))
            yield Sample((x, *vectors, addend), {"epsilon": 1e-2}, gradient=False)


class AddToRows(Fused):
    """base with rows added at base[index]; indices out of range are ignored."""

    schema = "onednn_add_to_rows(base, index, rows) -> out"
    infer = staticmethod(lambda ctx: ctx.inputs[:1])
    attrs = {"axis": 0, "first": 0}
    inplace = (0,)

    def reference(self, base: Array, index: Array, rows: Array, *, axis: int, first: int) -> Array:
        return base + row_sums(base, index, rows, first)

    def samples(self, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, count in (((5, 3), (4,)), ((9,), (2, 3)), ((3, 2, 2), (6,))):
            index = rng.integers(-1, shape[0] + 1, count).astype(np.int32)
            rows = rng.uniform(-1, 1, (*count, *shape[1:]))
            yield Sample((rng.uniform(-1, 1, shape), index, rows), {"first": 0}, gradient=False)


class SparseAdam(Fused):
    """Adam with the rows of model_diff summed at model[index], and gradient 0 elsewhere: as with a
    dense gradient, all rows with nonzero moments are updated.
    """

    schema = "onednn_sparse_adam(model, index, model_diff, learning_rate, m, v, scale_by_tensor?)"
    infer = staticmethod(lambda _: ())
    attrs = {"axis": 0, "first": 0, "scale": 1.0, **BY_TYPE["adam_update"].attrs}
    reference = staticmethod(sparse_reference("adam_update"))
    samples = staticmethod(sparse_samples("adam_update"))
    mutates = (0, 4, 5)
    effect = True


class SparseSgd(Fused):
    """model[index] -= learning_rate scale scale_by_tensor model_diff, row by row."""

    schema = "onednn_sparse_sgd(model, index, model_diff, learning_rate, scale_by_tensor?)"
    infer = staticmethod(lambda _: ())
    attrs = {"axis": 0, "first": 0, "scale": 1.0}
    reference = staticmethod(sparse_reference("sgd_update"))
    samples = staticmethod(sparse_samples("sgd_update"))
    mutates = (0,)
    effect = True


class MatmulSgd(Fused):
    """model -= learning_rate scale scale_by_tensor (a b); the gradient is not stored."""

    schema = "onednn_matmul_sgd(model, a, b, learning_rate, scale_by_tensor?)"
    infer = staticmethod(lambda _: ())
    attrs = {"transpose_a": False, "transpose_b": False, "scale": 1.0, **MATH, **NOTED}
    work = staticmethod(lambda ctx: product_work(ctx.inputs[1], ctx.inputs[2], ctx.inputs[0]))
    reference = staticmethod(matmul_sgd)
    samples = staticmethod(matmul_sgd_samples)
    mutates = (0,)
    effect = True


class Reorder(Fused):
    """Activations in another layout; ``reason`` names the consumer."""

    schema = "onednn_reorder(x) -> out"
    attrs = {"perm": REQUIRED, **NOTED}
    reference = staticmethod(lambda x, perm, **_: np.transpose(x, perm))

    def infer(self, ctx: InferContext) -> Types:
        return (_like(ctx, *(ctx.inputs[0].shape[i] for i in ctx.attrs["perm"])),)

    def samples(self, rng: np.random.Generator) -> Iterator[Sample]:
        for shape in ((2, 3, 4, 5), (1, 16, 7, 7), (3, 1, 2, 9)):
            for perm in (TO_LAST, TO_FIRST):
                yield Sample((rng.uniform(-1, 1, shape),), {"perm": perm}, gradient=False)


OPS = specs(
    *map(Update, JOINED), Conv, ConvDataGrad, ConvFilterGrad, Matmul, Pack, PackedMatmul, PackConv,
    PackedConv, ConvChain, PackInt8, Int8Conv, Int8Pool, Quantize, PackPanels, Panels, MaxPool,
    MaxPoolGrad, NormRelu, NormReluGrad, NormAddRelu, AddToRows, SparseAdam, SparseSgd, MatmulSgd,
    Reorder,
)  # fmt: skip
