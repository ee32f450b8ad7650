"""Initializers: moments, bounds, and dependence on the seed alone."""

from __future__ import annotations

import tracemalloc
from math import prod, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.api.array import initializers as api
from flow_core.api.array import regularizers
from flow_core.base import philox
from flow_core.base.dtypes import ALL, bfloat16, float16, float32, float64, int8, int32, int64
from flow_core.base.errors import InferenceError
from flow_core.base.thread_budget import Budget
from flow_core.base.thread_pools import process_budget
from flow_core.ir import initializers as core

SHAPE = (16, 8, 20, 25)
COUNT = 16 * 8 * 20 * 25


def numbers(initializer: Any, shape: Any = SHAPE, dtype: Any = float32, seed: int = 5) -> Any:
    return core.generate(initializer.to_attr(), shape, dtype, seed)


def check_moments(values: Any, mean: float, std: float) -> None:
    """Check that mean and deviation lie within five standard errors."""
    assert abs(values.mean(dtype=np.float64) - mean) < 5 * std / sqrt(values.size)
    assert abs(values.std(dtype=np.float64) / std - 1) < 5 / sqrt(values.size)


def test_constants() -> None:
    assert (numbers(api.constant_initializer(3.5)) == 3.5).all()
    assert (numbers(api.zeros_initializer()) == 0).all()
    assert (numbers(api.ones_initializer()) == 1).all()
    four = numbers(api.constant_initializer(4, int32), (3,), int32)
    assert four.dtype == np.int32
    assert four.tolist() == [4, 4, 4]


def test_large_integers_are_exact() -> None:
    big = 2**53 + 1
    assert numbers(api.constant_initializer(big, int64), (1,), int64).item() == big


def test_normal() -> None:
    check_moments(numbers(api.random_normal_initializer(3.0, 4.0)), 3.0, 4.0)


def test_uniform() -> None:
    values = numbers(api.random_uniform_initializer(-6, 18))
    check_moments(values, 6.0, 24 / sqrt(12))
    assert values.min() >= -6
    assert values.max() <= 18


@pytest.mark.parametrize("dtype", [int8, int32, int64])
def test_uniform_integers(dtype: Any) -> None:
    values = numbers(api.random_uniform_initializer(-6, 18, dtype), dtype=dtype)
    assert values.dtype == dtype.numpy
    found, counts = np.unique(values, return_counts=True)
    assert found.tolist() == list(range(-6, 19))
    assert abs(counts - COUNT / 25).max() < 5 * sqrt(COUNT / 25)


def test_one_integer() -> None:
    assert (numbers(api.random_uniform_initializer(7, 7, int32), (9,), int32) == 7).all()


def test_truncated_normal() -> None:
    values = numbers(api.truncated_normal_initializer(-5.0, 8.0))
    check_moments(values, -5.0, 8.0 * core.TRUNCATED_STD)
    assert abs(values + 5).max() <= 16
    np.testing.assert_array_equal(
        numbers(api.truncated_normal(0.1)), numbers(api.truncated_normal_initializer(0.0, 0.1))
    )


FANS = {
    ("fan_in", "NCHW"): 8 * 500,
    ("fan_out", "NCHW"): 16 * 500,
    ("fan_avg", "NCHW"): 12 * 500,
    ("fan_in", "NHWC"): 8 * 500,
    ("fan_out", "NHWC"): 16 * 8 * 20,
    ("fan_avg", "NHWC"): (4000 + 2560) / 2,
}


@pytest.mark.parametrize("distribution", core.DISTRIBUTIONS)
@pytest.mark.parametrize("key", FANS, ids="-".join)
def test_variance_scaling(key: tuple[str, str], distribution: str) -> None:
    mode, data_format = key
    initializer = api.variance_scaling_initializer(3.4, mode, distribution, data_format)
    check_moments(numbers(initializer), 0.0, sqrt(3.4 / FANS[key]))


@pytest.mark.parametrize("distribution", ["random_normal", "random_uniform"])
@pytest.mark.parametrize("key", FANS, ids="-".join)
def test_kaiming(key: tuple[str, str], distribution: str) -> None:
    mode, data_format = key
    initializer = api.kaiming_initializer(SHAPE, distribution, mode, "leaky_relu", 0.5, data_format)
    check_moments(numbers(initializer), 0.0, sqrt(2 / 1.25 / FANS[key]))


