"""Convolutions, their gradients, and transposed convolutions, in one, two and three dimensions.

The layouts are ``channels_first`` (batch, channels, *space) with weights (filters, channels per
group, *kernel), or ``channels_last`` (batch, *space, channels) with weights (filters, *kernel,
channels per group).  ``padding_after`` defaults to ``padding_before``.  A transposed convolution is
the data gradient of a convolution, with the convolution's output as its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flow_core.base.shapes import window_output
from flow_core.ir.graph import Attrs, TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.nn.conv_reference import (
    SHARED,
    conv_reference,
    conv_samples,
    data_grad_reference,
    data_grad_samples,
    deconv_reference,
    deconv_samples,
    deconv_space,
    filter_grad_reference,
    filter_grad_samples,
    padding_after,
)
from flow_core.ops.nn.windows import (
    channel_axis,
    check_data_format,
    check_per_axis,
    check_rank,
    pointwise_axes,
    space_axes,
    with_space,
)
from flow_core.ops.rules import Row, conv_work, signatures
from flow_core.plugins.specs import REQUIRED, InferContext, SbpContext
from flow_core.sharding.sbp import B, P, S, Signatures


def _check_common(ctx: InferContext, dims: int) -> None:
    """Validate the inputs and attributes that all ops of the family share."""
    check_data_format(ctx)
    check_rank(ctx, dims)
    check_per_axis(ctx, dims, kernel_size=1, strides=1, dilation_rate=1, padding_before=0)
    if ctx.attrs.get("padding_after") is not None:
        check_per_axis(ctx, dims, padding_after=0)
    dtype = ctx.inputs[0].dtype
    ctx.check(
        dtype.is_floating and all(t.dtype is dtype for t in ctx.inputs),
        ", ".join(map(str, ctx.inputs)),
        "floating point tensors of one element type",
        "flow.cast one of them",
    )
    ctx.check(ctx.attrs["groups"] >= 1, f"groups={ctx.attrs['groups']}", "at least 1")


def _check_weight(ctx: InferContext, weight: TensorType, channels: int) -> None:
    """Check that weights fit a number of channels and groups."""
    attrs, rank = ctx.attrs, len(weight.shape)
    groups, axis = attrs["groups"], channel_axis(rank, attrs["data_format"])
    kernel = tuple(weight.shape[i] for i in space_axes(rank, attrs["data_format"]))
    ctx.check(
        kernel == attrs["kernel_size"],
        f"weights {weight} for kernel_size={attrs['kernel_size']}",
        f"kernel axes {space_axes(rank, attrs['data_format'])} of these sizes",
    )
    ctx.check(
        weight.shape[axis] * groups == channels and weight.shape[0] % groups == 0,
        f"weights {weight}, {channels} channels, groups={groups}",
        f"weights with {channels} / {groups} channels on axis {axis}, filters in {groups} groups",
    )


def _local(ctx: SbpContext, big: TensorType, small: TensorType) -> list[int]:
    """Return the spatial axes that may be split: those on which the kernel has size 1."""
    return pointwise_axes(ctx, ctx.attrs["kernel_size"], ctx.attrs["padding_before"], big, small)


def _channels(ctx: SbpContext) -> int:
    return channel_axis(len(ctx.inputs[0].shape), ctx.attrs["data_format"])


def _linear_in_both() -> list[Row]:
    return [((S(0), B), S(0)), ((P, B), P), ((B, P), P)]


def _shared(attrs: Attrs) -> dict[str, Any]:
    return {key: attrs[key] for key in SHARED}


def _conv(g: GradContext, x: Sym, weight: Sym, like: Sym) -> Sym:
    """Emit the convolution whose result has the shape of ``like``."""
    attrs, dims = g.attrs, len(g.attrs["kernel_size"])
    axes = space_axes(dims + 2, attrs["data_format"])
    columns = zip(
        axes, *(attrs[k] for k in ("kernel_size", "strides", "dilation_rate", "padding_before")),
        strict=True,
    )  # fmt: skip
    after = tuple(
        max(0, (like.shape[i] - 1) * stride + (kernel - 1) * dilation + 1 - x.shape[i] - before)
        for i, kernel, stride, dilation, before in columns
    )
    return g.one(
        f"conv{dims}d", x, weight,
        filters=weight.shape[0], padding_after=after, **_shared(attrs),
    )  # fmt: skip


def _data_grad(g: GradContext, dy: Sym, weight: Sym, like: Sym) -> Sym:
    dims = len(g.attrs["kernel_size"])
    return g.one("conv_data_grad", dy, weight, like, num_spatial_dims=dims, **_shared(g.attrs))


def _filter_grad(g: GradContext, dy: Sym, x: Sym) -> Sym:
    dims = len(g.attrs["kernel_size"])
    return g.one("conv_filter_grad", dy, x, num_spatial_dims=dims, **_shared(g.attrs))


_CONV_ATTRS = {
    "filters": REQUIRED, "padding_before": REQUIRED, "data_format": REQUIRED,
    "kernel_size": REQUIRED, "strides": REQUIRED, "dilation_rate": REQUIRED, "groups": 1,
    "padding_after": None,
}  # fmt: skip
DIMS = (1, 2, 3)
_GRAD_ATTRS = {"num_spatial_dims": REQUIRED} | dict.fromkeys(SHARED, REQUIRED)


@dataclass(frozen=True, slots=True)
class Convolution(OpDef):
    """A row for a number of axes of space."""

    type: str
    dims: int
    doc: str
    schema = "(in, weight) -> out"
    attrs = _CONV_ATTRS


class Conv(Convolution):
    reference = staticmethod(conv_reference)
    work = staticmethod(lambda ctx: conv_work(ctx.outputs[0], ctx.inputs[1]))

    def infer(self, ctx: InferContext) -> Types:
        _check_common(ctx, self.dims)
        x, weight = ctx.inputs
        attrs, form = ctx.attrs, ctx.attrs["data_format"]
        _check_weight(ctx, weight, x.shape[channel_axis(self.dims + 2, form)])
        size = [x.shape[i] for i in space_axes(self.dims + 2, form)]
        pads = zip(attrs["padding_before"], padding_after(attrs), strict=True)
        columns = (attrs[key] for key in ("kernel_size", "strides", "dilation_rate"))
        windows = zip(size, *columns, pads, strict=True)
        space = tuple(window_output(n, k, s, pad, d) for n, k, s, d, pad in windows)
        ctx.check(
            min(space) >= 1,
            f"an output of {space} positions from input {x}",
            "an input, with its padding, at least as large as the dilated kernel",
        )
        return (with_space(x, form, weight.shape[0], space),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split batch, filters, channels (to P), axes of kernel size 1; pass P of one input."""
        axis, rows = _channels(ctx), _linear_in_both()
        if ctx.attrs["groups"] == 1:
            rows += [((B, S(0)), S(axis)), ((S(axis), S(axis)), P)]
        rows += [((S(i), B), S(i)) for i in _local(ctx, ctx.inputs[0], ctx.outputs[0])]
        return signatures(*rows)

    def gradient(self, g: GradContext) -> Gradients:
        x, weight = g.inputs
        return (
            _data_grad(g, g.dy, weight, x) if g.needed[0] else None,
            _filter_grad(g, g.dy, x) if g.needed[1] else None,
        )

    def samples(self, rng: Rng) -> Samples:
        return conv_samples(self.dims, rng)


