"""Batch, layer and L2 normalization.

For float16 and bfloat16 tensors, statistics are float32; parameters are usually float32, too, but
may also have the tensor's type.  ``inv_variance`` is 1 / sqrt(variance + epsilon).
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import Shape, normal_axis
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.nn import l2_normalize
from flow_core.ops.rules import Row, checked_axis, floating_like_input, signatures
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Signatures


def _statistic(x: TensorType, shape: Shape) -> TensorType:
    return tensor_type(shape, x.dtype.accumulate)


def _check_vectors(ctx: InferContext, x: TensorType, first: int, names: str, shape: Shape) -> None:
    """Validate the inputs from ``first`` on, which are parameters or statistics of one shape."""
    types = (x.dtype, x.dtype.accumulate)
    for name, found in zip(names.split(), ctx.inputs[first:], strict=True):
        ctx.check(
            found.shape == shape and found.dtype in types,
            f"{name} {found} for x {x}",
            f"shape {shape} and type {' or '.join(sorted({str(t) for t in types}))}",
        )


def _check_attribute(ctx: InferContext, name: str, low: float, high: float) -> None:
    value = ctx.attrs[name]
    ctx.check(low <= value <= high, f"{name}={value}", f"{low} <= {name} <= {high}")


# --- batch normalization


def channel_shape(x_shape: Shape, axis: int) -> Shape:
    """Return the shape that makes a vector along ``axis`` broadcast to the shape of x.

    >>> channel_shape((2, 3, 4, 4), 1)
    (1, 3, 1, 1)
    """
    axis %= len(x_shape)
    return tuple(n if i == axis else 1 for i, n in enumerate(x_shape))


def _channel_and_others(ctx: SbpContext) -> tuple[int, list[int]]:
    rank = len(ctx.inputs[0].shape)
    axis = ctx.attrs["axis"] % rank
    return axis, [i for i in range(rank) if i != axis]


def _through_statistics(
    g: GradContext,
    dx: Sym,
    shape: Shape,
    statistics: tuple[Sym, Sym],
    grads: tuple[Sym | None, Sym | None],
) -> Sym:
    """Add the gradient through the outputs mean and inv_variance, which few programs use."""
    (mean, inverse), (d_mean, d_inverse) = statistics, grads
    count = max(prod(g.x.shape) // max(prod(shape), 1), 1)  # without rows, any value is valid
    if d_mean is not None:
        dx = dx + _broadcastable(g, d_mean, shape) / count
    if d_inverse is not None:
        slope = _broadcastable(g, d_inverse * inverse * inverse * inverse, shape)
        dx = dx - (g.x - _broadcastable(g, mean, shape)) * slope / count
    return dx


def _broadcastable(g: GradContext, vector: Sym, shape: Shape) -> Sym:
    wide = g.one("reshape", vector, shape=shape)
    return wide if wide.dtype is g.x.dtype else g.one("cast", wide, dtype=g.x.dtype.name)


BATCH_SHAPES = (((4, 3, 2, 5), 1), ((3, 2, 3, 4), -1), ((6, 5), 1), ((5, 2, 3), 1), ((2, 7), 0))


class Normalization(OpDef):
    """Batch normalization.  In training, moving = moving * momentum + batch * (1 - momentum) with
    the unbiased variance; else the moving statistics are used and not changed.
    """

    schema = "normalization(x, moving_mean, moving_variance, gamma, beta) -> y, mean, inv_variance"
    attrs = {"axis": REQUIRED, "training": REQUIRED, "epsilon": 1e-5, "momentum": 0.9}
    inplace = (0,)
    mutates = (1, 2)
    mutates_if = "training"

    def infer(self, ctx: InferContext) -> Types:
        (x,) = floating_like_input(ctx)
        axis = checked_axis(ctx, ctx.attrs["axis"], len(x.shape))
        vector = (x.shape[axis],)
        holds = x.size or not x.shape[axis] or not ctx.attrs["training"]
        ctx.check(holds, f"nothing to normalize in {x}", "at least one element per channel")
        _check_vectors(ctx, x, 1, "moving_mean moving_variance gamma beta", vector)
        _check_attribute(ctx, "epsilon", 0.0, float("inf"))
        _check_attribute(ctx, "momentum", 0.0, 1.0)
        return x, _statistic(x, vector), _statistic(x, vector)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split all axes, but in training only the channels: statistics need the whole batch."""
        axis, others = _channel_and_others(ctx)
        fixed: tuple[Row, ...] = () if ctx.attrs["training"] else (
            *(((S(i), B, B, B, B), (S(i), B, B)) for i in others),
            ((P, P, B, B, P), (P, P, B)),
        )  # fmt: skip
        return signatures(
            ((S(axis), S(0), S(0), S(0), S(0)), (S(axis), S(0), S(0))),
            ((B, B, B, P, P), (P, B, B)),
            *fixed,
            *(((B, B, B, B, kind), (kind, B, B)) for kind in EXTREMES),
        )

    def gradient(self, g: GradContext) -> Gradients:
        """Emit one op for dx, dgamma and dbeta; moving statistics have no gradient."""
        x, _, _, gamma, _ = g.inputs
        (_, mean, inv_variance), (dy, d_mean, d_inverse) = g.outputs, g.grads
        attrs = {key: g.attrs[key] for key in ("axis", "epsilon", "training")}
        dy = g.y * 0.0 if dy is None else dy
        dx, d_gamma, d_beta = g.all("normalization_grad", x, dy, mean, inv_variance, gamma, **attrs)
        if g.attrs["training"]:
            shape = channel_shape(x.shape, attrs["axis"])
            dx = _through_statistics(g, dx, shape, (mean, inv_variance), (d_mean, d_inverse))
        return dx, None, None, d_gamma, d_beta

    def reference(
        self, x: Array, moving_mean: Array, moving_variance: Array, gamma: Array, beta: Array, *,
        axis: int, epsilon: float, training: bool, momentum: float,
    ) -> tuple[Array, ...]:  # fmt: skip
        mean, variance = moving_mean, moving_variance
        moving: tuple[Array, ...] = (mean, variance)
        if training:
            others = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
            mean, variance = x.mean(others), x.var(others)
            count = x.size // max(mean.size, 1)
            unbiased = variance * count / max(count - 1, 1)
            rows = (moving_mean, mean), (moving_variance, unbiased)
            moving = tuple(momentum * old + (1 - momentum) * new for old, new in rows)
        inverse = 1 / np.sqrt(variance + epsilon)
        shape = channel_shape(x.shape, axis)
        m, k, b = (v.reshape(shape) for v in (mean, inverse * gamma, beta))
        return (x - m) * k + b, mean, inverse, *moving

    def samples(self, rng: Rng) -> Samples:
        for (shape, axis), training in product(BATCH_SHAPES, (True, False)):
            n = shape[axis]
            x, spread = rng.normal(0.5, 1.5, shape), rng.uniform(0.5, 2, n)
            vectors = rng.normal(0, 1, n), spread, rng.uniform(0.5, 1.5, n), rng.normal(0, 1, n)
            attrs = {"axis": axis, "training": training, "epsilon": 1e-3, "momentum": 0.75}
            yield Sample((x, *vectors), attrs)
        arrays = np.zeros((0, 3)), *[np.ones(3)] * 4
        yield Sample(arrays, {"axis": 1, "training": False}, gradient=False, note="no rows")


