"""Kernels of elementwise ops on two inputs or on an input and a number, and of selections."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import kernel, scalar, ufunc_kernel
from flow_core.builtin.numpy_kernels.steps import Steps, composite
from flow_core.device import Launch
from flow_core.ops.math.binary import BY_TENSOR, SAME_SHAPE
from flow_core.ops.math.scalar import COMPARISONS, limits
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

UFUNCS = {
    "broadcast_add": np.add, "broadcast_sub": np.subtract, "broadcast_mul": np.multiply,
    "broadcast_floor_mod": np.remainder, "broadcast_floordiv": np.floor_divide,
    "broadcast_pow": np.power, "broadcast_maximum": np.maximum,
    "broadcast_minimum": np.minimum, "atan2": np.arctan2,
}  # fmt: skip

LOGICAL = {
    **{f"broadcast_{kind}": function for kind, function in COMPARISONS.items()},
    "broadcast_logical_and": np.logical_and, "broadcast_logical_or": np.logical_or,
    "broadcast_logical_xor": np.logical_xor, "logical_not": np.logical_not,
}  # fmt: skip

# exponents with a cheaper ufunc than power
POWERS = {-1.0: np.reciprocal, 0.5: np.sqrt, 1.0: np.positive, 2.0: np.square}


def truth_values(out: Array) -> Array:
    """View an int8 output as bool; both types store 0 and 1 as the same bytes."""
    return out.view(np.bool_)


def logical_kernel(op: str, function: Callable[..., object]) -> KernelSpec:
    """Return the kernel of an op that is one ufunc with a boolean result."""
    return kernel(op, lambda c: call(function, *c.inputs, out=truth_values(c.outputs[0])))


def _divide(ctx: BindContext) -> Launch | Sequence[Launch]:
    """Divide; integer quotients, computed as (x - fmod(x, y)) // y, truncate towards zero."""
    (x, y), (out,) = ctx.inputs, ctx.outputs
    if ctx.query.outputs[0].dtype.is_floating:
        return call(np.divide, x, y, out=out)
    rest = ctx.workspace.view(out.dtype)[: out.size].reshape(out.shape)
    return (
        call(np.fmod, x, y, out=rest),
        call(np.subtract, x, rest, out=rest),
        call(np.floor_divide, rest, y, out=out),
    )


def _divide_workspace(query: KernelQuery) -> int:
    result = query.outputs[0]
    return 0 if result.dtype.is_floating else result.nbytes


def _quotient_kernels() -> tuple[KernelSpec, ...]:
    return tuple(
        kernel(op, _divide, workspace=_divide_workspace)
        for op in ("broadcast_div", "scalar_div_by_tensor")
    )


def _operand_kernel(op: str, function: Callable[..., object]) -> KernelSpec:
    def bind(ctx: BindContext) -> Launch:
        (x,), (out,) = ctx.inputs, ctx.outputs
        return call(function, x, scalar(ctx.attrs["operand"], x), out=out)

    return kernel(op, bind)


def _operand_comparison(kind: str, function: Callable[..., object]) -> KernelSpec:
    def bind(ctx: BindContext) -> Launch:
        (x,), (out,) = ctx.inputs, ctx.outputs
        return call(function, x, scalar(ctx.attrs["operand"], x), out=truth_values(out))

    return kernel(f"scalar_logical_{kind}", bind)


def _scalar_pow(ctx: BindContext) -> Launch:
    (x,), (out,), exponent = ctx.inputs, ctx.outputs, ctx.attrs["exponent"]
    if exponent in POWERS:
        return call(POWERS[exponent], x, out=out)
    return call(np.power, x, scalar(exponent, x), out=out)


def _clip(ctx: BindContext) -> Sequence[Launch]:
    (x,), (out,) = ctx.inputs, ctx.outputs
    low, high = (None if v is None else scalar(v, x) for v in limits(x, ctx.attrs))
    if low is None or high is None:
        function, bound = (np.minimum, high) if low is None else (np.maximum, low)
        return (call(function, x, bound, out=out),)
    return call(np.maximum, x, low, out=out), call(np.minimum, out, high, out=out)


def _clip_grad(s: Steps) -> None:
    dy, x = s.inputs
    sides = zip((np.greater_equal, np.less_equal), limits(x, s.attrs), strict=True)
    masks = [s.test(function, x, bound) for function, bound in sides if bound is not None]
    for other in masks[1:]:
        s(np.logical_and, masks[0], other, out=masks[0])
    s.keep(masks[0], dy, s.out)


def _xdivy(s: Steps) -> None:
    x, y = s.inputs
    s.keep(s.test(np.not_equal, x, 0.0), s(np.divide, x, y, out=s.temp()), s.out)


def _xlogy(s: Steps) -> None:
    x, y = s.inputs
    value = s(np.log, y, out=s.scratch.take(y.shape, s.out.dtype))
    product = s(np.multiply, x, value, out=s.temp())
    s.keep(s.test(np.not_equal, x, 0.0), product, s.out)


def _condition(s: Steps) -> Array:
    """Return a mask of the output's shape for a condition of any element type and shape."""
    return s.test(np.not_equal, s.inputs[0], 0)


def _where(s: Steps) -> None:
    _, x, y = s.inputs
    s.select(_condition(s), x, y, s.out)


def _where_scalar(keeps: bool) -> Callable[[Steps], None]:
    def body(s: Steps) -> None:
        value, other = s.inputs[1], np.array(s.attrs["operand"]).astype(s.out.dtype)
        x, y = (value, other) if keeps else (other, value)
        s.select(_condition(s), x, y, s.out)

    return body


def _add_n(s: Steps) -> None:
    first, *others = s.inputs
    if not others:
        s.copy(s.out, first)
    for other in others:
        first = s(np.add, first, other, out=s.out)


def _renamed() -> tuple[KernelSpec, ...]:
    """Return kernels of ops that compute the same as another op but accept fewer shapes."""
    same = {**SAME_SHAPE, **BY_TENSOR}
    return tuple(ufunc_kernel(op, UFUNCS[base]) for op, base in same.items() if base in UFUNCS)


KERNELS: tuple[KernelSpec, ...] = (
    *(ufunc_kernel(op, function) for op, function in UFUNCS.items()),
    *(logical_kernel(op, function) for op, function in LOGICAL.items()),
    *_renamed(),
    *_quotient_kernels(),
    _operand_kernel("scalar_add", np.add),
    _operand_kernel("scalar_mul", np.multiply),
    *(_operand_comparison(kind, function) for kind, function in COMPARISONS.items()),
    kernel("scalar_pow", _scalar_pow),
    *(kernel(f"clip_by_scalar{side}", _clip) for side in ("", "_min", "_max")),
    *(composite(f"clip_by_scalar{side}_grad", _clip_grad) for side in ("", "_min", "_max")),
    composite("xdivy", _xdivy),
    composite("xlogy", _xlogy),
    composite("where", _where, lambda dtype: dtype.numpy),
    composite("where_scalar_y", _where_scalar(True), lambda dtype: dtype.numpy),
    composite("where_scalar_x", _where_scalar(False), lambda dtype: dtype.numpy),
    composite("add_n", _add_n),
)
