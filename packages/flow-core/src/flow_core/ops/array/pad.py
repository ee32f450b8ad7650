"""Ops that copy a tensor and fill its border (pads) or the part above its diagonal (tril)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import Shape
from flow_core.ir.graph import AttrValue, tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import (
    floating,
    like_input,
    nondecreasing,
    nonincreasing,
    signatures,
    split_axes,
    with_nondecreasing,
)
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import P, S, Signatures


def _padding(ctx: InferContext) -> list[tuple[int, int]]:
    before, after, x = ctx.attrs["padding_before"], ctx.attrs["padding_after"], ctx.inputs[0]
    rank = len(x.shape)
    ctx.check(
        len(before) == len(after) == rank and min((*before, *after), default=0) >= 0,
        f"padding {before} and {after} of {x}",
        f"{rank} numbers of at least 0 each",
    )
    return list(zip(before, after, strict=True))


def pad_value(attrs: Mapping[str, AttrValue], floating: bool) -> Any:
    """Return the padding value as a number for floating types or for integer types."""
    return attrs["floating_constant_value" if floating else "integral_constant_value"]


def _unpadded(ctx: SbpContext) -> Signatures:
    pads = zip(ctx.attrs["padding_before"], ctx.attrs["padding_after"], strict=True)
    return signatures(*((S(i), S(i)) for i, pad in enumerate(pads) if pad == (0, 0)))


def unpadded(shape: Shape, before: Sequence[int], after: Sequence[int]) -> tuple[slice, ...]:
    """Return the numpy index of the unpadded elements in an array of the padded ``shape``."""
    return tuple(slice(b, n - a) for n, b, a in zip(shape, before, after, strict=True))


def _pad_attrs(before: Shape, after: Shape, value: float = 0) -> dict[str, AttrValue]:
    values = {"floating_constant_value": float(value), "integral_constant_value": int(value)}
    return {"padding_before": before, "padding_after": after, **values}


PAD_ATTRS = {
    "padding_before": REQUIRED, "padding_after": REQUIRED,
    "floating_constant_value": 0.0, "integral_constant_value": 0,
}  # fmt: skip


class Padding(OpDef):
    """Padding, or its gradient; the padding value has the gradient 0."""

    attrs = PAD_ATTRS

    def gradient(self, g: GradContext) -> Gradients:
        other = "pad_grad" if g.op.type == "pad" else "pad"
        paddings = {key: g.attrs[key] for key in ("padding_before", "padding_after")}
        return (g.one(other, g.dy, **paddings),)


class Pad(Padding):
    schema = "pad(x) -> y"

    def infer(self, ctx: InferContext) -> Types:
        x = ctx.inputs[0]
        sizes = zip(x.shape, _padding(ctx), strict=True)
        return (tensor_type(tuple(n + sum(pad) for n, pad in sizes), x.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        zero = not pad_value(ctx.attrs, ctx.inputs[0].dtype.is_floating)
        linear = zero or ctx.inputs[0] == ctx.outputs[0]
        sums = ((P, P),) if linear else ()
        return signatures(*_unpadded(ctx), *sums, *nondecreasing(ctx, 0))

    def reference(self, x: Array, **attrs: AttrValue) -> Array:
        pads = tuple(zip(attrs["padding_before"], attrs["padding_after"], strict=True))
        return np.pad(x, pads, constant_values=pad_value(attrs, x.dtype.kind not in "iub"))

    def samples(self, rng: Rng) -> Samples:
        for shape, before, after, value in (
            ((3, 4), (1, 0), (2, 0), 0), ((2, 3, 2), (0, 2, 1), (0, 0, 1), 1.5),
            ((3,), (0,), (2,), -1), ((2, 2), (0, 0), (0, 0), 3),
        ):  # fmt: skip
            yield Sample((rng.uniform(-3, 3, shape),), _pad_attrs(before, after, value))
        yield Sample((rng.integers(0, 9, (2, 3)),), _pad_attrs((1, 0), (0, 1), 7))


class PadGrad(Padding):
    schema = "pad_grad(dy) -> dx"
    sbp = staticmethod(lambda ctx: signatures(*_unpadded(ctx), (P, P)))

    def infer(self, ctx: InferContext) -> Types:
        dy = ctx.inputs[0]
        shape = tuple(n - sum(pad) for n, pad in zip(dy.shape, _padding(ctx), strict=True))
        ctx.check(min(shape, default=0) >= 0, f"{dy}", "a tensor larger than its padding")
        return (tensor_type(shape, dy.dtype),)

    def reference(self, dy: Array, **attrs: AttrValue) -> Array:
        return dy[unpadded(dy.shape, attrs["padding_before"], attrs["padding_after"])]

    def samples(self, rng: Rng) -> Samples:
        for shape, before, after in (((6, 4), (1, 0), (2, 0)), ((4, 3), (1, 1), (0, 1))):
            yield Sample((rng.uniform(-3, 3, shape),), _pad_attrs(before, after))


def _reflection_sbp(ctx: SbpContext) -> Signatures:
    axes = [i for i, pad in enumerate(ctx.attrs["padding"]) if pad == 0]
    return signatures(*((S(i), S(i)) for i in axes), (P, P))


def _reflection(x: Array, *, padding: Shape) -> Array:
    return np.pad(x, [(n, n) for n in padding], mode="reflect")


def _image_padding(ctx: InferContext) -> Shape:
    x, padding = ctx.inputs[0], ctx.attrs["padding"]
    fits = len(x.shape) == len(padding) == 4 and (*padding[:2], min(padding)) == (0, 0, 0)
    allowed = "a tensor (N, C, H, W) and padding (0, 0, of H, of W)"
    ctx.check(fits, f"padding {padding} of {x}", allowed)
    return tuple(padding)


class ReflectionPad2d(OpDef):
    schema = "reflection_pad2d(x) -> y"
    attrs = {"padding": REQUIRED}
    sbp = staticmethod(with_nondecreasing(_reflection_sbp))
    reference = staticmethod(_reflection)

    def infer(self, ctx: InferContext) -> Types:
        x, padding = ctx.inputs[0], _image_padding(ctx)
        (*lead, h, w), (pad_h, pad_w) = x.shape, padding[2:]
        fits = pad_h < h and pad_w < w
        ctx.check(fits, f"padding {padding} of {x}", f"less than {h} and {w}")
        return (tensor_type((*lead, h + 2 * pad_h, w + 2 * pad_w), x.dtype),)

    def gradient(self, g: GradContext) -> Gradients:
        return (g.one("reflection_pad2d_grad", g.dy, padding=g.attrs["padding"]),)

    def samples(self, rng: Rng) -> Samples:
        for shape, h, w in (((2, 1, 4, 3), 2, 1), ((1, 2, 3, 5), 0, 4), ((1, 1, 2, 2), 1, 1)):
            yield Sample((rng.uniform(-3, 3, shape),), {"padding": (0, 0, h, w)})


class ReflectionPad2dGrad(OpDef):
    schema = "reflection_pad2d_grad(dy) -> dx"
    attrs = {"padding": REQUIRED}
    sbp = staticmethod(_reflection_sbp)

    def infer(self, ctx: InferContext) -> Types:
        dy, padding = ctx.inputs[0], _image_padding(ctx)
        shape = tuple(n - 2 * pad for n, pad in zip(dy.shape, padding, strict=True))
        fits = all(n > pad for n, pad in zip(shape[2:], padding[2:], strict=True))
        ctx.check(fits, f"padding {padding} of gradient {dy}", "less than x")
        return (tensor_type(shape, dy.dtype),)

    def reference(self, dy: Array, *, padding: Shape) -> Array:
        shape = tuple(n - 2 * pad for n, pad in zip(dy.shape, padding, strict=True))
        source = _reflection(np.arange(int(np.prod(shape))).reshape(shape), padding=padding)
        dx = np.zeros(shape, dy.dtype)
        np.add.at(dx.reshape(-1), source.reshape(-1), dy.reshape(-1))
        return dx

    def samples(self, rng: Rng) -> Samples:
        for shape, h, w in (((2, 1, 8, 5), 2, 1), ((1, 2, 3, 7), 0, 2)):
            yield Sample((rng.uniform(-3, 3, shape),), {"padding": (0, 0, h, w)})


def tril_value(attrs: Mapping[str, AttrValue], what: str) -> Any:
    """Return the "fill" or "scale" value of an op of the tril family."""
    kind = "floating" if attrs[f"is_floating_{what}_value"] else "integer"
    return attrs[f"{kind}_{what}_value"]


FILL = {"floating_fill_value": 0.0, "integer_fill_value": 0, "is_floating_fill_value": False}
SCALE = {"floating_scale_value": 1.0, "integer_scale_value": 1, "is_floating_scale_value": False}


class Tril(OpDef):
    schema = "tril(in) -> out"
    attrs = {"diagonal": REQUIRED, **FILL}
    inplace = (0,)

    def infer(self, ctx: InferContext) -> Types:
        ctx.check(len(ctx.inputs[0].shape) >= 2, str(ctx.inputs[0]), "a tensor of 2 axes or more")
        return like_input(ctx)

    def sbp(self, ctx: SbpContext) -> Signatures:
        splits = split_axes(ctx, range(len(ctx.inputs[0].shape) - 2))
        linear = signatures((P, P)) if tril_value(ctx.attrs, "fill") == 0 else ()
        scale = tril_value(ctx.attrs, "scale") if "integer_scale_value" in ctx.attrs else 1
        ordered = nondecreasing if scale > 0 else nonincreasing
        orders = scale and (floating(ctx) or scale == 1)  # because scaled integers wrap around
        return (*splits, *linear, *(ordered(ctx, 0) if orders else ()))

    def gradient(self, g: GradContext) -> Gradients:
        kept = {k: v for k, v in g.attrs.items() if k == "diagonal" or "scale" in k}
        return (g.one(g.op.type, g.dy, **kept),)

    def reference(self, x: Array, **attrs: AttrValue) -> Any:
        scale = tril_value(attrs, "scale") if "integer_scale_value" in attrs else 1
        lower = np.tri(x.shape[-2], x.shape[-1], attrs["diagonal"], bool)
        scaled = x * np.array(scale).astype(x.dtype)
        return np.where(lower, scaled, tril_value(attrs, "fill")).astype(x.dtype)

    def samples(self, rng: Rng) -> Samples:
        for shape, diagonal in (((4, 4), 0), ((2, 3, 5), 1), ((3, 2), -1), ((2, 2), -5)):
            yield Sample((rng.uniform(-3, 3, shape),), {"diagonal": diagonal})
        fill = {"floating_fill_value": -2.5, "is_floating_fill_value": True}
        yield Sample((rng.uniform(-3, 3, (3, 3)),), {"diagonal": 0, **fill})
        yield Sample((rng.integers(1, 9, (3, 4)),), {"diagonal": 0, "integer_fill_value": 7})


class FusedScaleTril(Tril):
    schema = "fused_scale_tril(in) -> out"
    attrs = {**Tril.attrs, **SCALE}

    def samples(self, rng: Rng) -> Samples:
        scale = {"floating_scale_value": 0.5, "is_floating_scale_value": True}
        for sample in super().samples(rng):
            whole = sample.inputs[0].dtype.kind == "i"
            attrs = {"integer_scale_value": 3} if whole else scale
            yield Sample(sample.inputs, {**sample.attrs, **attrs})


OPS = specs(Pad, PadGrad, ReflectionPad2d, ReflectionPad2dGrad, Tril, FusedScaleTril)