class NormalizationGrad(OpDef):
    schema = "normalization_grad(x, dy, mean, inv_variance, gamma) -> dx, gamma_diff, beta_diff"
    attrs = {"axis": REQUIRED, "epsilon": 1e-5, "training": True}
    inplace = (0,)

    def infer(self, ctx: InferContext) -> Types:
        (x,) = floating_like_input(ctx)
        ctx.check(ctx.inputs[1] == x, f"dy {ctx.inputs[1]} for x {x}", str(x))
        axis = checked_axis(ctx, ctx.attrs["axis"], len(x.shape))
        _check_vectors(ctx, x, 2, "mean inv_variance gamma", (x.shape[axis],))
        gamma = ctx.inputs[4]
        return x, gamma, gamma

    def sbp(self, ctx: SbpContext) -> Signatures:
        axis, others = _channel_and_others(ctx)
        fixed: tuple[Row, ...] = () if ctx.attrs["training"] else (
            *(((S(i), S(i), B, B, B), (S(i), P, P)) for i in others),
            ((B, B, B, P, B), (P, P, B)),
            ((P, B, P, B, B), (B, P, B)),
            ((P, B, P, B, P), (P, P, B)),
        )  # fmt: skip
        return signatures(
            ((S(axis), S(axis), S(0), S(0), S(0)), (S(axis), S(0), S(0))),
            ((B, P, B, B, B), (P, P, P)),
            ((B, B, B, B, P), (P, B, B)),
            *fixed,
        )

    def reference(
        self, x: Array, dy: Array, mean: Array, inv_variance: Array, gamma: Array, *,
        axis: int, epsilon: float, training: bool,
    ) -> Any:  # fmt: skip
        others = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
        shape = channel_shape(x.shape, axis)
        m, r, k = (v.reshape(shape) for v in (mean, inv_variance, gamma * inv_variance))
        normal = (x - m) * r
        d_gamma, d_beta = (normal * dy).sum(others), dy.sum(others)
        if not training:
            return dy * k, d_gamma, d_beta
        count = x.size / x.shape[axis]
        inner = dy - d_beta.reshape(shape) / count - normal * d_gamma.reshape(shape) / count
        return inner * k, d_gamma, d_beta

    def samples(self, rng: Rng) -> Samples:
        for (shape, axis), training in product(BATCH_SHAPES, (True, False)):
            n = shape[axis]
            x, dy = rng.normal(0.5, 1.5, shape), rng.normal(0, 1, shape)
            vectors = rng.normal(0, 1, n), rng.uniform(0.5, 2, n), rng.uniform(0.5, 1.5, n)
            attrs = {"axis": axis, "training": training}
            yield Sample((x, dy, *vectors), attrs, gradient=False)


