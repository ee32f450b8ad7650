"""Ops that produce numbers: constants, ranges, random numbers.

Random ops draw their numbers from `flow_core.base.philox`, as a function of the seed, the step and
the element's index in the logical tensor; the attribute ``place`` is the position of a device's
part.  Like the test kits, references use seed 0 and step 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import ALL, FLOATS, DType, as_dtype, int8, int32
from flow_core.base.philox import Place, placed_uniform, uniform
from flow_core.ir.graph import AttrValue, tensor_type
from flow_core.ir.initializers import generate
from flow_core.ops.declare import Attributes, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import (
    check_place,
    signatures,
    split_all_axes,
    with_nondecreasing,
    with_place,
)
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, Sample, SbpContext
from flow_core.sharding.sbp import B, P, S, Sbp, Signatures


def _check_value(ctx: InferContext, dtype: DType) -> None:
    value = ctx.attrs["value"]
    ctx.check(isinstance(value, bool | int | float), f"value {value!r}", "a number")
    if dtype.is_integer:
        bounds = np.iinfo(dtype.numpy)
        fits = bounds.min <= value <= bounds.max
        ctx.check(fits, f"value {value} as {dtype}", f"{bounds.min} to {bounds.max}")


class Constant(OpDef):
    schema = "constant() -> out"
    attrs = {"value": REQUIRED, "dtype": REQUIRED, "shape": REQUIRED}

    def infer(self, ctx: InferContext) -> Types:
        shape, dtype = tuple(ctx.attrs["shape"]), as_dtype(ctx.attrs["dtype"])
        ctx.check(min(shape, default=0) >= 0, f"shape {shape}", "sizes of at least 0")
        _check_value(ctx, dtype)
        return (tensor_type(shape, dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        zero = () if ctx.attrs["value"] else signatures(((), P))
        return (*split_all_axes(ctx), *zero)

    def reference(self, *, value: Any, shape: tuple[int, ...], dtype: str) -> Array:
        return np.full(shape, value, as_dtype(dtype).numpy)

    def samples(self, _: Rng) -> Samples:
        for value, shape, dtype in (
            (1.5, (2, 3), "float32"), (-3, (4,), "int64"), (0, (2, 1), "bfloat16"),
            (7, (1,), "uint8"), (True, (2,), "bool"), (2.0, (0, 3), "float64"),
            (0.5, (3,), "float16"), (-1, (2,), "int8"), (0.1, (3,), "float32"),
            (0.1, (2,), "float64"),
        ):  # fmt: skip
            yield Sample((), {"value": value, "shape": shape, "dtype": dtype})


def _like_dtype(like: DType, attrs: Mapping[str, AttrValue]) -> DType:
    return like if attrs["dtype"] is None else as_dtype(attrs["dtype"])


class Like(OpDef):
    """A constant of which the shape is that of another tensor."""

    gradient = staticmethod(lambda _: (None,))

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Allow P as the result for the value 0, since zeros are partial sums of zeros."""
        zero = not ctx.attrs.get("value", 0)
        sums = ((B, P), (P, P)) if zero else ()
        return signatures(*split_all_axes(ctx), (P, B), *sums)


class ConstantLike(Like):
    schema = "constant_like(like) -> out"
    attrs = {"value": REQUIRED, "dtype": None}

    def infer(self, ctx: InferContext) -> Types:
        like = ctx.inputs[0]
        dtype = _like_dtype(like.dtype, ctx.attrs)
        _check_value(ctx, dtype)
        return (tensor_type(like.shape, dtype),)

    def reference(self, like: Array, *, value: Any, dtype: str | None) -> Array:
        return np.full(like.shape, value, like.dtype if dtype is None else as_dtype(dtype).numpy)

    def samples(self, rng: Rng) -> Samples:
        for shape, value, dtype in (
            ((2, 3), 1.5, None), ((3,), 4, "int32"), ((2, 1), 0, "float64"),
            ((2,), 0.1, "float32"), ((2,), 0.1, "float64"),
        ):  # fmt: skip
            yield Sample((rng.uniform(-3, 3, shape),), {"value": value, "dtype": dtype})
        yield Sample((rng.integers(0, 5, (4,)),), {"value": 3})


