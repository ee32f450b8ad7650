"""The ops that passes create: fused matrix products, changes of layouts, and graphs of cuDNN.

The ops have no gradients and no SBP rules, because passes create them after differentiation and
after the split into one op per device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flow_core.authoring.op_rules import OpDef, conv_work, product_work, specs
from flow_core.authoring.specs import (
    REQUIRED,
    AttrValue,
    InferContext,
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


class Fused(OpDef):
    internal = True


# --- matrix products


class Matmul(Fused):
    """A matrix product with bias and activation."""

    schema = "cuda_matmul(a, b, bias) -> out"
    attrs = {**PRODUCT, "activation": ""}

    def infer(self, ctx: InferContext) -> Types:
        a, b = ctx.inputs[:2]
        m = a.shape[1 if ctx.attrs["transpose_a"] else 0]
        n = b.shape[0 if ctx.attrs["transpose_b"] else 1]
        return (tensor_type((m, n), a.dtype),)

    def work(self, ctx: SbpContext) -> float:
        return product_work(ctx.inputs[0], ctx.inputs[1], ctx.outputs[0])


class MatmulSum(Matmul):
    """A matrix product, and the sum of one operand over the reduction dimension."""

    schema = "cuda_matmul_sum(a, b) -> out, sum"
    attrs = {**PRODUCT, "side": REQUIRED}

    def infer(self, ctx: InferContext) -> Types:
        (out,) = super().infer(ctx)
        return out, tensor_type((out.shape[0 if ctx.attrs["side"] == "a" else 1],), out.dtype)


# --- layouts


class Reorder(Fused):
    """Activations or weights in another layout; ``reason`` names the consumer."""

    schema = "cuda_reorder(x) -> out"
    attrs = {"perm": REQUIRED, "reason": "", "reordered": 0}

    def infer(self, ctx: InferContext) -> Types:
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


class Conv(Fused):
    """A convolution with optional bias, addition and activation."""

    schema = "cudnn_conv(x, weight, bias?, addend?) -> out"
    attrs = {**WINDOW, "padding_after": REQUIRED, "activation": ""}

    def infer(self, ctx: InferContext) -> Types:
        attrs, (x, w) = ctx.attrs, ctx.inputs[:2]
        sizes, filters = _channels_first_shape(x.shape, attrs), w.shape[0]
        pads = zip(attrs["padding_before"], attrs["padding_after"], strict=True)
        columns = (attrs[key] for key in ("kernel_size", "strides"))
        rows = zip(sizes[2:], *columns, pads, attrs["dilation_rate"], strict=True)
        space = tuple(window_output(*row) for row in rows)
        return (_with_sizes(x, (sizes[0], filters, *space), attrs),)

    def work(self, ctx: SbpContext) -> float:
        return conv_work(ctx.outputs[0], ctx.inputs[1])


class ConvDataGrad(Fused):
    """The gradient with respect to the input, whose spatial sizes are ``space``."""

    schema = "cudnn_conv_data_grad(dy, weight) -> dx"
    attrs = {**WINDOW, "space": REQUIRED}

    def infer(self, ctx: InferContext) -> Types:
        dy, w = ctx.inputs
        channels = _channels_first_shape(w.shape, ctx.attrs)[1] * ctx.attrs["groups"]
        return (_with_sizes(dy, (dy.shape[0], channels, *ctx.attrs["space"]), ctx.attrs),)

    def work(self, ctx: SbpContext) -> float:
        return conv_work(ctx.inputs[0], ctx.inputs[1])


class ConvFilterGrad(Fused):
    """The gradient with respect to the weights."""

    schema = "cudnn_conv_filter_grad(dy, x) -> dw"
    attrs = WINDOW

    def infer(self, ctx: InferContext) -> Types:
        dy, x = (_channels_first_shape(t.shape, ctx.attrs) for t in ctx.inputs)
        sizes = (dy[1], x[1] // ctx.attrs["groups"], *ctx.attrs["kernel_size"])
        return (_with_sizes(ctx.inputs[0], sizes, ctx.attrs),)

    def work(self, ctx: SbpContext) -> float:
        return conv_work(ctx.inputs[0], ctx.outputs[0])


# --- normalization and attention


class Norm(Fused):
    """Batch normalization in training, then optional addition and ReLU."""

    schema = (
        "cudnn_norm(x, moving_mean, moving_variance, gamma, beta, addend?) -> y, mean, inv_variance"
    )
    attrs = {"axis": REQUIRED, **PLAN, "epsilon": 1e-5, "momentum": 0.9, "activation": ""}
    mutates = (1, 2)

    def infer(self, ctx: InferContext) -> Types:
        x = ctx.inputs[0]
        row = tensor_type((x.shape[ctx.attrs["axis"]],), float32)
        return x, row, row


class NormGrad(Fused):
    """The gradients of batch normalization."""

    schema = "cudnn_norm_grad(x, dy, mean, inv_variance, gamma) -> dx, gamma_diff, beta_diff"
    attrs = {"axis": REQUIRED, **PLAN}
    infer = Norm.infer


class Attention(Fused):
    """softmax(scale q k^T + mask) v, and the log-sum-exp for the backward pass."""

    schema = "cudnn_attention(q, k, v, mask?) -> out*"
    attrs = {"scale": REQUIRED, **PLAN, "saves": REQUIRED}

    def infer(self, ctx: InferContext) -> Types:
        q, v = ctx.inputs[0], ctx.inputs[2]
        out = tensor_type((*q.shape[:-1], v.shape[-1]), q.dtype)
        return (out, tensor_type((*q.shape[:-1], 1), float32)) if ctx.attrs["saves"] else (out,)

    def work(self, ctx: SbpContext) -> float:
        """Count the floating-point operations: two products forward, five backward."""
        q, k = ctx.inputs[:2]
        products = 2 if "saves" in ctx.attrs else 5
        return 2.0 * products * q.size * k.shape[-2]


class AttentionGrad(Fused):
    """The gradients of ``cudnn_attention`` with respect to q, k and v."""

    schema = "cudnn_attention_grad(q, k, v, o, do, stats, mask?) -> dq, dk, dv"
    attrs = {"scale": REQUIRED, **PLAN, "deterministic": False}
    work = Attention.work

    def infer(self, ctx: InferContext) -> Types:
        return ctx.inputs[:3]


OPS = specs(
    Matmul, MatmulSum, Reorder, Conv, ConvDataGrad, ConvFilterGrad, Norm, NormGrad, Attention,
    AttentionGrad,
)  # fmt: skip
