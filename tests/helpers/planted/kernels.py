"""Kernels with one mistake each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.rules import like_input, linear
from flow_core.plugins.specs import BindContext, KernelSpec, OpSpec, Sample
from flow_core.sharding.sbp import S, Signature
from flow_core.testing import KernelKit, Kit
from planted import kit_of

Bind = Callable[[BindContext], Any]


def _twice_samples(rng: Any) -> Any:
    for shape in ((3, 5), (7,), (), (0, 4)):
        yield Sample((rng.uniform(-2, 2, shape),))


TWICE = OpSpec(
    "twice", ("x",), like_input, sbp=linear, reference=lambda x: x + x, samples=_twice_samples,
    elementwise=True, inplace=(0,),
)  # fmt: skip
CENTER = OpSpec(
    "center", ("x",), like_input, sbp=lambda _: (Signature((S(0),), (S(0),)),),
    reference=lambda x: x - x.mean(1, keepdims=True),
    samples=lambda rng: [Sample((rng.uniform(-2, 2, (3, 5)),))],
)  # fmt: skip
TAKE = OpSpec(
    "take", ("table", "ids"), lambda ctx: _taken(*ctx.inputs),
    reference=lambda table, ids: table[ids % len(table)],
    samples=lambda rng: [Sample((rng.uniform(-2, 2, (6, 3)), np.array((5, 0, 2, 5))))],
)  # fmt: skip


def _taken(table: TensorType, ids: TensorType) -> tuple[TensorType]:
    return (tensor_type((*ids.shape, *table.shape[1:]), table.dtype),)


def twice(ctx: BindContext) -> Any:
    """Bind a kernel without mistakes."""
    return partial(np.add, ctx.inputs[0], ctx.inputs[0], ctx.outputs[0])


def _center(x: Any, y: Any, count: int | None = None, dtype: Any = np.float32) -> None:
    mean = x[:, :count].mean(1, keepdims=True, dtype=dtype)
    y[...] = x - mean.astype(x.dtype)


def center(ctx: BindContext) -> Any:
    """Bind a kernel without mistakes."""
    return partial(_center, ctx.inputs[0], ctx.outputs[0])


def take(ctx: BindContext) -> Any:
    """Bind a kernel without mistakes."""
    table, ids = ctx.inputs
    return lambda: np.copyto(ctx.outputs[0], table[ids % len(table)])


def _then(change: Callable[[Any, Any], None], right: Bind = twice) -> Bind:
    """Return a kernel that changes its result, or its input, after the right launch."""

    def bind(ctx: BindContext) -> Any:
        return right(ctx), partial(change, ctx.inputs[0], ctx.outputs[0])

    return bind


def _of(compute: Callable[..., None]) -> Bind:
    """Return a kernel that computes from the inputs and the output."""
    return lambda ctx: partial(compute, *ctx.inputs, *ctx.outputs)


def _dropped(start: int, multiple: int = 16) -> Callable[[Any, Any], None]:
    """Drop the last elements, or columns of a matrix, beyond a multiple; from some size on."""

    def change(x: Any, y: Any) -> None:
        size = y.shape[-1] if y.ndim else 0
        if size >= start:
            y[..., size - size % multiple :] = 0

    return change


def _flat(start: int, value: float = 0) -> Callable[[Any, Any], None]:
    """Overwrite what follows a number of elements."""
    return lambda x, y: y.reshape(-1)[start:].fill(value)


def _swapped(kind: Callable[[Any], Any], value: float) -> Callable[[Any, Any], None]:
    """Replace special values in the result."""
    return lambda x, y: np.copyto(y, np.asarray(value, y.dtype), where=kind(y))


def _past_the_end(ctx: BindContext) -> Any:
    y = ctx.outputs[0]
    longer = np.lib.stride_tricks.as_strided(y.reshape(-1), (y.size + 1,))
    return twice(ctx), partial(longer.__setitem__, y.size, 1)


def _remembered(ctx: BindContext) -> Any:
    seen: list[Any] = []
    return lambda: (seen or seen.append(ctx.inputs[0] * 2), np.copyto(ctx.outputs[0], seen[0]))


def _dense(ctx: BindContext) -> Any:
    x = ctx.inputs[0]
    dense = np.lib.stride_tricks.as_strided(x, (x.size,), (x.itemsize,))
    return partial(np.add, dense, dense, ctx.outputs[0].reshape(-1))


def _aligned(ctx: BindContext) -> Any:
    shift = 2 if ctx.inputs[0].ctypes.data % 64 == 0 else 3
    return partial(np.multiply, ctx.inputs[0], shift, ctx.outputs[0])


def _through_the_output(ctx: BindContext) -> Any:
    x, y = ctx.inputs[0], ctx.outputs[0]
    return partial(y.fill, 0), partial(np.add, y, x, y), partial(np.add, y, x, y)


def _once(ctx: BindContext) -> Any:
    return partial(np.copyto, ctx.outputs[0], ctx.inputs[0] + ctx.inputs[0])


def _narrow(kind: str) -> Callable[[Any, Any, Any], None]:
    """Take rows by numbers of a narrow type."""
    return lambda table, ids, y: np.copyto(y, table[ids.astype(kind) % len(table)])


def _narrow_to(count: int) -> Callable[[Any, Any, Any], None]:
    """Take rows by numbers below a count."""
    return lambda table, ids, y: np.copyto(y, table[ids % count % len(table)])


def _tiny(y: Any) -> Any:
    return np.abs(y) < np.finfo(y.dtype).smallest_normal


def _modulo(x: Any, y: Any) -> None:
    y[...] = y[np.arange(len(y)) % 128]


def _block(x: Any, y: Any) -> None:
    y[:, 256:] += 1


def _half(x: Any, y: Any) -> None:
    _center(x, y, None, np.float16)


LARGE = "agrees_at_large_sizes"
DEFECTS: Mapping[str, tuple[OpSpec, Bind, str]] = {
    "wrong sign": (TWICE, _then(lambda x, y: np.negative(y, y)), "agrees"),
    "rounds to half": (TWICE, _then(lambda x, y: np.copyto(y, y.astype("f2"))), "agrees"),
    "misses the last element": (TWICE, _then(_dropped(2, 2)), "agrees"),
    "drops a tail beyond vectors of 16": (TWICE, _then(_dropped(64)), LARGE),
    "ends after a block of 1024": (TWICE, _then(_flat(1024)), LARGE),
    "ends after a grid of 16,384": (TWICE, _then(_flat(16_384)), LARGE),
    "overflows offsets of 16 bits": (TWICE, _then(_flat(32_768)), LARGE),
    "overflows unsigned offsets of 16 bits": (TWICE, _then(_flat(65_536)), LARGE),
    "writes past the end": (TWICE, _past_the_end, "agrees"),
    "changes its input": (TWICE, _then(lambda x, y: np.negative(x, x)), "agrees"),
    "replaces NaN": (TWICE, _then(_swapped(np.isnan, 0)), "special_values"),
    "bounds infinity": (TWICE, _then(_swapped(np.isinf, 1e38)), "special_values"),
    "loses the sign of zero": (TWICE, _then(_swapped(lambda y: y == 0, 0)), "special_values"),
    "flushes subnormal numbers": (TWICE, _then(_swapped(_tiny, 0)), "special_values"),
    "returns the first result again": (TWICE, _remembered, "agrees"),
    "adds to uninitialized memory": (TWICE, _of(lambda x, y: np.add(y, x, y)), "agrees"),
    "computes while binding": (TWICE, _once, "agrees"),
    "allocates in each launch": (TWICE, _of(lambda x, y: np.copyto(y, x + x)),
                                 "allocates_nothing"),
    "needs aligned memory": (TWICE, _aligned, "tiles"),
    "ignores strides": (TWICE, _dense, "stretched_inputs"),
    "reads its output in place": (TWICE, _through_the_output, "in_place"),
    "fails without elements": (TWICE, _then(lambda x, y: y.reshape(-1)[0]), "agrees"),
    "drops a tail of rows from 64 on": (CENTER, _then(_dropped(64), center), LARGE),
    "averages one block of 256": (CENTER, _of(partial(_center, count=256)), LARGE),
    "adds in half precision": (CENTER, _of(_half), "agrees"),
    "repeats rows after 128": (CENTER, _then(_modulo, center), LARGE),
    "adds twice from column 256 on": (CENTER, _then(_block, center), LARGE),
    "reads 8 bits of an index": (TAKE, _of(_narrow("u1")), LARGE),
    "reads 10 bits of an index": (TAKE, _of(_narrow_to(1024)), LARGE),
    "sorts its indices": (TAKE, _of(lambda t, i, y: np.copyto(y, t[np.sort(i)])), "agrees"),
}  # fmt: skip
"""By name: the op, the kernel, and the check that finds the mistake."""

RIGHT: Mapping[str, tuple[OpSpec, Bind]] = {
    "twice": (TWICE, twice), "center": (CENTER, center), "take": (TAKE, take),
}  # fmt: skip


def kit(spec: OpSpec, bind: Bind) -> Kit:
    """Return the kit for an op and its kernel; only elementwise kernels need not allocate."""
    kernel = KernelSpec(spec.type, "cpu", bind, name=f"planted.{spec.type}")
    records = {"flow_register_ops": [spec], "flow_register_kernels": [kernel]}
    steady = KernelKit.steady_bytes if spec is TWICE else None
    return kit_of(KernelKit, records, dtypes=("float32",), steady_bytes=steady)