class ZeroLike(Like):
    schema = "zero_like(like) -> out"
    infer = staticmethod(lambda ctx: ctx.inputs)
    reference = staticmethod(np.zeros_like)

    def samples(self, rng: Rng) -> Samples:
        for shape in ((2, 3), (0,), (1, 1)):
            yield Sample((rng.uniform(-3, 3, shape),))


class Range(OpDef):
    schema = "range() -> out"
    attrs = {"start": REQUIRED, "limit": REQUIRED, "delta": REQUIRED, "dtype": REQUIRED}
    sbp = staticmethod(split_all_axes)

    def infer(self, ctx: InferContext) -> Types:
        start, limit, delta = (ctx.attrs[key] for key in ("start", "limit", "delta"))
        ctx.check(delta != 0, "delta 0", "a step other than 0")
        count = len(range(start, limit, delta))
        ctx.check(count, f"from {start} to {limit} by {delta}", "at least one number")
        return (tensor_type((count,), as_dtype(ctx.attrs["dtype"])),)

    def localize(self, ctx: LocalContext) -> Attributes:
        (low, high), start, delta = ctx.outputs[0].region[0], ctx.attrs["start"], ctx.attrs["delta"]
        return {"start": start + low * delta, "limit": start + high * delta}

    def reference(self, *, start: int, limit: int, delta: int, dtype: str) -> Array:
        return np.arange(start, limit, delta).astype(as_dtype(dtype).numpy)

    def samples(self, _: Rng) -> Samples:
        for start, limit, delta, dtype in (
            (0, 10, 1, "int64"), (1, 10, 3, "int32"), (5, -2, -3, "float32"),
            (250, 1000, 77, "float32"), (2**25 + 1, 2**25 + 9, 3, "float64"), (2, 3, 9, "float64"),
        ):  # fmt: skip
            yield Sample((), {"start": start, "limit": limit, "delta": delta, "dtype": dtype})


SEED = {"seed": -1, "has_seed": False}
"""Attributes for the op's own seed; by default, the seed derives from the job's seed and the op's
name.
"""


class Bernoulli(OpDef):
    schema = "bernoulli(in) -> out"
    attrs = {"dtype": None, **SEED, "place": None}
    random = True
    sbp = staticmethod(with_nondecreasing(split_all_axes))
    localize = staticmethod(with_place)

    def infer(self, ctx: InferContext) -> Types:
        x = ctx.inputs[0]
        ctx.check(x.dtype.is_floating, str(x), "probabilities of a floating type")
        check_place(ctx, x.shape)
        return (tensor_type(x.shape, _like_dtype(x.dtype, ctx.attrs)),)

    def reference(
        self, x: Array, *, dtype: str | None, seed: int, has_seed: bool, place: Place | None
    ) -> Any:
        drawn = placed_uniform(seed if has_seed else 0, x.shape, place) < x
        return drawn.astype(x.dtype if dtype is None else as_dtype(dtype).numpy)

    def samples(self, rng: Rng) -> Samples:
        for shape, attrs in (
            ((5, 7), {}), ((40,), {"dtype": "int32"}), ((3, 3), {"seed": 11, "has_seed": True}),
            ((0,), {"dtype": "float64"}), ((4, 3), {"place": ((9, 8), (2, 5))}),
        ):  # fmt: skip
            yield Sample((rng.integers(0, 5, shape) / 4,), attrs)


