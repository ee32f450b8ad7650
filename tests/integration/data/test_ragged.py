"""TensorBuffer and TensorList inside of jobs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import AnnotationError, FeedError, InferenceError
from flow_core.sharding.topology import Device
from flow_data.instances import InstanceError


def lists(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.random((1, *shape)).astype(np.float32) for shape in shapes]


def mirrored() -> Any:
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())
    return config


def test_tensors_there_and_back() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3, 2))) -> tp.Numpy:
        buffer = flow.tensor_to_tensor_buffer(x, instance_dims=1)
        assert (buffer.shape, buffer.dtype) == ((4, 3), flow.tensor_buffer)
        return flow.tensor_buffer_to_tensor(buffer, flow.float, (2,)) * 2.0

    x = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    for _ in range(2):
        np.testing.assert_array_equal(job(x), x * 2)


def test_lists_in_and_out() -> None:
    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListListNumpy.Placeholder((2, 5, 4))) -> tp.ListListNumpy:
        assert (x.shape, x.dtype, x.is_dynamic) == ((2, 5, 4), flow.float, True)
        buffer = flow.tensor_list_to_tensor_buffer(x)
        return flow.tensor_buffer_to_tensor_list(buffer, (5, 4), flow.float)

    for shapes in (((3, 4), (2, 4)), ((5, 4), (1, 1))):
        given = lists(*shapes)
        (found,) = job([given])
        for a, b in zip(found, given, strict=True):
            np.testing.assert_array_equal(a, b)
    before = [x.copy() for x in found]
    job([lists((1, 1), (2, 2))])
    for a, b in zip(found, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_results_are_no_views_of_what_was_fed() -> None:
    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListListNumpy.Placeholder((1, 5))) -> tp.ListListNumpy:
        return x

    (given,) = lists((3,))
    kept = given.copy()
    ((found,),) = job([[given]])
    given[:] = 7
    np.testing.assert_array_equal(found, kept)


def test_lists_are_split() -> None:
    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListListNumpy.Placeholder((2, 5, 4))) -> tuple[tp.ListNumpy, tp.ListNumpy]:
        return flow.tensor_list_split(x)

    given = lists((3, 4), (5, 2))
    for found, x in zip(job([given]), given, strict=True):
        np.testing.assert_array_equal(found[0], x[0])


def test_unannotated_results_have_lists() -> None:
    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListListNumpy.Placeholder((2, 5))):  # type: ignore[no-untyped-def]
        return x

    given = lists((3,), (5,))
    result = job([given]).get()
    assert result.is_dynamic
    assert [x.shape for x in result.numpy_lists()[0]] == [(1, 3), (1, 5)]


@pytest.mark.parametrize(
    ("fed", "found"),
    [
        ([lists((3,), (9,))], r"shape \(1, 9\)"),
        ([lists((3,), (2, 2))], r"shape \(1, 2, 2\)"),
        ([[x.astype(str) for x in lists((3,), (3,))]], "<U"),
        (lists((3,), (3,)), "a list of 2"),
    ],
)
def test_lists_that_do_not_fit(fed: Any, found: str) -> None:
    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListListNumpy.Placeholder((2, 5))) -> tp.ListListNumpy:
        return x

    with pytest.raises(FeedError, match=found):
        job(fed)


def test_numbers_of_another_type_are_cast() -> None:
    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListListNumpy.Placeholder((2, 5))) -> tp.ListListNumpy:
        return x

    given = lists((3,), (5,))
    found = job([[x.astype(np.float64) for x in given]])
    for x, y in zip(given, found[0], strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


def test_instances_that_do_not_fit_are_named() -> None:
    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListListNumpy.Placeholder((2, 5))) -> tp.Numpy:
        return flow.tensor_buffer_to_tensor(flow.tensor_list_to_tensor_buffer(x), flow.float, (3,))

    np.testing.assert_array_equal(job([lists((3,), (3,))]).shape, (2, 3))
    with pytest.raises(InstanceError, match="instance 1") as caught:
        job([lists((3,), (4,))])
    assert "float32[4]" in str(caught.value)
    assert "float32[3]" in str(caught.value)


def test_ragged_blobs_are_no_arrays() -> None:
    @flow.global_function()
    def add(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return flow.tensor_to_tensor_buffer(x, instance_dims=1) + 1.0

    with pytest.raises(InferenceError, match="tensor_buffer_to_tensor"):
        add(np.zeros((4, 3), np.float32))

    @flow.global_function()
    def give(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return flow.tensor_to_tensor_buffer(x, instance_dims=1)

    with pytest.raises(AnnotationError, match="ListListNumpy"):
        give(np.zeros((4, 3), np.float32))


def test_gradients_go_through() -> None:
    """A weight learns as it does without the way through a TensorBuffer."""

    def losses(ragged: bool) -> list[float]:
        flow.clear_default_session()

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
            with flow.scope.placement("cpu", "0:0"):
                w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
                y = x * flow.reshape(w, (1, 3))
                if ragged:
                    y = flow.tensor_to_tensor_buffer(y, instance_dims=1)
                    y = flow.tensor_buffer_to_tensor(y, flow.float, (3,))
                loss = flow.math.reduce_mean(flow.math.square(y))
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.3])
            flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
            return loss

        x = np.arange(12, dtype=np.float32).reshape(4, 3) / 12
        return [float(job(x).mean()) for _ in range(4)]

    plain = losses(False)
    assert losses(True) == plain
    assert plain[-1] < plain[0]


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_instances_are_split_over_devices(devices: int) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((5, 2, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", f"0:0-{devices - 1}"):
            buffer = flow.tensor_to_tensor_buffer(x, instance_dims=2)
            return flow.tensor_buffer_to_tensor(buffer, flow.float, (2, 3)) + 1.0

    x = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    np.testing.assert_array_equal(job(x), x + 1)
    (split,) = {t.op for t in job.plan().tasks if t.op.startswith("tensor_to_tensor_buffer@1")}
    assert split


def held(devices: int, count: int) -> dict[int, int]:
    """Which device has each instance under S(0)."""
    sizes = [count // devices + (d < count % devices) for d in range(devices)]
    owners = [d for d, size in enumerate(sizes) for _ in range(size)]
    return dict(enumerate(owners))


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (2, 3), (1, 4), (3, 3)])
@pytest.mark.parametrize("count", [8, 5])
def test_only_instances_that_change_owner_move(
    before: int, after: int, count: int, as_list: bool
) -> None:
    """The ledger, and what was sent, have 8 bytes for each of them, link by link."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((count, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", f"0:0-{before - 1}"):
            values = flow.tensor_to_tensor_buffer(x, instance_dims=1)
            if as_list:
                values = flow.tensor_buffer_to_tensor_list(values, (3,), flow.float)
        with flow.scope.placement("cpu", f"0:0-{after - 1}"):
            if as_list:
                values = flow.tensor_list_to_tensor_buffer(values)
            return flow.tensor_buffer_to_tensor(values, flow.float, (3,)) + 1.0

    x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    np.testing.assert_array_equal(job(x), x + 1)
    ledger = job.compile().physical.ledger
    moved = Counter()
    for entry in ledger:
        if entry.value.startswith("tensor_"):
            moved.update({(a, b): n for a, b, n in entry.links})
    pairs = zip(held(before, count).values(), held(after, count).values(), strict=True)
    changed = Counter((Device("cpu", 0, a), Device("cpu", 0, b)) for a, b in pairs if a != b)
    assert moved == {link: 8 * n for link, n in changed.items()}
    planned = Counter()
    for entry in ledger:
        planned.update({(a, b): n for a, b, n in entry.links})
    assert job.executable().sent() == +planned


