"""The ops that passes create: fused matrix products, changes of layouts, and graphs of cuDNN.

The ops have no gradients and no SBP rules, because passes create them after differentiation and
after the split into one op per device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flow_core.authoring.op_rules import conv_work, product_work
from flow_core.authoring.specs import (
    REQUIRED,
    AttrValue,
    InferContext,
    OpSpec,
    SbpContext,
    TensorType,
    tensor_type,
)
from flow_core.base.dtypes import float32
from flow_core.base.shapes import window_output

Types = tuple[TensorType, ...]
Attrs = Mapping[str, AttrValue]
Ints = tuple[int, ...]

PRODUCT = {"transpose_a": False, "transpose_b": False, "alpha": 1.0}
PLAN = {"plan": "", "workspace": 0}
"""The library's name of the plan, and the plan's workspace in bytes. With an empty name, the
library's first plan that fits the workspace is used."""

WINDOW = {
    "data_format": REQUIRED, "kernel_size": REQUIRED, "strides": REQUIRED,
    "padding_before": REQUIRED, "dilation_rate": REQUIRED, "groups": 1, "compute": "", **PLAN,
}  # fmt: skip
"""Attributes of all convolutions; an empty ``compute`` means float32, or float64 for float64
tensors."""


# --- matrix products


def _product_type(ctx: InferContext) -> Types:
    a, b = ctx.inputs[:2]
    m = a.shape[1 if ctx.attrs["transpose_a"] else 0]
    n = b.shape[0 if ctx.attrs["transpose_b"] else 1]
    return (tensor_type((m, n), a.dtype),)


def _sum_types(ctx: InferContext) -> Types:
    (out,) = _product_type(ctx)
    return out, tensor_type((out.shape[0 if ctx.attrs["side"] == "a" else 1],), out.dtype)


def _product_work(ctx: SbpContext) -> float:
    return product_work(ctx.inputs[0], ctx.inputs[1], ctx.outputs[0])


# --- layouts


def _reordered_type(ctx: InferContext) -> Types:
    (x,) = ctx.inputs
    return (tensor_type(tuple(x.shape[axis] for axis in ctx.attrs["perm"]), x.dtype),)


# --- convolutions


def _channels_first_shape(shape: Sequence[int], attrs: Attrs) -> Ints:
    if attrs["data_format"] == "channels_first":
        return tuple(shape)
    return (shape[0], shape[-1], *shape[1:-1])


def _with_sizes(like: TensorType, sizes: Ints, attrs: Attrs) -> TensorType:
    """Return the type with the given channels-first sizes, in the layout of the attributes."""
    if attrs["data_format"] == "channels_last":
        sizes = (sizes[0], *sizes[2:], sizes[1])
    return tensor_type(sizes, like.dtype)


def _conv_type(ctx: InferContext) -> Types:
    attrs, (x, w) = ctx.attrs, ctx.inputs[:2]
    sizes, filters = _channels_first_shape(x.shape, attrs), w.shape[0]
    pads = zip(attrs["padding_before"], attrs["padding_after"], strict=True)
    rows = zip(
        sizes[2:], attrs["kernel_size"], attrs["strides"], pads, attrs["dilation_rate"], strict=True
    )
    space = tuple(window_output(*row) for row in rows)
    return (_with_sizes(x, (sizes[0], filters, *space), attrs),)


def _data_grad_type(ctx: InferContext) -> Types:
    dy, w = ctx.inputs
    channels = _channels_first_shape(w.shape, ctx.attrs)[1] * ctx.attrs["groups"]
    return (_with_sizes(dy, (dy.shape[0], channels, *ctx.attrs["space"]), ctx.attrs),)