@pytest.mark.parametrize(
    ("nonlinearity", "gain"),
    [(None, 1.0), ("sigmoid", 1.0), ("tanh", 5 / 3), ("relu", sqrt(2)), ("leaky_relu", sqrt(2))],
)
def test_kaiming_gains(nonlinearity: Any, gain: float) -> None:
    initializer = api.kaiming_initializer((4, 25), nonlinearity=nonlinearity)
    assert initializer.params == (0.0, pytest.approx(gain / 5))


def test_glorot() -> None:
    for uniform in (api.glorot_uniform_initializer, api.xavier_uniform_initializer):
        values = numbers(uniform(), (300, 500))
        check_moments(values, 0.0, sqrt(2 / 800))
        assert abs(values).max() <= sqrt(6 / 800)
    for normal in (api.glorot_normal_initializer, api.xavier_normal_initializer):
        check_moments(numbers(normal("NCHW"), (300, 500)), 0.0, sqrt(2 / 800))


RANDOM = (
    api.random_normal_initializer(1.0, 2.0),
    api.random_uniform_initializer(-1, 1),
    api.truncated_normal_initializer(0.0, 2.0),
    api.variance_scaling_initializer(),
)


@settings(max_examples=30)
@given(st.sampled_from(RANDOM), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 5), max_size=4))
def test_values_depend_on_seed_and_index_only(
    initializer: Any, seed: int, shape: list[int]
) -> None:
    values = numbers(initializer, shape, float32, seed)
    assert values.shape == tuple(shape)
    np.testing.assert_array_equal(values, numbers(initializer, shape, float32, seed))
    if values.size and initializer.kind != "variance_scaling":
        flat = numbers(initializer, (values.size + 7,), float32, seed)
        np.testing.assert_array_equal(values.reshape(-1), flat[: values.size])


def at_once(mean: float, std: float, count: int, seed: int) -> Any:
    """Return normal numbers computed by the formula on one long array."""
    u, v = (philox.uniform(seed, (count,), draw=draw) for draw in (0, 1))
    z = np.sqrt(-2 * np.log1p(-u.astype(np.float64))) * np.cos(2 * np.pi * v)
    return (mean + std * z.astype(np.float32).astype(np.float64)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 7, philox.CHUNK - 1, philox.CHUNK + 1, 3 * philox.CHUNK + 5])
def test_chunked_numbers_equal_those_of_one_array(count: int) -> None:
    values = numbers(api.random_normal_initializer(1.0, 2.0), (count,), float32, 9)
    np.testing.assert_array_equal(values, at_once(1.0, 2.0, count, 9))


PARTED = (*RANDOM, api.random_uniform_initializer(-3, 9, int32), api.constant_initializer(2.0))


@st.composite
def boxes(draw: Any) -> Any:
    """Draw a shape and a box in it."""
    shape = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return tuple(shape), tuple((low, high) for low, high in ends)


@settings(max_examples=60)
@given(st.sampled_from(PARTED), st.integers(0, 2**64 - 1), boxes())
def test_part_equals_the_slice_of_the_whole(initializer: Any, seed: int, box: Any) -> None:
    shape, region = box
    dtype = int32 if initializer.kind == "random_uniform_int" else float32
    whole = numbers(initializer, shape, dtype, seed)
    part = core.generate(initializer.to_attr(), shape, dtype, seed, region)
    assert part.flags.c_contiguous
    np.testing.assert_array_equal(part, whole[tuple(slice(*ends) for ends in region)])


