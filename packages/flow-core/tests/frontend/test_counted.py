"""Blobs with a per-step number of valid rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
from flow_core.base.errors import JobError
from flow_typing import ListNumpy, Numpy

RNG = np.random.default_rng(5)
N = 6


def numbers(*shape: int) -> Any:
    return RNG.integers(-32, 33, shape).astype(np.float32) / 16


ROW_WISE = {
    "exp": (lambda x: flow.math.exp(x), np.exp),
    "a scalar": (lambda x: 3 - 2 * x, lambda x: 3 - 2 * x),
    "reshape": (lambda x: flow.reshape(x, (N, 2, 2)), lambda x: x.reshape(-1, 2, 2)),
    "transpose": (lambda x: flow.transpose(x, (1, 0)), lambda x: x.T),
    "row sums": (lambda x: flow.math.reduce_sum(x, axis=1), lambda x: x.sum(axis=1)),
    "softmax": (
        lambda x: flow.nn.softmax(x),
        lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
    ),
    "slice": (lambda x: flow.slice_v2(x, [(None, None, None), (1, 3, 1)]), lambda x: x[:, 1:3]),
    "two of one count": (lambda x: x * flow.math.relu(x), lambda x: x * np.maximum(x, 0)),
    "all rows": (lambda x: flow.math.reduce_sum(flow.math.exp(x)), lambda x: np.exp(x).sum()),
    "column sums": (lambda x: flow.math.reduce_sum(x + 1, axis=0), lambda x: (x + 1).sum(axis=0)),
    "mean": (lambda x: flow.math.reduce_mean(x + 1), lambda x: (x + 1).mean()),
    "column means": (lambda x: flow.math.reduce_mean(x, axis=0), lambda x: x.mean(axis=0)),
    "greatest": (lambda x: flow.math.reduce_max(x - 9), lambda x: (x - 9).max()),
    "column minima": (lambda x: flow.math.reduce_min(x + 9, 0), lambda x: (x + 9).min(axis=0)),
    "row maxima": (lambda x: flow.math.reduce_max(x - 9, 1), lambda x: (x - 9).max(axis=1)),
    "greatest integer": (
        lambda x: flow.math.reduce_max(flow.cast(x * 16 - 99, flow.int32), axis=[0], keepdims=True),
        lambda x: (x * 16 - 99).max(axis=0, keepdims=True),
    ),
    "variance": (lambda x: flow.math.reduce_variance(x, axis=0), lambda x: x.var(axis=0)),
}


@pytest.mark.parametrize("name", ROW_WISE)
def test_valid_rows_propagate_through_ops(name: str) -> None:
    made, want = ROW_WISE[name]

    @flow.global_function()
    def job(x: Numpy.Placeholder((N, 4)), size: Numpy.Placeholder((1,), dtype=flow.int32)) -> Numpy:
        return made(flow.sync_dynamic_resize(x, size))

    x = numbers(N, 4)
    for size in (4, 1, N):
        got = job(x, np.array([size], np.int32))
        expected = want(x[:size])
        assert got.shape == (np.shape(expected) or (1,))
        assert np.allclose(got, expected, atol=1e-5)


@given(st.integers(0, 2**12 - 1))
@settings(max_examples=10)
def test_nonzero_positions_match_numpy(bits: int) -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((3, 4))) -> ListNumpy:
        return flow.argwhere(x)

    x = np.array([bits >> i & 1 for i in range(12)], np.float32).reshape(3, 4)
    (places,) = job(x)
    assert places.dtype == np.int32
    assert np.array_equal(places, np.argwhere(x))


def test_scatter_restores_gathered_rows() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((N, 4)), mask: Numpy.Placeholder((N,))) -> Numpy:
        places = flow.argwhere(mask)
        return flow.scatter_nd(places, flow.gather_nd(x, places) + 1, (N, 4))

    x, mask = numbers(N, 4), np.array([0, 1, 1, 0, 0, 1], np.float32)
    assert np.array_equal(job(x, mask), (x + 1) * mask[:, None])


WRITTEN = ([0, 1, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0], [0] * N, [1] * N)


@pytest.mark.parametrize("function", ["tensor_scatter_nd_update", "tensor_scatter_nd_add"])
def test_only_valid_rows_are_written(function: str) -> None:
    """The first position, which invalid rows would have, is written by valid rows alone."""
    flow.clear_default_session()

    @flow.global_function(type="train")
    def job(x: Numpy.Placeholder((N, 2)), mask: Numpy.Placeholder((N,))) -> Numpy:
        params = flow.get_variable("params", (N, 2), initializer=flow.constant_initializer(2.0))
        rows = flow.get_variable("rows", (N, 2), initializer=flow.constant_initializer(3.0))
        places = flow.argwhere(mask)
        y = getattr(flow, function)(params, places, flow.gather_nd(rows, places))
        rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(flow.math.reduce_sum(y * x))
        return y

    params, rows = np.full((N, 2), 2.0), np.full((N, 2), 3.0)
    for mask in np.array(WRITTEN, np.float32):
        x, written = numbers(N, 2), mask[:, None] > 0
        kept = params if function.endswith("add") else np.where(written, 0, params)
        assert np.allclose(job(x, mask), kept + np.where(written, rows, 0), atol=1e-5)
        params = params - (x if function.endswith("add") else np.where(written, 0, x))
        rows = rows - np.where(written, x, 0)
        for name, want in (("params", params), ("rows", rows)):
            assert np.allclose(flow.get_all_variables()[name].numpy(), want, atol=1e-5)
    flow.clear_default_session()


def test_valid_rows_of_what_is_written_to_are_kept() -> None:
    @flow.global_function()
    def job(
        x: Numpy.Placeholder((N,)), mask: Numpy.Placeholder((3,)), n: Numpy.Placeholder((1,))
    ) -> Numpy:
        rows, places = flow.sync_dynamic_resize(x, flow.cast(n, flow.int32)), flow.argwhere(mask)
        return flow.tensor_scatter_nd_update(rows, places, flow.gather_nd(-x, places))

    x = np.arange(1, N + 1, dtype=np.float32)
    assert job(x, [0, 1, 1], [2]).tolist() == [1, -2]
    assert job(x, [1, 0, 0], [4]).tolist() == [-1, 2, 3, 4]


def test_reads_at_the_positions_of_other_rows_are_rejected() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((N,)), mask: Numpy.Placeholder((N,))) -> Numpy:
        places = flow.argwhere(mask)
        return flow.tensor_scatter_nd_update(x, places, flow.gather_nd(x, flow.argwhere(mask - 1)))

    with pytest.raises(JobError, match="with equal valid rows"):
        job(numbers(N), np.zeros(N, np.float32))


def test_nonzero_and_where_without_alternatives() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((3, 4))) -> Numpy:
        return flow.nonzero(x)

    @flow.global_function()
    def other(x: Numpy.Placeholder((3, 4))) -> Numpy:
        return flow.where(x)

    x = numbers(3, 4) * RNG.integers(0, 2, (3, 4))
    x = x.astype(np.float32)
    assert np.array_equal(job(x), np.array(np.nonzero(x)))
    assert np.array_equal(other(x), np.argwhere(x))


def test_gradients_ignore_padding_rows() -> None:
    """Also where the padding rows, which are zeros, have no finite gradient."""
    flow.clear_default_session()

    @flow.global_function(type="train")
    def job(mask: Numpy.Placeholder((N,))) -> Numpy:
        weight = flow.get_variable("w", (N, 2), initializer=flow.constant_initializer(2.0))
        rows = flow.gather_nd(weight, flow.argwhere(mask))
        loss = flow.math.reduce_mean(flow.math.log(rows))
        rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    mask = np.array([1, 0, 0, 1, 1, 0], np.float32)
    assert np.allclose(job(mask), np.log(2))
    want = 2 - mask[:, None] * np.full((N, 2), 1 / 2 / 6)
    assert np.allclose(flow.get_all_variables()["w"].numpy(), want, atol=1e-6)
    flow.clear_default_session()


def test_gradient_of_a_maximum_goes_to_a_valid_row() -> None:
    """The zeros of the padding rows would be greater."""
    flow.clear_default_session()
    start = np.array([-3, -1, -5, -2, -9, -4], np.float32)

    @flow.global_function(type="train")
    def job(mask: Numpy.Placeholder((N,))) -> tuple[Numpy, Numpy]:
        weight = flow.get_variable("w", (N,), initializer=flow.constant_initializer(0.0))
        found = flow.gather_nd(weight, flow.argwhere(mask))
        hardest, easiest = flow.math.reduce_max(found), flow.math.reduce_min(found)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(hardest - 2 * easiest)
        return hardest, easiest

    mask = np.array([1, 0, 1, 1, 0, 1], np.float32)
    job(mask * 0 + 1)
    flow.load_variables({"w": start})
    assert [x.tolist() for x in job(mask)] == [[-2], [-5]]
    changed = flow.get_all_variables()["w"].numpy() - start
    assert changed.tolist() == [0, 0, 2, -1, 0, 0]
    flow.clear_default_session()


@pytest.mark.parametrize("sbp", [flow.distribute.split(0), flow.distribute.broadcast()])
def test_valid_rows_may_span_several_devices(sbp: Any) -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(3)

    @flow.global_function()
    def job(x: Numpy.Placeholder((7, 2)), size: Numpy.Placeholder((1,), dtype=flow.int64)) -> Numpy:
        with flow.scope.placement("cpu", "0:0-2"):
            return flow.math.relu(flow.sync_dynamic_resize(x.with_distribute(sbp), size))

    x = numbers(7, 2)
    for size in (0, 4, 7):
        assert np.array_equal(job(x, np.array([size])), np.maximum(x[:size], 0))
    flow.clear_default_session()


@pytest.mark.parametrize("sbp", [flow.distribute.split(0), flow.distribute.broadcast()])
def test_maxima_of_valid_rows_on_several_devices(sbp: Any) -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(3)

    @flow.global_function()
    def job(x: Numpy.Placeholder((7, 2)), size: Numpy.Placeholder((1,), dtype=flow.int64)) -> Numpy:
        with flow.scope.placement("cpu", "0:0-2"):
            rows = flow.sync_dynamic_resize(x.with_distribute(sbp), size)
            return flow.math.reduce_max(rows - 9, axis=0)

    x = numbers(7, 2)
    for size in (1, 4, 7):
        assert np.array_equal(job(x, np.array([size])), (x[:size] - 9).max(axis=0))
    flow.clear_default_session()


def test_each_device_of_the_mirrored_view_has_its_own_count() -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-1"))

    @flow.global_function(function_config=config)
    def job(x: ListNumpy.Placeholder((3, 4))) -> ListNumpy:
        return flow.argwhere(x) + 1

    xs = [np.eye(3, 4, dtype=np.float32), np.ones((3, 4), np.float32)]
    for got, x in zip(job(xs), xs, strict=True):
        assert np.array_equal(got, np.argwhere(x) + 1)
    flow.clear_default_session()


@pytest.mark.parametrize(
    "made",
    [
        lambda x, n: flow.math.reduce_prod(x, axis=0),
        lambda x, n: flow.reverse(x, 0),
        lambda x, n: flow.concat([x, x], axis=0),
        lambda x, n: x + flow.sync_dynamic_resize(x, n + 0),
        lambda x, n: flow.flatten(x, 0),
    ],
)
def test_ops_that_mix_rows_are_rejected(made: Any) -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((N, 4)), size: Numpy.Placeholder((1,), dtype=flow.int32)) -> Numpy:
        return made(flow.sync_dynamic_resize(x, size), size)

    with pytest.raises(JobError, match="cast_to_static_shape"):
        job(numbers(N, 4), np.array([2], np.int32))


def test_cast_to_static_shape_returns_all_rows() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((N, 4)), size: Numpy.Placeholder((1,), dtype=flow.int32)) -> Numpy:
        return flow.reverse(flow.cast_to_static_shape(flow.sync_dynamic_resize(x, size) + 1), 0)

    x = numbers(N, 4)
    want = np.zeros((N, 4), np.float32)
    want[:2] = x[:2] + 1
    assert np.array_equal(job(x, np.array([2], np.int32)), want[::-1])