class CoinFlip(OpDef):
    schema = "coin_flip() -> out"
    attrs = {"batch_size": REQUIRED, "probability": 0.5, **SEED, "place": None}
    random = True
    host = True
    sbp = staticmethod(split_all_axes)
    localize = staticmethod(lambda ctx: {"batch_size": ctx.outputs[0].shape[0], **with_place(ctx)})

    def infer(self, ctx: InferContext) -> Types:
        size, probability = ctx.attrs["batch_size"], ctx.attrs["probability"]
        ctx.check(size >= 1, f"batch_size {size}", "at least 1")
        check_place(ctx, (size,))
        ctx.check(0 <= probability <= 1, f"probability {probability}", "between 0 and 1")
        return (tensor_type((size,), int8),)

    def reference(
        self, *, batch_size: int, probability: float, seed: int, has_seed: bool, place: Place | None
    ) -> Any:
        drawn = placed_uniform(seed if has_seed else 0, (batch_size,), place)
        return (drawn < probability).astype(np.int8)

    def samples(self, _: Rng) -> Samples:
        for size, probability in ((9, 0.5), (4, 1.0), (1, 0.0)):
            yield Sample((), {"batch_size": size, "probability": probability})
        yield Sample((), {"batch_size": 5, "place": ((20,), (9,))}, note="a part")


class RandomValues(OpDef):
    """The numbers that the initializer ``distribution`` generates for the seed and the step; those
    of ``random_uniform`` are less than its upper bound.
    """

    schema = "random_values() -> out"
    attrs = {"distribution": REQUIRED, "shape": REQUIRED, "dtype": REQUIRED, **SEED, "place": None}
    random = True
    sbp = staticmethod(split_all_axes)

    def infer(self, ctx: InferContext) -> Types:
        shape, dtype = tuple(ctx.attrs["shape"]), as_dtype(ctx.attrs["dtype"])
        ctx.check(min(shape, default=0) >= 0, f"shape {shape}", "sizes of at least 0")
        check_place(ctx, shape)
        _check_distribution(ctx, dtype)
        return (tensor_type(shape, dtype),)

    def localize(self, ctx: LocalContext) -> Attributes:
        return {"shape": ctx.outputs[0].shape, **with_place(ctx)}

    def reference(
        self, *, distribution: Distribution, shape: tuple[int, ...], dtype: str, seed: int,
        has_seed: bool, place: Place | None,
    ) -> Array:  # fmt: skip
        whole, low = place or (shape, (0,) * len(shape))
        region = tuple((at, at + size) for at, size in zip(low, shape, strict=True))
        found = generate(distribution, whole, dtype, seed if has_seed else 0, region)
        limit = upper_limit(distribution, as_dtype(dtype))
        return found if limit is None else np.minimum(found, limit)

    def samples(self, _: Rng) -> Samples:
        for kind, dtype in (
            (("random_normal", 0.5, 2.0), "float32"), (("random_normal", 0.0, 0.0), "float64"),
            (("random_uniform", -1.0, 3.0), "float32"), (("random_uniform", 0.0, 1.0), "float64"),
            (("random_uniform", 0.1, 0.2), "float16"), (("random_normal", 0.0, 1.0), "bfloat16"),
            (("random_uniform_int", -2, 300), "int32"), (("random_uniform_int", 7, 7), "int64"),
        ):  # fmt: skip
            for shape, more in (
                ((5, 7), {}), ((), {"seed": 11, "has_seed": True}), ((0, 2), {}),
                ((20000,), {}), ((4, 3), {"place": ((9, 8), (2, 5))}),
            ):  # fmt: skip
                yield Sample((), {"distribution": kind, "shape": shape, "dtype": dtype, **more})


Distribution = tuple[str, float, float]
"""The literal of an initializer with two parameters; see `flow_core.ir.initializers`."""

_INTEGERS = tuple(d for d in ALL if d.is_integer)
_DTYPES = {"random_normal": FLOATS, "random_uniform": FLOATS, "random_uniform_int": _INTEGERS}
"""The distributions of `RandomValues`, and the element types of their numbers."""

