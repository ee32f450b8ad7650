"""Ops that produce numbers: constants, ranges, random numbers.

Random ops draw their numbers from `flow_core.base.philox`, as a function of the seed, the step and
the element's index in the logical tensor; the attribute ``place`` is the position of a device's
part.  Like the test kits, references use seed 0 and step 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType, as_dtype, int8, int32
from flow_core.base.philox import Place, placed_uniform, uniform
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.rules import check_place, split_all_axes, with_nondecreasing, with_place
from flow_core.plugins.specs import (
    REQUIRED,
    InferContext,
    LocalContext,
    OpSpec,
    Sample,
    SbpContext,
)
from flow_core.sharding.sbp import B, P, S, Sbp, Signature, Signatures


def _constant_type(ctx: InferContext) -> tuple[TensorType, ...]:
    shape, dtype = tuple(ctx.attrs["shape"]), as_dtype(ctx.attrs["dtype"])
    ctx.check(min(shape, default=0) >= 0, f"shape {shape}", "sizes of at least 0")
    _check_value(ctx, dtype)
    return (tensor_type(shape, dtype),)


def _check_value(ctx: InferContext, dtype: DType) -> None:
    value = ctx.attrs["value"]
    ctx.check(isinstance(value, bool | int | float), f"value {value!r}", "a number")
    if dtype.is_integer:
        bounds = np.iinfo(dtype.numpy)
        fits = bounds.min <= value <= bounds.max
        ctx.check(fits, f"value {value} as {dtype}", f"{bounds.min} to {bounds.max}")


def _constant_sbp(ctx: SbpContext) -> Signatures:
    splits = split_all_axes(ctx)
    return splits if ctx.attrs["value"] else (*splits, Signature((), (P,)))


def _constant(*, value: Any, shape: tuple[int, ...], dtype: str) -> Array:
    return np.full(shape, value, as_dtype(dtype).numpy)


def _constant_samples(_: np.random.Generator) -> Iterator[Sample]:
    for value, shape, dtype in (
        (1.5, (2, 3), "float32"), (-3, (4,), "int64"), (0, (2, 1), "bfloat16"), (7, (1,), "uint8"),
        (True, (2,), "bool"), (2.0, (0, 3), "float64"), (0.5, (3,), "float16"), (-1, (2,), "int8"),
        (0.1, (3,), "float32"), (0.1, (2,), "float64"),
    ):  # fmt: skip
        yield Sample((), {"value": value, "shape": shape, "dtype": dtype})


def _like_dtype(like: DType, attrs: Mapping[str, AttrValue]) -> DType:
    return like if attrs["dtype"] is None else as_dtype(attrs["dtype"])


def _constant_like_type(ctx: InferContext) -> tuple[TensorType, ...]:
    like = ctx.inputs[0]
    dtype = _like_dtype(like.dtype, ctx.attrs)
    _check_value(ctx, dtype)
    return (tensor_type(like.shape, dtype),)


def _like_sbp(ctx: SbpContext) -> Signatures:
    """Allow P as the result for the value 0, since zeros are partial sums of zeros."""
    zero = not ctx.attrs.get("value", 0)
    sums = (Signature((B,), (P,)), Signature((P,), (P,))) if zero else ()
    return (*split_all_axes(ctx), Signature((P,), (B,)), *sums)


def _no_gradient(_: GradContext) -> tuple[None]:
    return (None,)


def _constant_like(like: Array, *, value: Any, dtype: str | None) -> Array:
    return np.full(like.shape, value, like.dtype if dtype is None else as_dtype(dtype).numpy)


def _constant_like_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, value, dtype in (
        ((2, 3), 1.5, None),
        ((3,), 4, "int32"),
        ((2, 1), 0, "float64"),
        ((2,), 0.1, "float32"),
        ((2,), 0.1, "float64"),
    ):
        yield Sample((rng.uniform(-3, 3, shape),), {"value": value, "dtype": dtype})
    yield Sample((rng.integers(0, 5, (4,)),), {"value": 3})


def _zero_like_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((2, 3), (0,), (1, 1)):
        yield Sample((rng.uniform(-3, 3, shape),))


def _range_type(ctx: InferContext) -> tuple[TensorType, ...]:
    start, limit, delta = (ctx.attrs[key] for key in ("start", "limit", "delta"))
    ctx.check(delta != 0, "delta 0", "a step other than 0")
    count = len(range(start, limit, delta))
    ctx.check(count, f"from {start} to {limit} by {delta}", "at least one number")
    return (tensor_type((count,), as_dtype(ctx.attrs["dtype"])),)


def _range_part(ctx: LocalContext) -> Mapping[str, AttrValue]:
    (low, high), start, delta = ctx.outputs[0].region[0], ctx.attrs["start"], ctx.attrs["delta"]
    return {"start": start + low * delta, "limit": start + high * delta}


def _range(*, start: int, limit: int, delta: int, dtype: str) -> Array:
    return np.arange(start, limit, delta).astype(as_dtype(dtype).numpy)


def _range_samples(_: np.random.Generator) -> Iterator[Sample]:
    for start, limit, delta, dtype in (
        (0, 10, 1, "int64"), (1, 10, 3, "int32"), (5, -2, -3, "float32"),
        (250, 1000, 77, "float32"), (2**25 + 1, 2**25 + 9, 3, "float64"), (2, 3, 9, "float64"),
    ):  # fmt: skip
        yield Sample((), {"start": start, "limit": limit, "delta": delta, "dtype": dtype})


# --------------------------------------------------------------------------------------- random

SEED = {"seed": -1, "has_seed": False}
"""Attributes for the op's own seed; by default, the seed derives from the job's seed and the op's
name.
"""


def _bernoulli_type(ctx: InferContext) -> tuple[TensorType, ...]:
    x = ctx.inputs[0]
    ctx.check(x.dtype.is_floating, str(x), "probabilities of a floating type")
    check_place(ctx, x.shape)
    return (tensor_type(x.shape, _like_dtype(x.dtype, ctx.attrs)),)


def _bernoulli(
    x: Array, *, dtype: str | None, seed: int, has_seed: bool, place: Place | None
) -> Any:
    drawn = placed_uniform(seed if has_seed else 0, x.shape, place) < x
    return drawn.astype(x.dtype if dtype is None else as_dtype(dtype).numpy)


def _bernoulli_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, attrs in (
        ((5, 7), {}), ((40,), {"dtype": "int32"}), ((3, 3), {"seed": 11, "has_seed": True}),
        ((0,), {"dtype": "float64"}), ((4, 3), {"place": ((9, 8), (2, 5))}),
    ):  # fmt: skip
        yield Sample((rng.integers(0, 5, shape) / 4,), attrs)


def _coin_flip_type(ctx: InferContext) -> tuple[TensorType, ...]:
    size, probability = ctx.attrs["batch_size"], ctx.attrs["probability"]
    ctx.check(size >= 1, f"batch_size {size}", "at least 1")
    check_place(ctx, (size,))
    ctx.check(0 <= probability <= 1, f"probability {probability}", "between 0 and 1")
    return (tensor_type((size,), int8),)


def _coin_flip_part(ctx: LocalContext) -> Mapping[str, AttrValue]:
    return {"batch_size": ctx.outputs[0].shape[0], **with_place(ctx)}


def _coin_flip(
    *, batch_size: int, probability: float, seed: int, has_seed: bool, place: Place | None
) -> Any:
    drawn = placed_uniform(seed if has_seed else 0, (batch_size,), place)
    return (drawn < probability).astype(np.int8)


def _coin_flip_samples(_: np.random.Generator) -> Iterator[Sample]:
    for size, probability in ((9, 0.5), (4, 1.0), (1, 0.0)):
        yield Sample((), {"batch_size": size, "probability": probability})
    yield Sample((), {"batch_size": 5, "place": ((20,), (9,))}, note="a part")


def _permutation_type(ctx: InferContext) -> tuple[TensorType, ...]:
    x = ctx.inputs[0]
    ctx.check(len(x.shape) > 0, str(x), "a tensor with a batch axis")
    count = ctx.attrs["count"]
    return (tensor_type(x.shape[:1] if count is None else (count,), int32),)


def _permutation_sbp(ctx: SbpContext) -> Signatures:
    """Allow any SBP, since the op reads only the size of axis 0, which ``count`` holds if it is
    split.
    """
    kinds: tuple[Sbp, ...] = (*(S(i) for i in range(len(ctx.inputs[0].shape))), P)
    return tuple(Signature((s,), (B,)) for s in kinds)


def permutation_layout(count: int) -> tuple[int, int]:
    """Return how many bits an index below ``count`` has, and the shift that puts 48 random bits
    above.
    """
    bits = max(1, (count - 1).bit_length())
    return bits, max(0, 48 - (63 - bits))


def _permutation(x: Array, *, seed: int, has_seed: bool, count: int | None) -> Array:
    """Return the sorting order of 48 random bits per element; the index in the low bits breaks
    ties.
    """
    count, key = len(x) if count is None else count, seed if has_seed else 0
    high, low = ((uniform(key, (count,), 0, i) * 2**24).astype(np.int64) for i in (0, 1))
    bits, cut = permutation_layout(count)
    keys = ((((high << 24) | low) >> cut) << bits) | np.arange(count)
    return np.argsort(keys).astype(np.int32)


def _permutation_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((9, 2), (1,), (100,)):
        yield Sample((rng.uniform(-3, 3, shape),))
    yield Sample((rng.uniform(-3, 3, (4, 2)),), {"count": 9}, note="a part of the batch")


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="constant",
        inputs=(),
        infer=_constant_type,
        attrs={"value": REQUIRED, "dtype": REQUIRED, "shape": REQUIRED},
        sbp=_constant_sbp,
        reference=_constant,
        samples=_constant_samples,
    ),
    OpSpec(
        type="constant_like",
        inputs=("like",),
        infer=_constant_like_type,
        attrs={"value": REQUIRED, "dtype": None},
        sbp=_like_sbp,
        gradient=_no_gradient,
        reference=_constant_like,
        samples=_constant_like_samples,
    ),
    OpSpec(
        type="zero_like",
        inputs=("like",),
        infer=lambda ctx: ctx.inputs,
        sbp=_like_sbp,
        gradient=_no_gradient,
        reference=np.zeros_like,
        samples=_zero_like_samples,
    ),
    OpSpec(
        type="range",
        inputs=(),
        infer=_range_type,
        attrs={"start": REQUIRED, "limit": REQUIRED, "delta": REQUIRED, "dtype": REQUIRED},
        sbp=split_all_axes,
        localize=_range_part,
        reference=_range,
        samples=_range_samples,
    ),
    OpSpec(
        type="bernoulli",
        inputs=("in",),
        infer=_bernoulli_type,
        attrs={"dtype": None, **SEED, "place": None},
        sbp=with_nondecreasing(split_all_axes),
        localize=with_place,
        reference=_bernoulli,
        samples=_bernoulli_samples,
        random=True,
    ),
    OpSpec(
        type="coin_flip",
        inputs=(),
        infer=_coin_flip_type,
        attrs={"batch_size": REQUIRED, "probability": 0.5, **SEED, "place": None},
        sbp=split_all_axes,
        localize=_coin_flip_part,
        reference=_coin_flip,
        samples=_coin_flip_samples,
        random=True,
        host=True,
    ),
    OpSpec(
        type="generate_random_batch_permutation_indices",
        inputs=("x",),
        outputs=("y",),
        infer=_permutation_type,
        attrs={**SEED, "count": None},
        sbp=_permutation_sbp,
        localize=lambda ctx: {"count": ctx.outputs[0].shape[0]},
        reference=_permutation,
        samples=_permutation_samples,
        random=True,
    ),
)
