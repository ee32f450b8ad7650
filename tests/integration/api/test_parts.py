"""Gradients, devices and errors of split, unbind, roll, cumsum and norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, InferenceError, UnsupportedError

X = np.arange(24, dtype=np.float64).reshape(2, 4, 3) - 7.5

LINEAR: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "split": (lambda x: flow.split(x, [1], 1)[1], lambda x: x[:, 1:]),
    "split-by-numpy": (lambda x: flow.split(x, np.int64(2), 1)[1], lambda x: x[:, 2:]),
    "unbind": (lambda x: flow.unbind(x, -1)[2], lambda x: x[..., 2]),
    "roll": (lambda x: flow.roll(x, (1, -1), (1, 2)), lambda x: np.roll(x, (1, -1), (1, 2))),
    "roll-all": (lambda x: flow.roll(x, 5), lambda x: np.roll(x, 5)),
    "cumsum": (lambda x: flow.cumsum(x, 1), lambda x: np.cumsum(x, 1)),
    "cumsum-from-the-end": (
        lambda x: flow.cumsum(x, 2, exclusive=True, reverse=True),
        lambda x: np.flip(np.cumsum(np.flip(x, 2), 2), 2) - x,
    ),
}
NORMS: dict[str, tuple[Any, Any]] = {
    "2": (None, -1), "1": (1, 1), "3": (3, 1), "inf": (np.inf, -1), "fro": ("fro", (0, 2)),
    "columns": (1, (1, 2)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def devices() -> None:
    flow.config.cpu_device_num(4)


def gradient(function: Callable[[Any], Any], x: Any) -> Any:
    """Return the gradient of the sum of a function of a variable."""
    found = []

    @flow.global_function("train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", x.shape, flow.double, flow.zeros_initializer())
        flow.watch_diff(w, lambda blob: found.append(blob.numpy()))
        loss = flow.math.reduce_sum(function(w))
        flow.optimizer.SGD(0.0).minimize(loss)
        return loss

    flow.load_variables({"w": x})
    job()
    return found[0]


def differences(function: Callable[[Any], Any], x: Any, step: float) -> Any:
    quotients = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[at] += sign * step
            ends.append(np.sum(function(moved)))
        quotients[at] = (ends[0] - ends[1]) / (2 * step)
    return quotients


@pytest.mark.parametrize("name", LINEAR)
def test_gradients_of_the_squares(name: str) -> None:
    ours, numpys = LINEAR[name]
    found = gradient(lambda x: ours(x) * ours(x), X)
    np.testing.assert_allclose(found, differences(lambda x: numpys(x) ** 2, X, 0.5), rtol=1e-9)


@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_norms(name: str) -> None:
    ord, axis = NORMS[name]
    found = gradient(lambda x: flow.linalg.norm(x, ord, axis), X)
    wanted = differences(lambda x: np.linalg.norm(x, ord, axis), X, 1e-6)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ord", [None, 1, 2, 3, "fro"])
def test_gradients_of_norms_at_zero_are_zero(ord: Any) -> None:
    axis = (1, 2) if ord == "fro" else 1
    found = gradient(lambda x: flow.linalg.norm(x, ord, axis), np.zeros_like(X))
    np.testing.assert_array_equal(found, np.zeros_like(X))


@pytest.mark.parametrize("name", LINEAR)
def test_four_devices_give_the_same(name: str) -> None:
    ours, numpys = LINEAR[name]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape, dtype=flow.double)) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3"):
            return ours(x)

    np.testing.assert_allclose(job(X), numpys(X), rtol=1e-12)


@pytest.mark.parametrize("name", ["roll", "cumsum"])
def test_special_values(name: str) -> None:
    ours, numpys = LINEAR[name]
    x = X.copy()
    x[0, 1], x[1, 0, 0], x[1, 3] = np.inf, np.nan, -0.0

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape, dtype=flow.double)) -> tp.Numpy:
        return ours(x)

    np.testing.assert_array_equal(job(x), numpys(x))


OPEN: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "roll": (lambda x: flow.roll(x, 1, 0), lambda x: np.roll(x, 1, 0)),
    "cumsum": (lambda x: flow.cumsum(x, 0), lambda x: x.cumsum(0)),
    "split": (lambda x: flow.split(x, [1], 1)[0], lambda x: x[:, :1]),
    "unbind": (lambda x: flow.unbind(x, 1)[1], lambda x: x[:, 1]),
    "norm": (lambda x: flow.norm(x, axis=1), lambda x: np.linalg.norm(x, axis=1)),
}


@pytest.mark.parametrize("name", OPEN)
def test_rows_may_be_of_any_number(name: str) -> None:
    ours, numpys = OPEN[name]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None, 3))) -> tp.Numpy:
        return ours(x)

    for rows in (3, 1, 4):
        x = np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_allclose(job(x), numpys(x), rtol=1e-6)


WRONG: dict[str, tuple[Callable[[Any], Any], type[FlowError], str]] = {
    "parts": (lambda x: flow.split(x, 3, 1), InferenceError, "a number that divides 4"),
    "sizes": (lambda x: flow.split(x, sizes=[1, 2], axis=1), InferenceError, "4 together"),
    "empty": (lambda x: flow.split(x, [1, 1], 1), InferenceError, "parts of at least 1"),
    "both": (lambda x: flow.split(x, 2, sizes=2), InferenceError, "one of indices_or_sections"),
    "neither": (lambda x: flow.split(x), InferenceError, "one of indices_or_sections"),
    "text": (lambda x: flow.split(x, "ab"), InferenceError, "a number, or a list of indices"),
    "array": (lambda x: flow.split(x, np.array([1, 2])), InferenceError, "a list of indices"),
    "axis": (lambda x: flow.unbind(x, 3), InferenceError, "-3 <= axis < 3"),
    "shifts": (lambda x: flow.roll(x, (1, 2), (0, 1, 2)), InferenceError, "an integer per axis"),
    "shift": (lambda x: flow.roll(x, 1.5, 0), FlowError, "1.5"),
    "cumsum": (lambda x: flow.cumsum(x, 5), InferenceError, "-3 <= axis < 3"),
    "order": (lambda x: flow.norm(x, "nuc", (0, 1)), UnsupportedError, "'nuc'"),
    "small-order": (lambda x: flow.norm(x, 0.5, 0), UnsupportedError, "at least 1"),
    "axes": (lambda x: flow.norm(x, 1), InferenceError, "one or two axes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_at_the_user_s_line(name: str) -> None:
    function, kind, text = WRONG[name]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        found = function(x)
        return found[0] if isinstance(found, list) else found

    with pytest.raises(kind) as error:
        job(X)
    assert text in str(error.value)
    assert "test_parts.py" in str(error.value)
