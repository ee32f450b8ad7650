"""The ops that the passes of this package create: fused ops, and ops on NHWC activations.

These ops have no gradients and no SBP rules, because they are created after differentiation and
after the split into ops on single devices. Convolution weights keep the layout of their variables:
(filters, channels, height, width), or channels-last if ``weights_last`` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import erf, prod, sqrt

import numpy as np

from flow_core.authoring.convolutions import (
    conv_reference,
    data_grad_reference,
    filter_grad_reference,
)
from flow_core.authoring.layouts import TO_FIRST, TO_LAST
from flow_core.authoring.op_rules import conv_work, product_work
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
from flow_core.authoring.update_rules import BY_TYPE, COMMON
from flow_core.base.arrays import Array
from flow_core.base.dtypes import float32, uint8
from flow_core.base.shapes import window_output
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

_op = partial(OpSpec, internal=True)
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


def _like(ctx: InferContext, *shape: int) -> TensorType:
    return tensor_type(shape, ctx.inputs[0].dtype)


# --- convolutions

GEOMETRY = {
    "kernel_size": REQUIRED, "strides": REQUIRED, "dilation_rate": REQUIRED,
    "padding_before": REQUIRED, "groups": 1, "weights_last": False,
}  # fmt: skip


def _conv_type(ctx: InferContext) -> Types:
    attrs, (n, *sizes, _) = ctx.attrs, ctx.inputs[0].shape
    pads = zip(attrs["padding_before"], attrs["padding_after"], strict=True)
    columns = (attrs[key] for key in ("kernel_size", "strides"))
    windows = zip(sizes, *columns, pads, attrs["dilation_rate"], strict=True)
    return (_like(ctx, n, *(window_output(*row) for row in windows), ctx.inputs[1].shape[0]),)


def _data_grad_type(ctx: InferContext) -> Types:
    n = ctx.inputs[0].shape[0]
    axis = -1 if ctx.attrs["weights_last"] else 1
    channels = ctx.inputs[1].shape[axis] * ctx.attrs["groups"]
    return (_like(ctx, n, *ctx.attrs["space"], channels),)


def _filter_grad_type(ctx: InferContext) -> Types:
    filters, channels = ctx.inputs[0].shape[-1], ctx.inputs[1].shape[-1]
    depth, kernel = (channels // ctx.attrs["groups"],), ctx.attrs["kernel_size"]
    last = ctx.attrs["weights_last"]
    dw = _like(ctx, filters, *((*kernel, *depth) if last else (*depth, *kernel)))
    return (dw, _like(ctx, filters)) if ctx.attrs["bias"] else (dw,)


def _last(weight: Array, attrs: Attrs) -> Array:
    return weight if attrs["weights_last"] else np.moveaxis(weight, 1, -1)


def _conv(x: Array, weight: Array, *bias: Array, **attrs: AttrValue) -> Array:
    y = conv_reference(x, _last(weight, attrs), data_format="channels_last", **attrs)
    return ACTIVATIONS[attrs["activation"]](y + bias[0] if bias else y)


def _data_grad(dy: Array, weight: Array, **attrs: AttrValue) -> Array:
    weight = _last(weight, attrs)
    like = np.empty((len(dy), *attrs["space"], weight.shape[-1] * attrs["groups"]), dy.dtype)
    return data_grad_reference(dy, weight, like, data_format="channels_last", **attrs)


def _filter_grad(dy: Array, x: Array, **attrs: AttrValue) -> Array | tuple[Array, ...]:
    dw = filter_grad_reference(dy, x, data_format="channels_last", **attrs)
    dw = dw if attrs["weights_last"] else np.moveaxis(dw, -1, 1)
    return (dw, dy.sum((0, 1, 2))) if attrs["bias"] else dw


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


def _conv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, weight, bias, attrs in _cases(rng):
        attrs = attrs | {"padding_after": attrs["padding_before"]}
        yield Sample((x, weight), attrs, gradient=False)
        yield Sample((x, weight, bias), attrs | {"activation": "relu"}, gradient=False)


def _gradient_case(x: Array, weight: Array, attrs: dict[str, AttrValue]) -> Array:
    after = {"padding_after": attrs["padding_before"], "activation": ""}
    return np.ones_like(_conv(x, weight, **attrs, **after))


def _data_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, weight, _, attrs in _cases(rng):
        dy = rng.uniform(-1, 1, _gradient_case(x, weight, attrs).shape)
        yield Sample((dy, weight), attrs | {"space": x.shape[1:3]}, gradient=False)


def _filter_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, weight, _, attrs in _cases(rng):
        dy = rng.uniform(-1, 1, _gradient_case(x, weight, attrs).shape)
        for bias in (False, True):
            yield Sample((dy, x), attrs | {"bias": bias}, gradient=False)


# --- matrix products


def _matmul_type(ctx: InferContext) -> Types:
    (*stack, m, k), (*_, n, deep) = ctx.inputs[0].shape, ctx.inputs[1].shape
    m, k = (k, m) if ctx.attrs["transpose_a"] else (m, k)
    n, deep = (n, deep) if ctx.attrs["transpose_b"] else (deep, n)
    ctx.check(k == deep, f"inner sizes {k} and {deep}", "equal ones")
    for bias in ctx.inputs[2:]:
        ctx.check(bias.shape == (n,), f"a bias {bias}", f"one of shape ({n},)")
    return (_like(ctx, *stack, m, n),)


def _matmul(a: Array, b: Array, *bias: Array, **attrs: AttrValue) -> Array:
    left = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
    right = np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b
    y = attrs["alpha"] * (left @ right)
    return ACTIVATIONS[attrs["activation"]](y + bias[0] if bias else y)


def _matmul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for m, k, n in ((3, 5, 4), (33, 17, 65), (1, 7, 1)):
        for t in range(4):
            a = rng.uniform(-1, 1, (k, m) if t & 1 else (m, k))
            b = rng.uniform(-1, 1, (n, k) if t & 2 else (k, n))
            attrs = {"transpose_a": bool(t & 1), "transpose_b": bool(t & 2)}
            activation = ("", "relu", "gelu", "relu")[t]
            inputs = (a, b, rng.uniform(-1, 1, n))
            yield Sample(inputs, attrs | {"activation": activation}, gradient=False)


# --- max pooling with the positions of the maxima


def _pool_type(ctx: InferContext) -> Types:
    places = tensor_type((ctx.attrs["places"],), uint8)
    n, _, _, c = ctx.inputs[0].shape
    return _like(ctx, n, *ctx.attrs["space"], c), places


def _pool_grad_type(ctx: InferContext) -> Types:
    n, _, _, c = ctx.inputs[0].shape
    return (_like(ctx, n, *ctx.attrs["space"], c),)


_POOL = {
    "padding": REQUIRED, "padding_before": None, "padding_after": None, "pool_size": REQUIRED,
    "strides": REQUIRED, "ceil_mode": False, "data_format": "channels_last", "space": REQUIRED,
}  # fmt: skip


# --- batch normalization with relu


def _norm_type(ctx: InferContext) -> Types:
    vector = tensor_type((ctx.inputs[0].shape[-1],), float32)
    mask = tensor_type((ctx.attrs["mask"],), uint8)
    return ctx.inputs[0], vector, vector, mask


def _norm_grad_type(ctx: InferContext) -> Types:
    vector = tensor_type((ctx.inputs[0].shape[-1],), float32)
    return ctx.inputs[0], vector, vector


def _joined_type(ctx: InferContext) -> Types:
    vector = tensor_type((ctx.inputs[0].shape[-1],), float32)
    return ctx.inputs[0], vector, vector


def _joined(
    x: Array, moving_mean: Array, moving_variance: Array, gamma: Array, beta: Array, addend: Array,
    *, epsilon: float, momentum: float,
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


def _joined_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((2, 5, 3, 4), (70, 33), (1, 3)):
        x, addend = rng.uniform(1, 3, shape), rng.uniform(-1, 1, shape)
        vectors = (rng.uniform(0.5, 2, shape[-1]) for _ in range(4))
        yield Sample((x, *vectors, addend), {"epsilon": 1e-2}, gradient=False)


# --- layouts


def _reorder_type(ctx: InferContext) -> Types:
    return (_like(ctx, *(ctx.inputs[0].shape[i] for i in ctx.attrs["perm"])),)


def _reorder_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((2, 3, 4, 5), (1, 16, 7, 7), (3, 1, 2, 9)):
        for perm in (TO_LAST, TO_FIRST):
            yield Sample((rng.uniform(-1, 1, shape),), {"perm": perm}, gradient=False)


# --- rows of embedding tables


def _add_to_rows(base: Array, index: Array, rows: Array, *, axis: int, first: int) -> Array:
    return base + row_sums(base, index, rows, first)


def _add_to_rows_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, count in (((5, 3), (4,)), ((9,), (2, 3)), ((3, 2, 2), (6,))):
        index = rng.integers(-1, shape[0] + 1, count).astype(np.int32)
        rows = rng.uniform(-1, 1, (*count, *shape[1:]))
        yield Sample((rng.uniform(-1, 1, shape), index, rows), {"first": 0}, gradient=False)


# --- updates of several variables


def _joined_spec(row: Joined) -> OpSpec:
    def infer(ctx: InferContext) -> Types:
        rest = ctx.inputs[row.head :]
        ctx.check(
            rest and len(rest) % row.row == 0 and len(rest) <= MOST_ROWS * row.row,
            f"{len(rest)} inputs after the first {row.head}",
            f"{row.row} per variable, of {MOST_ROWS} variables at most",
        )
        return ()

    first = ("learning_rate", "scale_by_tensor", *(("train_step",) if row.rule.step else ()))
    return _op(
        type=row.type,
        inputs=(*first, "rows*"),
        outputs=(),
        infer=infer,
        attrs={"scaled": False, **dict.fromkeys((*COMMON, *row.rule.attrs), REQUIRED)},
        reference=joined_reference(row),
        samples=joined_samples(row),
        mutates=row.mutates,
        effect=True,
        doc=f"`{row.rule.type}` of several small variables in one call.",
    )


def _packed_conv_work(ctx: SbpContext) -> float:
    taps: float = prod(ctx.attrs["kernel_size"]) * ctx.inputs[0].shape[-1] / ctx.attrs["groups"]
    return 2.0 * ctx.outputs[0].size * taps


MATMUL_ATTRS = {"transpose_a": False, "transpose_b": False, "alpha": 1.0}
_PACKED = {"rows": REQUIRED, "deep": REQUIRED, "columns": REQUIRED, "activation": "", **MATH}

_PACKED_CONV = {
    **GEOMETRY, **MATH, "low": REQUIRED, "high": REQUIRED, "image": REQUIRED, "result": REQUIRED,
    "filters": REQUIRED, "bias": REQUIRED, "residual": REQUIRED, "bounded": REQUIRED,
    "residual_bounded": REQUIRED,
}  # fmt: skip

OPS: tuple[OpSpec, ...] = (
    *map(_joined_spec, JOINED),
    _op(
        type="onednn_conv",
        inputs=("x", "weight", "bias?"),
        infer=_conv_type,
        attrs={**GEOMETRY, "padding_after": REQUIRED, "activation": "", **MATH, **NOTED},
        reference=_conv,
        samples=_conv_samples,
        work=lambda ctx: conv_work(ctx.outputs[0], ctx.inputs[1]),
        doc="Convolution of NHWC activations, with bias and activation.",
    ),
    _op(
        type="onednn_conv_data_grad",
        inputs=("dy", "weight"),
        outputs=("dx",),
        infer=_data_grad_type,
        attrs={**GEOMETRY, "space": REQUIRED, **MATH, **NOTED},
        reference=_data_grad,
        samples=_data_grad_samples,
        work=lambda ctx: conv_work(*ctx.inputs),
        doc="Gradient of the convolution input, of height and width ``space``.",
    ),
    _op(
        type="onednn_conv_filter_grad",
        inputs=("dy", "x"),
        outputs=("dw*",),
        infer=_filter_grad_type,
        attrs={**GEOMETRY, "bias": False, **MATH, **NOTED},
        reference=_filter_grad,
        samples=_filter_grad_samples,
        work=lambda ctx: conv_work(ctx.inputs[0], ctx.outputs[0]),
        doc="Gradients of the convolution weights and, if ``bias`` is set, of the bias.",
    ),
    _op(
        type="onednn_matmul",
        inputs=("a", "b", "bias?"),
        infer=_matmul_type,
        attrs={**MATMUL_ATTRS, "activation": "", **MATH, **NOTED},
        reference=_matmul,
        samples=_matmul_samples,
        work=lambda ctx: product_work(ctx.inputs[0], ctx.inputs[1], ctx.outputs[0]),
        doc="Matrix product with bias and activation.",
    ),
    _op(
        type="onednn_pack",
        inputs=("b",),
        infer=lambda ctx: (_like(ctx, ctx.attrs["size"]),),
        attrs={**_PACKED, "transpose_b": REQUIRED, "bias": REQUIRED, "size": REQUIRED},
        doc="Right operand of `onednn_packed_matmul`, packed in the library's layout.",
    ),
    _op(
        type="onednn_packed_matmul",
        inputs=("a", "packed", "bias?"),
        infer=lambda ctx: (_like(ctx, ctx.attrs["rows"], ctx.attrs["columns"]),),
        attrs=_PACKED,
        work=lambda ctx: 2.0 * prod(ctx.attrs[n] for n in ("rows", "deep", "columns")),
        doc="`onednn_matmul` with packed weights.",
    ),
    _op(
        type="onednn_pack_conv",
        inputs=("weight", "bias?"),
        outputs=("packed", "norms"),
        infer=lambda ctx: (_like(ctx, ctx.attrs["size"]), _like(ctx, 2)),
        attrs={**_PACKED_CONV, "size": REQUIRED},
        doc="Weights of `onednn_packed_conv` in the library's layout; the largest sum of the"
        " magnitudes of one filter, and the largest magnitude of the bias.",
    ),
    _op(
        type="onednn_packed_conv",
        inputs=("x", "packed", "norms", "more*"),
        outputs=("y", "bound"),
        infer=lambda ctx: (_like(ctx, *ctx.attrs["result"]), _like(ctx, 1)),
        attrs=_PACKED_CONV,
        work=_packed_conv_work,
        doc="Convolution of NHWC activations with packed weights, and a bound of the result's"
        " magnitudes. ``more`` are the bias, a residual, which is added, and bounds of x and of the"
        " residual; the result is limited to ``low`` and ``high``.",
    ),
    _op(
        type="onednn_max_pool",
        inputs=("x",),
        outputs=("y", "places"),
        infer=_pool_type,
        attrs={**_POOL, "places": REQUIRED},
        doc="Max pooling to ``space``, and the positions of the maxima within their windows.",
    ),
    _op(
        type="onednn_max_pool_grad",
        inputs=("dy", "places"),
        outputs=("dx",),
        infer=_pool_grad_type,
        attrs=_POOL,
        doc="Gradient of `onednn_max_pool`, of height and width ``space``.",
    ),
    _op(
        type="onednn_norm_relu",
        inputs=("x", "moving_mean", "moving_variance", "gamma", "beta"),
        outputs=("y", "mean", "inv_variance", "mask"),
        infer=_norm_type,
        attrs={"epsilon": 1e-5, "momentum": 0.9, "mask": REQUIRED},
        mutates=(1, 2),
        doc="Batch normalization in training and relu, with relu's mask as bits.",
    ),
    _op(
        type="onednn_norm_relu_grad",
        inputs=("x", "dy", "mean", "inv_variance", "gamma", "mask"),
        outputs=("dx", "gamma_diff", "beta_diff"),
        infer=_norm_grad_type,
        attrs={"epsilon": 1e-5},
        doc="Gradient of `onednn_norm_relu`.",
    ),
    _op(
        type="onednn_norm_add_relu",
        inputs=("x", "moving_mean", "moving_variance", "gamma", "beta", "addend"),
        outputs=("y", "mean", "inv_variance"),
        infer=_joined_type,
        attrs={"epsilon": 1e-5, "momentum": 0.9},
        mutates=(1, 2),
        reference=_joined,
        samples=_joined_samples,
        doc="Batch normalization in training, residual addition and relu.",
    ),
    _op(
        type="onednn_add_to_rows",
        inputs=("base", "index", "rows"),
        infer=lambda ctx: ctx.inputs[:1],
        attrs={"axis": 0, "first": 0},
        inplace=(0,),
        reference=_add_to_rows,
        samples=_add_to_rows_samples,
        doc="base with rows added at base[index]; indices out of range are ignored.",
    ),
    _op(
        type="onednn_sparse_adam",
        inputs=("model", "index", "model_diff", "learning_rate", "m", "v", "scale_by_tensor?"),
        outputs=(),
        infer=lambda _: (),
        attrs={"axis": 0, "first": 0, "scale": 1.0, **BY_TYPE["adam_update"].attrs},
        reference=sparse_reference("adam_update"),
        samples=sparse_samples("adam_update"),
        mutates=(0, 4, 5),
        effect=True,
        doc="Adam with the rows of model_diff summed at model[index], and gradient 0 elsewhere: as"
        " with a dense gradient, all rows with nonzero moments are updated.",
    ),
    _op(
        type="onednn_sparse_sgd",
        inputs=("model", "index", "model_diff", "learning_rate", "scale_by_tensor?"),
        outputs=(),
        infer=lambda _: (),
        attrs={"axis": 0, "first": 0, "scale": 1.0},
        reference=sparse_reference("sgd_update"),
        samples=sparse_samples("sgd_update"),
        mutates=(0,),
        effect=True,
        doc="model[index] -= learning_rate scale scale_by_tensor model_diff, row by row.",
    ),
    _op(
        type="onednn_matmul_sgd",
        inputs=("model", "a", "b", "learning_rate", "scale_by_tensor?"),
        outputs=(),
        infer=lambda _: (),
        attrs={"transpose_a": False, "transpose_b": False, "scale": 1.0, **MATH, **NOTED},
        reference=matmul_sgd,
        samples=matmul_sgd_samples,
        mutates=(0,),
        effect=True,
        work=lambda ctx: product_work(ctx.inputs[1], ctx.inputs[2], ctx.inputs[0]),
        doc="model -= learning_rate scale scale_by_tensor (a b); the gradient is not stored.",
    ),
    _op(
        type="onednn_reorder",
        inputs=("x",),
        infer=_reorder_type,
        attrs={"perm": REQUIRED, **NOTED},
        reference=lambda x, perm, **_: np.transpose(x, perm),
        samples=_reorder_samples,
        doc="Activations in another layout; ``reason`` names the consumer.",
    ),
)