_EXACT = 2**53
"""Numbers up to this one are exact as float64, in which integers are drawn."""

_DRAWN = 2**48
"""The number of different random numbers."""


def _check_distribution(ctx: InferContext, dtype: DType) -> None:
    kind, first, last = ctx.attrs["distribution"]
    ctx.check(kind in _DTYPES, f"distribution {kind!r}", ", ".join(_DTYPES))
    ctx.check(dtype in _DTYPES[kind], f"element type {dtype}", ", ".join(map(str, _DTYPES[kind])))
    ctx.check(np.isfinite(first) and np.isfinite(last), f"{first} and {last}", "finite numbers")
    if kind == "random_normal":
        ctx.check(last >= 0, f"standard deviation {last}", "at least 0")
    elif kind == "random_uniform":
        ctx.check(first < last, f"numbers from {first} to {last}", "a higher upper bound")
    else:
        bounds = np.iinfo(dtype.numpy)
        least, most = max(bounds.min, -_EXACT), min(bounds.max, _EXACT)
        found = f"numbers from {first} to {last} as {dtype}"
        ctx.check(least <= first <= last <= most, found, f"{least} to {most}, in this order")
        ctx.check(last - first < _DRAWN, found, f"at most {_DRAWN} different numbers")


def upper_limit(distribution: Distribution, dtype: DType) -> Any:
    """Return the largest number of a uniform distribution, which rounding must not exceed.

    Returns: a number of the element type; None for other distributions.
    """
    kind, low, high = distribution
    if kind != "random_uniform":
        return None
    return np.nextafter(np.asarray(high, dtype.numpy), np.asarray(low, dtype.numpy))


def permutation_layout(count: int) -> tuple[int, int]:
    """Return how many bits an index below ``count`` has, and the shift that puts 48 random bits
    above.
    """
    bits = max(1, (count - 1).bit_length())
    return bits, max(0, 48 - (63 - bits))


class GenerateRandomBatchPermutationIndices(OpDef):
    schema = "generate_random_batch_permutation_indices(x) -> y"
    attrs = {**SEED, "count": None}
    random = True
    localize = staticmethod(lambda ctx: {"count": ctx.outputs[0].shape[0]})

    def infer(self, ctx: InferContext) -> Types:
        x = ctx.inputs[0]
        ctx.check(len(x.shape) > 0, str(x), "a tensor with a batch axis")
        count = ctx.attrs["count"]
        return (tensor_type(x.shape[:1] if count is None else (count,), int32),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Allow any SBP, since the op reads only the size of axis 0, which ``count`` holds if it is
        split.
        """
        kinds: tuple[Sbp, ...] = (*(S(i) for i in range(len(ctx.inputs[0].shape))), P)
        return signatures(*((s, B) for s in kinds))

    def reference(self, x: Array, *, seed: int, has_seed: bool, count: int | None) -> Array:
        """Return the sorting order of 48 random bits per element; the index in the low bits breaks
        ties.
        """
        count, key = len(x) if count is None else count, seed if has_seed else 0
        high, low = ((uniform(key, (count,), 0, i) * 2**24).astype(np.int64) for i in (0, 1))
        bits, cut = permutation_layout(count)
        keys = ((((high << 24) | low) >> cut) << bits) | np.arange(count)
        return np.argsort(keys).astype(np.int32)

    def samples(self, rng: Rng) -> Samples:
        for shape in ((9, 2), (1,), (100,)):
            yield Sample((rng.uniform(-3, 3, shape),))
        yield Sample((rng.uniform(-3, 3, (4, 2)),), {"count": 9}, note="a part of the batch")


OPS = specs(
    Constant, ConstantLike, ZeroLike, Range, Bernoulli, CoinFlip,
    RandomValues, GenerateRandomBatchPermutationIndices,
)  # fmt: skip