@pytest.mark.representative(
    r"\[truncated_normal-1\]",
    "columns, of which no chunk is contiguous; numbers that take the most scratch memory",
)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("initializer", RANDOM, ids=lambda i: i.kind)
def test_large_part_is_generated_without_the_whole(initializer: Any, axis: int) -> None:
    """In little more memory than the part needs: each thread draws numbers chunk by chunk."""
    shape, seed = (2048, 3072), philox.op_seed(3, "w")
    region = tuple((n // 4, n // 2) if i == axis else (0, n) for i, n in enumerate(shape))
    nbytes = prod(shape)  # a quarter of the elements, of four bytes
    numbers(initializer, (3,))  # triggers lazy imports
    tracemalloc.start()
    part = core.generate(initializer.to_attr(), shape, float32, seed, region)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert part.nbytes == nbytes
    assert peak < nbytes + 64 * philox.CHUNK * process_budget().count
    whole = numbers(initializer, shape, float32, seed)
    np.testing.assert_array_equal(part, whole[tuple(slice(*ends) for ends in region)])


@pytest.mark.parametrize(
    "initializer", [core.Initializer("random_normal", (0.0, 1.0)), api.truncated_normal(2.0)]
)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_values_do_not_depend_on_the_number_of_threads(
    initializer: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attr, shape = initializer.to_attr(), (40, 1000)
    wanted = core.generate(attr, shape, float32, 5)
    monkeypatch.setattr(core, "MIN_SHARE", 1 << 10)
    monkeypatch.setattr(philox, "CHUNK", 1 << 10)
    monkeypatch.setattr(core, "_scratch", [])  # of other sizes
    monkeypatch.setattr(core, "process_budget", lambda: Budget(count, ""))
    np.testing.assert_array_equal(core.generate(attr, shape, float32, 5), wanted)
    part = core.generate(attr, shape, float32, 5, ((3, 37), (10, 990)))
    np.testing.assert_array_equal(part, wanted[3:37, 10:990])


@pytest.mark.parametrize("initializer", RANDOM, ids=lambda i: i.kind)
def test_different_seeds_give_different_values(initializer: Any) -> None:
    a, b = (numbers(initializer, (1000,), float32, seed) for seed in (1, 2))
    assert (a != b).mean() > 0.99
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.2


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32, float64], ids=str)
@pytest.mark.parametrize("initializer", RANDOM, ids=lambda i: i.kind)
def test_types_round_the_same_numbers(initializer: Any, dtype: Any) -> None:
    values = numbers(initializer, (50, 4), dtype)
    assert values.dtype == dtype.numpy
    assert values.flags.c_contiguous
    np.testing.assert_allclose(
        values.astype(np.float64), numbers(initializer, (50, 4), float64), 1e-2, 1e-3
    )


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_zeros_of_every_type(dtype: Any) -> None:
    assert not core.generate(("constant", 0), (2, 0, 3), dtype, 0).any()
    assert not core.generate(("constant", 0.0), (2, 3), dtype, 0).any()


def test_attrs_round_trip() -> None:
    for initializer in RANDOM:
        assert core.Initializer.from_attr(initializer.to_attr()) == initializer


@pytest.mark.parametrize("attr", [(), ("norml", 0.0, 1.0), ("random_normal", 0.0), None, (1,)])
def test_wrong_attrs(attr: Any) -> None:
    with pytest.raises(InferenceError, match="random_normal"):
        core.generate(attr, (2,), float32, 0)


WRONG: dict[str, Any] = {
    "bounds": lambda: api.random_uniform_initializer(2, 1),
    "seed": lambda: api.random_normal_initializer(seed=3),
    "mode": lambda: api.variance_scaling_initializer(mode="fan"),
    "distribution": lambda: api.variance_scaling_initializer(distribution="normal"),
    "data_format": lambda: api.variance_scaling_initializer(data_format="CHWN"),
    "rank": lambda: api.kaiming_initializer((3,)),
    "nonlinearity": lambda: api.kaiming_initializer((3, 3), nonlinearity="gelu"),
    "dtype": lambda: api.constant_initializer(1, "bool"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments(what: str) -> None:
    with pytest.raises(InferenceError) as caught:
        WRONG[what]()
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_regularizers() -> None:
    assert regularizers.l1(0.1).to_attr() == ("l1_l2", 0.1, 0.0)
    assert regularizers.l2(0.1).to_attr() == ("l1_l2", 0.0, 0.1)
    assert regularizers.l1_l2().to_attr() == ("l1_l2", 0.01, 0.01)
