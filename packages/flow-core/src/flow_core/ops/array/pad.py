"""Ops that copy a tensor and fill its border (pads) or the part above its diagonal (tril)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import Shape
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import (
    floating,
    like_input,
    nondecreasing,
    nonincreasing,
    with_nondecreasing,
)
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import P, S, Signature, Signatures


def _padding(ctx: InferContext) -> list[tuple[int, int]]:
    before, after, x = ctx.attrs["padding_before"], ctx.attrs["padding_after"], ctx.inputs[0]
    rank = len(x.shape)
    ctx.check(
        len(before) == len(after) == rank and min((*before, *after), default=0) >= 0,
        f"padding {before} and {after} of {x}",
        f"{rank} numbers of at least 0 each",
    )
    return list(zip(before, after, strict=True))


def _pad_type(ctx: InferContext) -> tuple[TensorType, ...]:
    x = ctx.inputs[0]
    sizes = zip(x.shape, _padding(ctx), strict=True)
    return (tensor_type(tuple(n + sum(pad) for n, pad in sizes), x.dtype),)


def _pad_grad_type(ctx: InferContext) -> tuple[TensorType, ...]:
    dy = ctx.inputs[0]
    shape = tuple(n - sum(pad) for n, pad in zip(dy.shape, _padding(ctx), strict=True))
    ctx.check(min(shape, default=0) >= 0, f"{dy}", "a tensor larger than its padding")
    return (tensor_type(shape, dy.dtype),)


def pad_value(attrs: Mapping[str, AttrValue], floating: bool) -> Any:
    """Return the padding value as a number for floating types or for integer types."""
    return attrs["floating_constant_value" if floating else "integral_constant_value"]


def _unpadded(ctx: SbpContext) -> Signatures:
    pads = zip(ctx.attrs["padding_before"], ctx.attrs["padding_after"], strict=True)
    return tuple(Signature((S(i),), (S(i),)) for i, pad in enumerate(pads) if pad == (0, 0))


def _pad_sbp(ctx: SbpContext) -> Signatures:
    zero = not pad_value(ctx.attrs, ctx.inputs[0].dtype.is_floating)
    linear = zero or ctx.inputs[0] == ctx.outputs[0]
    sums = (Signature((P,), (P,)),) if linear else ()
    return (*_unpadded(ctx), *sums, *nondecreasing(ctx, 0))


def _pad_grad_sbp(ctx: SbpContext) -> Signatures:
    return (*_unpadded(ctx), Signature((P,), (P,)))


def _pad_gradient(g: GradContext) -> tuple[Sym]:
    """Emit pad_grad for pad, and pad for pad_grad; the padding value has the gradient 0."""
    other = "pad_grad" if g.op.type == "pad" else "pad"
    paddings = {key: g.attrs[key] for key in ("padding_before", "padding_after")}
    return (g.one(other, g.dy, **paddings),)


def _pad(x: Array, **attrs: AttrValue) -> Array:
    pads = tuple(zip(attrs["padding_before"], attrs["padding_after"], strict=True))
    return np.pad(x, pads, constant_values=pad_value(attrs, x.dtype.kind not in "iub"))


def unpadded(shape: Shape, before: Sequence[int], after: Sequence[int]) -> tuple[slice, ...]:
    """Return the numpy index of the unpadded elements in an array of the padded ``shape``."""
    return tuple(slice(b, n - a) for n, b, a in zip(shape, before, after, strict=True))


def _pad_grad(dy: Array, **attrs: AttrValue) -> Array:
    return dy[unpadded(dy.shape, attrs["padding_before"], attrs["padding_after"])]


def _pad_attrs(before: Shape, after: Shape, value: float = 0) -> dict[str, AttrValue]:
    return {
        "padding_before": before,
        "padding_after": after,
        "floating_constant_value": float(value),
        "integral_constant_value": int(value),
    }


def _pad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, before, after, value in (
        ((3, 4), (1, 0), (2, 0), 0), ((2, 3, 2), (0, 2, 1), (0, 0, 1), 1.5), ((3,), (0,), (2,), -1),
        ((2, 2), (0, 0), (0, 0), 3),
    ):  # fmt: skip
        yield Sample((rng.uniform(-3, 3, shape),), _pad_attrs(before, after, value))
    yield Sample((rng.integers(0, 9, (2, 3)),), _pad_attrs((1, 0), (0, 1), 7))


def _pad_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, before, after in (((6, 4), (1, 0), (2, 0)), ((4, 3), (1, 1), (0, 1))):
        yield Sample((rng.uniform(-3, 3, shape),), _pad_attrs(before, after))


PAD_ATTRS = {
    "padding_before": REQUIRED, "padding_after": REQUIRED,
    "floating_constant_value": 0.0, "integral_constant_value": 0,
}  # fmt: skip


def _reflection_type(ctx: InferContext) -> tuple[TensorType, ...]:
    x, padding = ctx.inputs[0], ctx.attrs["padding"]
    ctx.check(
        len(x.shape) == 4 and len(padding) == 4 and tuple(padding[:2]) == (0, 0),
        f"padding {padding} of {x}",
        "a tensor (N, C, H, W) and padding (0, 0, of H, of W)",
    )
    (*lead, h, w), (pad_h, pad_w) = x.shape, padding[2:]
    ctx.check(
        0 <= pad_h < h and 0 <= pad_w < w, f"padding {padding} of {x}", f"less than {h} and {w}"
    )
    return (tensor_type((*lead, h + 2 * pad_h, w + 2 * pad_w), x.dtype),)


def _reflection_grad_type(ctx: InferContext) -> tuple[TensorType, ...]:
    dy, padding = ctx.inputs[0], ctx.attrs["padding"]
    shape = tuple(n - 2 * pad for n, pad in zip(dy.shape, padding, strict=True))
    fits = all(n > pad for n, pad in zip(shape, padding, strict=True))
    ctx.check(len(shape) == 4 and fits, f"padding {padding} of gradient {dy}", "less than x")
    return (tensor_type(shape, dy.dtype),)


def _reflection_sbp(ctx: SbpContext) -> Signatures:
    axes = [i for i, pad in enumerate(ctx.attrs["padding"]) if pad == 0]
    return (*(Signature((S(i),), (S(i),)) for i in axes), Signature((P,), (P,)))


def _reflection_gradient(g: GradContext) -> tuple[Sym]:
    return (g.one("reflection_pad2d_grad", g.dy, padding=g.attrs["padding"]),)


def _reflection(x: Array, *, padding: Shape) -> Array:
    return np.pad(x, [(n, n) for n in padding], mode="reflect")


def _reflection_grad(dy: Array, *, padding: Shape) -> Array:
    shape = tuple(n - 2 * pad for n, pad in zip(dy.shape, padding, strict=True))
    source = _reflection(np.arange(int(np.prod(shape))).reshape(shape), padding=padding)
    dx = np.zeros(shape, dy.dtype)
    np.add.at(dx.reshape(-1), source.reshape(-1), dy.reshape(-1))
    return dx


def _reflection_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, h, w in (((2, 1, 4, 3), 2, 1), ((1, 2, 3, 5), 0, 4), ((1, 1, 2, 2), 1, 1)):
        yield Sample((rng.uniform(-3, 3, shape),), {"padding": (0, 0, h, w)})


def _reflection_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, h, w in (((2, 1, 8, 5), 2, 1), ((1, 2, 3, 7), 0, 2)):
        yield Sample((rng.uniform(-3, 3, shape),), {"padding": (0, 0, h, w)})


# ----------------------------------------------------------------------------------------- tril


def tril_value(attrs: Mapping[str, AttrValue], what: str) -> Any:
    """Return the "fill" or "scale" value of an op of the tril family."""
    kind = "floating" if attrs[f"is_floating_{what}_value"] else "integer"
    return attrs[f"{kind}_{what}_value"]


def _tril_type(ctx: InferContext) -> tuple[TensorType, ...]:
    ctx.check(len(ctx.inputs[0].shape) >= 2, str(ctx.inputs[0]), "a tensor of 2 axes or more")
    return like_input(ctx)


def _tril_sbp(ctx: SbpContext) -> Signatures:
    splits = tuple(Signature((S(i),), (S(i),)) for i in range(len(ctx.inputs[0].shape) - 2))
    linear = (Signature((P,), (P,)),) if tril_value(ctx.attrs, "fill") == 0 else ()
    scale = tril_value(ctx.attrs, "scale") if "integer_scale_value" in ctx.attrs else 1
    ordered = nondecreasing if scale > 0 else nonincreasing
    orders = scale and (floating(ctx) or scale == 1)  # because scaled integers wrap around
    return (*splits, *linear, *(ordered(ctx, 0) if orders else ()))


def _tril_gradient(g: GradContext) -> tuple[Sym]:
    kept = {k: v for k, v in g.attrs.items() if k == "diagonal" or "scale" in k}
    return (g.one(g.op.type, g.dy, **kept),)


def _tril(x: Array, **attrs: AttrValue) -> Any:
    scale = tril_value(attrs, "scale") if "integer_scale_value" in attrs else 1
    lower = np.tri(x.shape[-2], x.shape[-1], attrs["diagonal"], bool)
    scaled = x * np.array(scale).astype(x.dtype)
    return np.where(lower, scaled, tril_value(attrs, "fill")).astype(x.dtype)


def _tril_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, diagonal in (((4, 4), 0), ((2, 3, 5), 1), ((3, 2), -1), ((2, 2), -5)):
        yield Sample((rng.uniform(-3, 3, shape),), {"diagonal": diagonal})
    fill = {"floating_fill_value": -2.5, "is_floating_fill_value": True}
    yield Sample((rng.uniform(-3, 3, (3, 3)),), {"diagonal": 0, **fill})
    yield Sample((rng.integers(1, 9, (3, 4)),), {"diagonal": 0, "integer_fill_value": 7})


def _scaled_tril_samples(rng: np.random.Generator) -> Iterator[Sample]:
    scale = {"floating_scale_value": 0.5, "is_floating_scale_value": True}
    for sample in _tril_samples(rng):
        whole = sample.inputs[0].dtype.kind == "i"
        yield Sample(
            sample.inputs, {**sample.attrs, **({"integer_scale_value": 3} if whole else scale)}
        )


FILL = {"floating_fill_value": 0.0, "integer_fill_value": 0, "is_floating_fill_value": False}
SCALE = {"floating_scale_value": 1.0, "integer_scale_value": 1, "is_floating_scale_value": False}


def _tril_spec(name: str, attrs: dict[str, AttrValue], samples: Callable[[Any], Any]) -> OpSpec:
    return OpSpec(
        type=name,
        inputs=("in",),
        infer=_tril_type,
        attrs={"diagonal": REQUIRED, **attrs},
        sbp=_tril_sbp,
        gradient=_tril_gradient,
        reference=_tril,
        samples=samples,
        inplace=(0,),
    )


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="pad",
        inputs=("x",),
        outputs=("y",),
        infer=_pad_type,
        attrs=PAD_ATTRS,
        sbp=_pad_sbp,
        gradient=_pad_gradient,
        reference=_pad,
        samples=_pad_samples,
    ),
    OpSpec(
        type="pad_grad",
        inputs=("dy",),
        outputs=("dx",),
        infer=_pad_grad_type,
        attrs=PAD_ATTRS,
        sbp=_pad_grad_sbp,
        gradient=_pad_gradient,
        reference=_pad_grad,
        samples=_pad_grad_samples,
    ),
    OpSpec(
        type="reflection_pad2d",
        inputs=("x",),
        outputs=("y",),
        infer=_reflection_type,
        attrs={"padding": REQUIRED},
        sbp=with_nondecreasing(_reflection_sbp),
        gradient=_reflection_gradient,
        reference=_reflection,
        samples=_reflection_samples,
    ),
    OpSpec(
        type="reflection_pad2d_grad",
        inputs=("dy",),
        outputs=("dx",),
        infer=_reflection_grad_type,
        attrs={"padding": REQUIRED},
        sbp=_reflection_sbp,
        reference=_reflection_grad,
        samples=_reflection_grad_samples,
    ),
    _tril_spec("tril", FILL, _tril_samples),
    _tril_spec("fused_scale_tril", {**FILL, **SCALE}, _scaled_tril_samples),
)