# --- layer normalization


def layer_axes(rank: int, attrs: Attributes) -> tuple[int, int]:
    """Return begin_norm_axis and begin_params_axis as non-negative numbers."""
    norm, params = attrs["begin_norm_axis"], attrs["begin_params_axis"]
    return normal_axis(norm, rank), normal_axis(params, rank)


def _checked_layer_axis(ctx: InferContext, name: str) -> int:
    return checked_axis(ctx, ctx.attrs[name], len(ctx.inputs[0].shape))


def _checked_rows(ctx: InferContext) -> int:
    """Return the first axis over which rows are normalized; rows must have elements."""
    x, norm = ctx.inputs[0], _checked_layer_axis(ctx, "begin_norm_axis")
    found = f"nothing to normalize in {x}"
    ctx.check(prod(x.shape[norm:]), found, "at least one element per row")
    return norm


def _layer_norm_dx(g: GradContext, dy: Sym, gamma: Sym | None) -> Sym:
    _, mean, inverse = g.outputs
    norm, _ = layer_axes(len(g.x.shape), g.attrs)
    attrs = {"begin_norm_axis": norm, "epsilon": g.attrs["epsilon"]}
    dy = dy if gamma is None else dy * _cast(g, gamma, dy)
    dx = g.one("layer_norm_grad", dy, g.x, mean, inverse, **attrs)
    shape = (*g.x.shape[:norm], *(1,) * (len(g.x.shape) - norm))
    return _through_statistics(g, dx, shape, (mean, inverse), (g.grads[1], g.grads[2]))


def _beta_grad(g: GradContext, dy: Sym) -> Sym:
    _, params = layer_axes(len(dy.shape), g.attrs)
    leading = tuple(range(params))
    total = g.one("reduce_sum", dy, axis=leading, keepdims=False) if leading else dy
    return _cast(g, total, g.inputs[1])


def _gamma_grad(g: GradContext, dy: Sym, x: Sym, gamma: Sym) -> Sym:
    norm, params = layer_axes(len(x.shape), g.attrs)
    axes = {"begin_norm_axis": norm, "begin_params_axis": params}
    _, mean, inverse = g.outputs
    return _cast(g, g.one("layer_norm_gamma_grad", dy, x, mean, inverse, **axes), gamma)


def _cast(g: GradContext, value: Sym, like: Sym) -> Sym:
    return value if value.dtype is like.dtype else g.one("cast", value, dtype=like.dtype.name)


def _with_trailing_axes(vector: Array, like: Array) -> Array:
    """Return a per-row statistic with axes of size 1 appended."""
    return vector.reshape(vector.shape + (1,) * (like.ndim - vector.ndim))


LAYER_SHAPES = (((4, 5), 1, -1), ((2, 3, 4), 1, -1), ((2, 3, 4), -1, 1), ((3, 2, 2), 2, 2))


