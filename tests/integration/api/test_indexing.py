"""Index notation on blobs gives what numpy gives, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, JobError, NoValueError

X = np.arange(4 * 6 * 2, dtype=np.float32).reshape(4, 6, 2)
NEW = None
KEYS: dict[str, Any] = {
    "0": 0,
    "-1": -1,
    "numpy-integer": np.int64(2),
    "row-and-column": (1, -2),
    "all": (),
    "colon": slice(None),
    "first-two": slice(0, 2),
    "cut-off": slice(1, 100),
    "below": slice(-100, 3),
    "from-the-end": slice(-3, -1),
    "every-second": (slice(None), slice(None, None, 2)),
    "backwards": (slice(None), slice(None, None, -1)),
    "backwards-part": (slice(None), slice(4, 0, -2)),
    "last-column": (..., -1),
    "column-in-the-middle": (slice(None), 3),
    "ellipsis-in-the-middle": (0, ..., 1),
    "ellipsis-for-nothing": (1, ..., slice(2, 4), 0),
    "new-first": (NEW,),
    "new-in-the-middle": (slice(None), NEW, 2),
    "new-last": (..., NEW),
    "new-twice": (NEW, 0, NEW),
    "rows": [2, 0, 0],
    "negative-rows": np.array([-1, 1]),
    "columns": (slice(1, 3), [5, -6]),
    "rows-in-two-axes": (np.array([[0, 1], [2, 3]]),),
    "columns-and-new": (NEW, slice(None), np.array([[0, 1]]), NEW),
    "truth-values": np.array([True, False, True, True]),
    "truth-values-of-columns": (slice(None), [True, False, False, True, False, True]),
}


@pytest.fixture(autouse=True)
def devices() -> None:
    flow.config.cpu_device_num(4)


def predict(key: Any, x: Any = X, devices: str = "0:0") -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            return x[key]

    return job(x)


@pytest.mark.parametrize("name", KEYS)
def test_parts_are_those_of_numpy(name: str) -> None:
    np.testing.assert_array_equal(predict(KEYS[name]), X[KEYS[name]], strict=True)


@pytest.mark.parametrize("name", ["from-the-end", "last-column", "columns", "new-in-the-middle"])
def test_parts_on_four_devices_are_those_of_one(name: str) -> None:
    np.testing.assert_array_equal(predict(KEYS[name], devices="0:0-3"), X[KEYS[name]])


@pytest.mark.parametrize("name", ["every-second", "last-column", "columns", "negative-rows"])
def test_gradients_flow_to_the_elements_of_the_part(name: str) -> None:
    key = KEYS[name]
    wanted = np.zeros_like(X)
    np.add.at(wanted, key, 1)
    found = []

    @flow.global_function("train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", X.shape, initializer=flow.zeros_initializer())
        flow.watch_diff(w, lambda gradient: found.append(gradient.numpy()))
        loss = flow.math.reduce_sum(w[key])
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    job()
    np.testing.assert_array_equal(found[0], wanted)


def test_indices_may_be_a_blob() -> None:
    @flow.global_function()
    def job(
        x: tp.Numpy.Placeholder(X.shape), i: tp.Numpy.Placeholder((2,), flow.int32)
    ) -> tp.Numpy:
        return x[1:3, i]

    np.testing.assert_array_equal(job(X, np.int32([5, 0])), X[1:3, [5, 0]])


def test_each_device_takes_its_own_part_in_the_mirrored_view() -> None:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 6, 2))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            return x[..., -1]

    np.testing.assert_array_equal(job(X), X[..., -1])


def test_open_sizes_count_from_the_end() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None, 6, 2))) -> tp.Numpy:
        return x[-1]

    for rows in (4, 2, 3):
        np.testing.assert_array_equal(job(X[:rows]), X[rows - 1])


WRONG: dict[str, tuple[Any, str]] = {
    "too-many": ((0, 0, 0, 0), "at most 3 numbers, slices and arrays"),
    "out-of-range": (4, "-4 <= index < 4, the size of axis 0"),
    "out-of-range-array": ([0, -5], "index -5"),
    "no-rows": ([], "integers"),
    "nothing": (slice(2, 2), "a slice with elements of axis 0 of size 4"),
    "step-0": (slice(None, None, 0), "a slice with elements"),
    "float": (1.0, "float 1.0"),
    "text": ("a", "str 'a'"),
    "truth": (True, "bool True"),
    "too-few-truth-values": (
        (slice(None), [True] * 4),
        "6 truth values, one per element of axis 1",
    ),
    "two-ellipses": ((..., 0, ...), "one ..."),
    "two-arrays": (([0], [1]), "index in two steps"),
    "number-and-array": ((0, [1]), "index in two steps"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_keys_are_refused(name: str) -> None:
    key, text = WRONG[name]
    with pytest.raises(JobError) as error:
        predict(key)
    assert text in str(error.value)
    assert "test_indexing.py" in str(error.value)


NEEDS_DATA: dict[str, Callable[[Any], Any]] = {
    "mask": lambda x: x[x > 1],
    "loop": lambda x: list(x),
    "assignment": lambda x: x.__setitem__(0, 1),
}


@pytest.mark.parametrize("name", NEEDS_DATA)
def test_what_needs_data_is_refused(name: str) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        return NEEDS_DATA[name](x)

    with pytest.raises(FlowError) as error:
        job(X)
    assert isinstance(error.value, NoValueError)