class Deconv(Convolution):
    attrs = _CONV_ATTRS | {"output_padding": REQUIRED}
    reference = staticmethod(deconv_reference)
    work = staticmethod(lambda ctx: conv_work(ctx.inputs[0], ctx.inputs[1]))

    def infer(self, ctx: InferContext) -> Types:
        _check_common(ctx, self.dims)
        check_per_axis(ctx, self.dims, output_padding=0)
        x, weight = ctx.inputs
        attrs, form = ctx.attrs, ctx.attrs["data_format"]
        axis = channel_axis(self.dims + 2, form)
        channels = weight.shape[axis] * attrs["groups"]
        _check_weight(ctx, weight, channels)
        ctx.check(
            weight.shape[0] == x.shape[axis],
            f"input {x}, weights {weight}",
            f"weights with {x.shape[axis]} filters, one per channel of the input",
        )
        ctx.check(
            all(p < s for p, s in zip(attrs["output_padding"], attrs["strides"], strict=True)),
            f"output_padding={attrs['output_padding']}, strides={attrs['strides']}",
            "output_padding smaller than strides",
        )
        space = deconv_space(attrs, [x.shape[i] for i in space_axes(self.dims + 2, form)])
        ctx.check(min(space) >= 1, f"an output of {space} positions", "at least one per axis")
        return (with_space(x, form, channels, space),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Return the rules of a convolution with the roles of filters and channels exchanged."""
        axis, rows = _channels(ctx), _linear_in_both()
        if ctx.attrs["groups"] == 1:
            rows += [((B, S(axis)), S(axis)), ((S(axis), S(0)), P)]
        rows += [((S(i), B), S(i)) for i in _local(ctx, ctx.outputs[0], ctx.inputs[0])]
        return signatures(*rows)

    def gradient(self, g: GradContext) -> Gradients:
        x, weight = g.inputs
        return (
            _conv(g, g.dy, weight, x) if g.needed[0] else None,
            _filter_grad(g, x, g.dy) if g.needed[1] else None,
        )

    def samples(self, rng: Rng) -> Samples:
        return deconv_samples(self.dims, rng)


class ConvDataGrad(OpDef):
    """Gradient of a convolution with respect to its input."""

    schema = "conv_data_grad(dy, filter, x_like) -> dx"
    attrs = _GRAD_ATTRS
    reference = staticmethod(data_grad_reference)
    samples = staticmethod(data_grad_samples)
    work = staticmethod(lambda ctx: conv_work(ctx.inputs[0], ctx.inputs[1]))

    def infer(self, ctx: InferContext) -> Types:
        dims = ctx.attrs["num_spatial_dims"]
        _check_common(ctx, dims)
        dy, weight, x_like = ctx.inputs
        axis = channel_axis(dims + 2, ctx.attrs["data_format"])
        _check_weight(ctx, weight, x_like.shape[axis])
        ctx.check(
            dy.shape[axis] == weight.shape[0] and dy.shape[0] == x_like.shape[0],
            f"dy {dy}, weights {weight}, x_like {x_like}",
            "dy with a channel per filter and the batch of x_like",
        )
        return (x_like,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Allow P as well as B for ``x_like``, of which only the shape is read."""
        dy, _, x_like = ctx.inputs
        axis, shared = _channels(ctx), ctx.attrs["groups"] == 1
        rows: list[Row] = [((S(0), B, S(0)), S(0)), ((B, B, P), B)]
        for shape in (B, P):
            rows += [((P, B, shape), P), ((B, P, shape), P)]
            rows += [((S(axis), S(0), shape), P)] if shared else []
        rows += [((B, S(axis), S(axis)), S(axis))] if shared else []
        rows += [((S(i), B, S(i)), S(i)) for i in _local(ctx, x_like, dy)]
        return signatures(*rows)

    def gradient(self, g: GradContext) -> Gradients:
        dy, weight, _ = g.inputs
        return (
            _conv(g, g.dy, weight, dy) if g.needed[0] else None,
            _filter_grad(g, dy, g.dy) if g.needed[1] else None,
            None,
        )


class ConvFilterGrad(OpDef):
    """Gradient of a convolution with respect to its weights."""

    schema = "conv_filter_grad(dy, x) -> filter_diff"
    attrs = _GRAD_ATTRS
    reference = staticmethod(filter_grad_reference)
    samples = staticmethod(filter_grad_samples)
    work = staticmethod(lambda ctx: conv_work(ctx.inputs[0], ctx.outputs[0]))

    def infer(self, ctx: InferContext) -> Types:
        dims, form, groups = (ctx.attrs[k] for k in ("num_spatial_dims", "data_format", "groups"))
        _check_common(ctx, dims)
        dy, x = ctx.inputs
        axis = channel_axis(dims + 2, form)
        filters, channels = dy.shape[axis], x.shape[axis]
        ctx.check(
            filters % groups == 0 and channels % groups == 0 and dy.shape[0] == x.shape[0],
            f"dy {dy}, x {x}, groups={groups}",
            "one batch size, channels of both divisible by groups",
        )
        like = tensor_type((filters,), x.dtype)
        return (with_space(like, form, channels // groups, ctx.attrs["kernel_size"]),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        dy, x = ctx.inputs
        axis = _channels(ctx)
        rows: list[Row] = [((S(0), S(0)), P), ((P, B), P), ((B, P), P)]
        if ctx.attrs["groups"] == 1:
            rows += [((S(axis), B), S(0)), ((B, S(axis)), S(axis))]
        rows += [((S(i), S(i)), P) for i in _local(ctx, x, dy)]
        return signatures(*rows)

    def gradient(self, g: GradContext) -> Gradients:
        dy, x = g.inputs
        return (
            _conv(g, x, g.dy, dy) if g.needed[0] else None,
            _data_grad(g, dy, g.dy, x) if g.needed[1] else None,
        )


_DOC = "cross-correlation over {} axes of space."

OPS = specs(
    *(Conv(f"conv{n}d", n, _DOC.capitalize().format(n)) for n in DIMS),
    *(Deconv(f"deconv{n}d", n, f"Transposed {_DOC.format(n)}") for n in DIMS),
    ConvDataGrad,
    ConvFilterGrad,
)