class LayerNorm(OpDef):
    """Normalize the axes from begin_norm_axis on.  Inputs: x, beta if center, gamma if scale; both
    have the shape of x from begin_params_axis on.
    """

    schema = "layer_norm(x, beta?, gamma?) -> y, mean, inv_variance"
    attrs = {
        "center": True, "scale": True, "begin_norm_axis": 1, "begin_params_axis": -1,
        "epsilon": 1e-5,
    }  # fmt: skip
    inplace = (0,)

    def infer(self, ctx: InferContext) -> Types:
        (x,) = floating_like_input(ctx)
        norm = _checked_rows(ctx)
        params = _checked_layer_axis(ctx, "begin_params_axis")
        rows = ("center", "beta"), ("scale", "gamma")
        wanted = [param for flag, param in rows if ctx.attrs[flag]]
        ctx.check(
            len(ctx.inputs) == 1 + len(wanted),
            f"{len(ctx.inputs) - 1} parameters",
            f"{' and '.join(wanted) or 'no parameters'}, as center and scale say",
        )
        _check_vectors(ctx, x, 1, " ".join(wanted), x.shape[params:])
        _check_attribute(ctx, "epsilon", 0.0, float("inf"))
        statistic = _statistic(x, x.shape[:norm])
        return x, statistic, statistic

    def sbp(self, ctx: SbpContext) -> Signatures:
        norm, params = layer_axes(len(ctx.inputs[0].shape), ctx.attrs)
        n, rest = len(ctx.inputs) - 1, (B,) * (len(ctx.inputs) - 2)
        splits = ((S(i), S(i - params) if i >= params else B) for i in range(norm))
        linear: tuple[Row, ...] = (((B, *(P,) * n), (P, B, B)),) if ctx.attrs["scale"] else ()
        kinds = EXTREMES if ctx.attrs["center"] else ()
        shifted: list[Row] = [((B, kind, *rest), (kind, B, B)) for kind in kinds]
        return signatures(*(((x, *(p,) * n), (x, x, x)) for x, p in splits), *linear, *shifted)

    def gradient(self, g: GradContext) -> Gradients:
        x, params = g.inputs[0], list(g.inputs[1:])
        gamma = params.pop() if g.attrs["scale"] else None
        dy = g.y * 0.0 if g.grads[0] is None else g.grads[0]
        grads = [_layer_norm_dx(g, dy, gamma) if g.needed[0] else None]
        if g.attrs["center"]:
            grads.append(_beta_grad(g, dy) if g.needed[1] else None)
        if gamma is not None:
            grads.append(_gamma_grad(g, dy, x, gamma) if g.needed[-1] else None)
        return grads

    def reference(
        self, x: Array, *params: Array, center: bool, scale: bool,
        begin_norm_axis: int, begin_params_axis: int, epsilon: float,
    ) -> tuple[Array, ...]:  # fmt: skip
        axes = tuple(range(normal_axis(begin_norm_axis, x.ndim), x.ndim))
        mean, inverse = x.mean(axes), 1 / np.sqrt(x.var(axes) + epsilon)
        y = _normal(x, mean, inverse)
        y = y * params[-1] if scale else y
        return y + params[0] if center else y, mean, inverse

    def samples(self, rng: Rng) -> Samples:
        for shape, norm, params in LAYER_SHAPES:
            axes = {"begin_norm_axis": norm, "begin_params_axis": params}
            for flags in range(4):
                center, scale = bool(flags & 1), bool(flags & 2)
                x = rng.normal(0.5, 1.5, shape)
                vectors = tuple(rng.normal(1, 0.5, shape[params:]) for _ in range(center + scale))
                epsilon = 0.5 if center else 1e-5
                attrs = {**axes, "center": center, "scale": scale, "epsilon": epsilon}
                yield Sample((x, *vectors), attrs)
        bare = {"center": False, "scale": False}
        yield Sample((rng.normal(0, 1, (0, 3)),), bare, gradient=False, note="no rows")
        yield Sample((rng.normal(0, 1, (6,)),), {**bare, "begin_norm_axis": 0}, note="one row")


def _normal(x: Array, mean: Array, inv_variance: Array) -> Array:
    return (x - _with_trailing_axes(mean, x)) * _with_trailing_axes(inv_variance, x)


class FromStatistics(OpDef):
    """A gradient that is computed from the statistics of a layer normalization."""

    def infer(self, ctx: InferContext) -> Types:
        (dy,) = floating_like_input(ctx)
        ctx.check(ctx.inputs[1] == dy, f"x {ctx.inputs[1]} for dy {dy}", str(dy))
        norm = _checked_rows(ctx)
        _check_vectors(ctx, dy, 2, "mean inv_variance", dy.shape[:norm])
        return (dy,)

    def samples(self, rng: Rng) -> Samples:
        for shape, norm, params in LAYER_SHAPES:
            rows = shape[: normal_axis(norm, len(shape))]
            attrs = {"begin_norm_axis": norm, "begin_params_axis": params}
            arrays = rng.normal(0, 1, shape), rng.normal(0, 1, shape), rng.normal(0, 1, rows)
            own = {key: value for key, value in attrs.items() if key in self.attrs}
            yield Sample((*arrays, rng.uniform(0.5, 1.5, rows)), own, gradient=False)


