"""Kernels of layer and batch normalization."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_cuda.codegen.elementwise import Group, Step
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import Read, call
from flow_cuda.kernels.binding import c_type, call_rows, kernel
from flow_cuda.kernels.columns import Matrix, column_sums
from flow_cuda.kernels.elementwise import launch_group

HEADER = "norm.h"
HEADERS = ("row.h", HEADER)


def _axis(ctx: BindContext, name: str) -> int:
    axis: int = ctx.attrs[name]
    return axis % len(ctx.query.inputs[0].shape)


def _outer_and_inner(ctx: BindContext, name: str) -> tuple[int, int]:
    """Return the product of the sizes before an axis, and the product of the other sizes."""
    shape, axis = ctx.query.inputs[0].shape, _axis(ctx, name)
    return prod(shape[:axis]), prod(shape[axis:])


def _layer_norm(ctx: BindContext) -> Launch:
    x, *params = map(Read, ctx.inputs)
    kind, statistic = c_type(ctx.query.inputs[0]), c_type(ctx.query.outputs[1])
    own = c_type(ctx.query.inputs[-1]) if params else kind
    nothing = Read(None, own)
    gamma = params.pop() if ctx.attrs["scale"] else nothing
    beta = params.pop() if ctx.attrs["center"] else nothing
    rows, n = _outer_and_inner(ctx, "begin_norm_axis")
    period = _outer_and_inner(ctx, "begin_params_axis")[1]
    values = (x, beta, gamma, *ctx.outputs, rows, n, period, ctx.attrs["epsilon"])
    wide = (ctx.inputs[0], ctx.outputs[0], *ctx.inputs[1:])
    has = ("true" if ctx.attrs[name] else "false" for name in ("scale", "center"))
    types, extent = (kind, own, statistic, *has), (rows, n, 1)
    sizes = (period,) * (len(wide) > 2)
    return call_rows("layer_norm", HEADER, types, wide, *values, extent=extent, sizes=sizes)


def _layer_norm_grad(ctx: BindContext) -> Launch:
    rows, n = _outer_and_inner(ctx, "begin_norm_axis")
    types = (c_type(ctx.query.inputs[0]), c_type(ctx.query.inputs[2]))
    values = (*map(Read, ctx.inputs), *ctx.outputs, rows, n)
    wide = (*ctx.inputs[:2], *ctx.outputs)
    return call_rows("layer_norm_grad", HEADER, types, wide, *values, extent=(rows, n, 1))


def _params(query: KernelQuery) -> Matrix:
    """View the input as a matrix; the parameters apply to each of its rows."""
    x, axis = query.inputs[0], query.attrs["begin_params_axis"]
    return Matrix.of(x, prod(x.shape[axis:]))


def _sums_bytes(query: KernelQuery) -> int:
    return _params(query).nbytes


def _gamma_grad(ctx: BindContext) -> Sequence[Launch]:
    n, matrix = _outer_and_inner(ctx, "begin_norm_axis")[1], _params(ctx.query)
    result = (ctx.outputs[0], ctx.query.outputs[0])
    return tuple(column_sums("TimesNormal", matrix, ctx.inputs, result, ctx.workspace, n))


def _param_grad(ctx: BindContext) -> Sequence[Launch]:
    """Return launches: first those of the sums, then dy * gamma, whose result may overwrite dy."""
    dy, normalized, gamma = ctx.inputs
    scaled, d_beta, d_gamma = ctx.outputs
    matrix, types = _params(ctx.query), ctx.query.outputs
    beta = column_sums("Own", matrix, (dy,), (d_beta, types[1]), ctx.workspace)
    both, result = (dy, normalized), (d_gamma, types[2])
    scale = column_sums("Times", matrix, both, result, ctx.workspace)
    return (*beta, *scale, product(ctx, dy, gamma, scaled))


def product(ctx: BindContext, x: DeviceArray, y: DeviceArray, out: DeviceArray) -> Launch:
    """Build a launch of ``out = x * y`` for the first and third input of an op."""
    types = (ctx.query.inputs[0], ctx.query.inputs[2])
    result = ctx.query.outputs[0]
    group = Group((Step("multiply", (-1, -2), {}, types, result),), (0,), types, result.shape)
    return launch_group(group, (x, y, out))


def _channels(ctx: BindContext) -> tuple[int, int, int]:
    shape, axis = ctx.query.inputs[0].shape, _axis(ctx, "axis")
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def _batch_norm(ctx: BindContext) -> Launch:
    x, mean, variance, gamma, beta = ctx.inputs
    extent = _channels(ctx)
    types = tuple(map(c_type, (ctx.query.inputs[0], ctx.query.inputs[1], ctx.query.outputs[1])))
    numbers = (int(bool(ctx.attrs["training"])), ctx.attrs["epsilon"], ctx.attrs["momentum"])
    values = (Read(x), mean, variance, Read(gamma), Read(beta), *ctx.outputs, *extent, *numbers)
    return call("batch_norm", HEADERS, types, *values, items=extent[1], blocks=True)


def _batch_norm_grad(ctx: BindContext) -> Launch:
    extent = _channels(ctx)
    types = tuple(map(c_type, (ctx.query.inputs[0], ctx.query.inputs[4], ctx.query.inputs[2])))
    training = int(bool(ctx.attrs["training"]))
    values = (*map(Read, ctx.inputs), *ctx.outputs, *extent, training)
    return call("batch_norm_grad", HEADERS, types, *values, items=extent[1], blocks=True)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("layer_norm", _layer_norm),
    kernel("layer_norm_grad", _layer_norm_grad),
    kernel("layer_norm_gamma_grad", _gamma_grad, None, _sums_bytes),
    kernel("layer_norm_param_grad", _param_grad, None, _sums_bytes),
    kernel("normalization", _batch_norm),
    kernel("normalization_grad", _batch_norm_grad),
)