def _filter_grad_type(ctx: InferContext) -> Types:
    dy, x = (_channels_first_shape(t.shape, ctx.attrs) for t in ctx.inputs)
    sizes = (dy[1], x[1] // ctx.attrs["groups"], *ctx.attrs["kernel_size"])
    return (_with_sizes(ctx.inputs[0], sizes, ctx.attrs),)


def _conv_work(ctx: SbpContext) -> float:
    """Return the number of floating-point operations: two per multiplication by a weight."""
    if "activation" in ctx.attrs:
        return conv_work(ctx.outputs[0], ctx.inputs[1])
    other = ctx.inputs[1] if "space" in ctx.attrs else ctx.outputs[0]
    return conv_work(ctx.inputs[0], other)


# --- normalization and attention


def _norm_types(ctx: InferContext) -> Types:
    x = ctx.inputs[0]
    row = tensor_type((x.shape[ctx.attrs["axis"]],), float32)
    return x, row, row


def _attention_types(ctx: InferContext) -> Types:
    q, v = ctx.inputs[0], ctx.inputs[2]
    out = tensor_type((*q.shape[:-1], v.shape[-1]), q.dtype)
    return (out, tensor_type((*q.shape[:-1], 1), float32)) if ctx.attrs["saves"] else (out,)


def _attention_work(ctx: SbpContext) -> float:
    """Return the number of floating-point operations: two products forward, five backward."""
    q, k = ctx.inputs[:2]
    products = 2 if "saves" in ctx.attrs else 5
    return 2.0 * products * q.size * k.shape[-2]


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="cuda_matmul",
        internal=True,
        inputs=("a", "b", "bias"),
        infer=_product_type,
        attrs={**PRODUCT, "activation": ""},
        work=_product_work,
        doc="A matrix product with bias and activation.",
    ),
    OpSpec(
        type="cuda_matmul_sum",
        internal=True,
        inputs=("a", "b"),
        outputs=("out", "sum"),
        infer=_sum_types,
        attrs={**PRODUCT, "side": REQUIRED},
        work=_product_work,
        doc="A matrix product, and the sum of one operand over the reduction dimension.",
    ),
    OpSpec(
        type="cuda_reorder",
        internal=True,
        inputs=("x",),
        infer=_reordered_type,
        attrs={"perm": REQUIRED, "reason": "", "reordered": 0},
        doc="Activations or weights in another layout; ``reason`` names the consumer.",
    ),
    OpSpec(
        type="cudnn_conv",
        internal=True,
        inputs=("x", "weight", "bias?", "addend?"),
        infer=_conv_type,
        attrs={**WINDOW, "padding_after": REQUIRED, "activation": ""},
        work=_conv_work,
        doc="A convolution with optional bias, addition and activation.",
    ),
    OpSpec(
        type="cudnn_conv_data_grad",
        internal=True,
        inputs=("dy", "weight"),
        outputs=("dx",),
        infer=_data_grad_type,
        attrs={**WINDOW, "space": REQUIRED},
        work=_conv_work,
        doc="The gradient with respect to the input, whose spatial sizes are ``space``.",
    ),
    OpSpec(
        type="cudnn_conv_filter_grad",
        internal=True,
        inputs=("dy", "x"),
        outputs=("dw",),
        infer=_filter_grad_type,
        attrs=WINDOW,
        work=_conv_work,
        doc="The gradient with respect to the weights.",
    ),
    OpSpec(
        type="cudnn_norm",
        internal=True,
        inputs=("x", "moving_mean", "moving_variance", "gamma", "beta", "addend?"),
        outputs=("y", "mean", "inv_variance"),
        infer=_norm_types,
        attrs={"axis": REQUIRED, **PLAN, "epsilon": 1e-5, "momentum": 0.9, "activation": ""},
        mutates=(1, 2),
        doc="Batch normalization in training, then optional addition and ReLU.",
    ),
    OpSpec(
        type="cudnn_norm_grad",
        internal=True,
        inputs=("x", "dy", "mean", "inv_variance", "gamma"),
        outputs=("dx", "gamma_diff", "beta_diff"),
        infer=_norm_types,
        attrs={"axis": REQUIRED, **PLAN},
        doc="The gradients of batch normalization.",
    ),
    OpSpec(
        type="cudnn_attention",
        internal=True,
        inputs=("q", "k", "v", "mask?"),
        outputs=("out*",),
        infer=_attention_types,
        attrs={"scale": REQUIRED, **PLAN, "saves": REQUIRED},
        work=_attention_work,
        doc="softmax(scale q k^T + mask) v, and the log-sum-exp for the backward pass.",
    ),
    OpSpec(
        type="cudnn_attention_grad",
        internal=True,
        inputs=("q", "k", "v", "o", "do", "stats", "mask?"),
        outputs=("dq", "dk", "dv"),
        infer=lambda ctx: ctx.inputs[:3],
        attrs={"scale": REQUIRED, **PLAN, "deterministic": False},
        work=_attention_work,
        doc="The gradients of ``cudnn_attention`` with respect to q, k and v.",
    ),
)