class LayerNormGrad(FromStatistics):
    """dx, where dy is the gradient of the normalized values (before gamma)."""

    schema = "layer_norm_grad(dy, x, mean, inv_variance) -> dx"
    attrs = {"begin_norm_axis": 1, "epsilon": 1e-5}
    inplace = (1,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        norm = normal_axis(ctx.attrs["begin_norm_axis"], len(ctx.inputs[0].shape))
        return signatures(*(((S(i),) * 4, (S(i),)) for i in range(norm)), ((P, B, B, B), (P,)))

    def reference(
        self, dy: Array, x: Array, mean: Array, inv_variance: Array, **attrs: AttrValue
    ) -> Any:
        axes = tuple(range(normal_axis(attrs["begin_norm_axis"], x.ndim), x.ndim))
        normal = _normal(x, mean, inv_variance)
        rest = dy.mean(axes, keepdims=True) + normal * (dy * normal).mean(axes, keepdims=True)
        return _with_trailing_axes(inv_variance, x) * (dy - rest)


class LayerNormGammaGrad(FromStatistics):
    """The sum of dy times the recomputed normalized values."""

    schema = "layer_norm_gamma_grad(dy, x, mean, inv_variance) -> gamma_diff"
    attrs = {"begin_norm_axis": 1, "begin_params_axis": -1}

    def infer(self, ctx: InferContext) -> Types:
        (dy,) = super().infer(ctx)
        params = _checked_layer_axis(ctx, "begin_params_axis")
        return (tensor_type(dy.shape[params:], dy.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        norm, params = layer_axes(len(ctx.inputs[0].shape), ctx.attrs)
        rank = len(ctx.inputs[0].shape)
        splits = ((i, S(i), S(i - params) if i >= params else P) for i in range(rank))
        return signatures(
            *(((x, x, x, x) if i < norm else (x, x, B, B), (out,)) for i, x, out in splits),
            ((P, B, B, B), (P,)),
            ((B, P, P, B), (P,)),
            ((B, B, B, P), (P,)),
        )

    def reference(
        self, dy: Array, x: Array, mean: Array, inv_variance: Array, **attrs: AttrValue
    ) -> Any:
        leading = tuple(range(normal_axis(attrs["begin_params_axis"], x.ndim)))
        return (dy * _normal(x, mean, inv_variance)).sum(leading)


class LayerNormParamGrad(OpDef):
    schema = (
        "layer_norm_param_grad(dy, normalized, gamma) -> normalized_diff, beta_diff, gamma_diff"
    )
    attrs = {"begin_params_axis": -1}
    inplace = (0,)

    def infer(self, ctx: InferContext) -> Types:
        (dy,) = floating_like_input(ctx)
        ctx.check(ctx.inputs[1] == dy, f"normalized {ctx.inputs[1]} for dy {dy}", str(dy))
        params = _checked_layer_axis(ctx, "begin_params_axis")
        _check_vectors(ctx, dy, 2, "gamma", dy.shape[params:])
        gamma = ctx.inputs[2]
        return dy, gamma, gamma

    def sbp(self, ctx: SbpContext) -> Signatures:
        rank = len(ctx.inputs[0].shape)
        params = normal_axis(ctx.attrs["begin_params_axis"], rank)
        own = ((S(i), S(i - params)) for i in range(params, rank))
        return signatures(
            *(((S(i), S(i), B), (S(i), P, P)) for i in range(params)),
            *(((x, x, vector), (x, vector, vector)) for x, vector in own),
            ((P, B, B), (P, P, P)),
            ((B, P, B), (B, B, P)),
            ((B, B, P), (P, B, B)),
            ((B, P, P), (P, B, P)),
        )

    def reference(
        self, dy: Array, normalized: Array, gamma: Array, *, begin_params_axis: int
    ) -> tuple[Array, ...]:
        leading = tuple(range(normal_axis(begin_params_axis, dy.ndim)))
        return dy * gamma, dy.sum(leading), (dy * normalized).sum(leading)

    def samples(self, rng: Rng) -> Samples:
        for shape, _, params in LAYER_SHAPES:
            dy, normalized = rng.normal(0, 1, shape), rng.normal(0, 1, shape)
            gamma = rng.normal(1, 0.5, shape[params:])
            yield Sample((dy, normalized, gamma), {"begin_params_axis": params}, gradient=False)


OPS: tuple[OpSpec, ...] = (
    *specs(
        Normalization,
        NormalizationGrad,
        LayerNorm,
        LayerNormGrad,
        LayerNormGammaGrad,
        LayerNormParamGrad,
    ),
    *l2_normalize.SPECS,
)