SHAPES = [(10, 10), (50, 50), (20, 80), (0, 3)]


@pytest.mark.parametrize("shape", [(2, 2), (4,), [(4,)]])
@pytest.mark.parametrize("dtype", [flow.float, flow.double, flow.int32, flow.int64])
def test_generated_instances_are_returned_one_by_one(shape: Any, dtype: Any) -> None:
    @flow.global_function()
    def job() -> tp.Bundle[tp.ListNumpy]:
        x = flow.gen_tensor_buffer(shape, SHAPES, [0, 1, 2.0, 3], dtype)
        assert x.shape == ((4,) if len(shape) == 1 else (2, 2))
        parts = flow.tensor_buffer_to_list_of_tensors(x, (50, 50), dtype, dynamic_out=True)
        assert [part.shape for part in parts] == [(50, 50)] * 4
        return parts

    for _ in range(2):
        for number, (found,) in enumerate(job()):
            wanted = np.full(SHAPES[number], number, dtype.numpy)
            np.testing.assert_array_equal(found, wanted, strict=True)


def test_instances_of_one_size_become_tensors() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3, 4))) -> tp.Bundle[tp.Numpy]:
        parts = flow.tensor_buffer_to_list_of_tensors(
            flow.tensor_to_tensor_buffer(x, 1), (2, 2), flow.float
        )
        return [part * 2.0 for part in parts]

    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(np.stack(job(x)), x.reshape(6, 2, 2) * 2)


@pytest.mark.parametrize(
    ("dynamic", "dtype", "found"),
    [
        (False, flow.float, r"(?s)instance 1.*float32\[3,3\].*exactly 8 elements.*dynamic_out"),
        (True, flow.float, r"(?s)instance 1.*float32\[3,3\].*at most 8 elements"),
        (True, flow.int32, r"(?s)instance 0.*float32\[2,4\].*int32"),
    ],
)
def test_instances_of_another_size_or_type_are_named(dynamic: Any, dtype: Any, found: str) -> None:
    @flow.global_function()
    def job() -> tp.Bundle[tp.ListNumpy if dynamic else tp.Numpy]:
        x = flow.gen_tensor_buffer((2,), [(2, 4), (3, 3)], [0, 1])
        return flow.tensor_buffer_to_list_of_tensors(x, (2, 4), dtype, dynamic)

    with pytest.raises(InstanceError, match=found):
        job()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (((2,), [(2,)], [0, 1]), "1 shapes and 2 values"),
        (((1,), [(-2,)], [0]), "sizes from 0"),
        (((1,), [(2,)], [300], flow.int8), "-128 to 127"),
        (((1,), [(2,)], [3], flow.tensor_buffer), "a type of numbers"),
    ],
)
def test_wrong_generated_instances(arguments: Any, found: str) -> None:
    @flow.global_function()
    def job() -> tp.ListNumpy:
        return flow.tensor_buffer_to_list_of_tensors(
            flow.gen_tensor_buffer(*arguments), (2,), flow.float, True
        )[0]

    with pytest.raises(InferenceError, match=found):
        job()
