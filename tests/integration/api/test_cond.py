"""``flow.cond`` gives the results and gradients of the chosen function alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, JobError, UnsupportedError

X = np.random.default_rng(0).uniform(0.5, 2, (4, 3)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def devices() -> None:
    flow.config.cpu_device_num(4)


def root(x: Any) -> Any:
    """NaN, and with an infinite slope at 0, for what the other function is there for."""
    return flow.math.sqrt(flow.matmul(x, weight("a")))


def line(x: Any) -> Any:
    return flow.matmul(x, weight("b")) * 2.0


def weight(name: str) -> Any:
    return flow.get_variable(name, W.shape, initializer=flow.zeros_initializer())


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, 1e-30, np.nan])
def test_one_function_is_chosen(devices: str, value: float) -> None:
    @flow.global_function()
    def job(
        on: tp.Numpy.Placeholder((1,)), x: tp.Numpy.Placeholder(X.shape)
    ) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement("cpu", devices):
            return flow.cond(on, lambda x: (x + 1.0, x), lambda x: (x * 2.0, -x), x)

    found = job([value], X)
    wanted = (X + 1, X) if value else (X * 2, -X)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def trained(on: float, devices: str = "0:0") -> tuple[Any, dict[str, Any]]:
    """Return the loss, and the gradients of the variables and of the operand."""
    found: dict[str, Any] = {}

    @flow.global_function("train")
    def job(pred: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            x = flow.get_variable("x", X.shape, initializer=flow.zeros_initializer())
            shared = flow.get_variable("c", (1,), initializer=flow.zeros_initializer())
            y = flow.cond(pred, lambda x: root(x) + shared, lambda x: line(x) * shared, x)
            for name, blob in (("x", x), ("c", shared)):
                flow.watch_diff(blob, lambda given, name=name: found.update({name: given.numpy()}))
            loss = flow.math.reduce_sum(y)
            flow.optimizer.SGD(1.0).minimize(loss)
            return loss

    flow.load_variables({"x": X, "a": -np.abs(W), "b": W, "c": np.float32([0.5])})
    loss = job([on])
    after = flow.get_all_variables()
    before = {"a": -np.abs(W), "b": W}
    found |= {name: before[name] - after[name].numpy() for name in ("a", "b")}
    return loss, found


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
def test_nan_of_the_other_function_reaches_no_gradient(devices: str) -> None:
    loss, found = trained(0, devices)
    assert loss == pytest.approx((X @ W).sum(), rel=1e-4)
    ones = np.ones_like(X)
    np.testing.assert_array_equal(found["a"], 0)
    np.testing.assert_allclose(found["b"], X.T @ ones, rtol=1e-5)
    np.testing.assert_allclose(found["x"], ones @ W.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["c"], [2 * (X @ W).sum()], rtol=1e-4)


def test_the_first_function_has_its_own_gradient() -> None:
    loss, found = trained(1)
    assert np.isnan(loss)
    np.testing.assert_array_equal(found["b"], 0)
    assert np.isnan(found["a"]).all()
    assert found["c"] == X.size


def test_functions_are_traced_once_and_nest() -> None:
    calls = []

    def leaf(number: float) -> Callable[[Any], Any]:
        def function(x: Any) -> Any:
            calls.append(number)
            return x * number

        return function

    @flow.global_function()
    def job(a: tp.Numpy.Placeholder((1,)), x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        inner = lambda x: flow.cond(a > 5, leaf(2.0), leaf(3.0), x)  # noqa: E731
        return flow.cond(a > 0, inner, leaf(5.0), x)

    ones = np.ones(2, np.float32)
    assert [job([a], ones)[0] for a in (9, 1, -1)] == [2, 3, 5]
    assert calls == [2.0, 3.0, 5.0]


@pytest.mark.parametrize("setting", ["checkpointing", "micro-batches", "mixed precision"])
def test_settings_apply_to_both_functions(setting: str) -> None:
    def weights(choose: Callable[..., Any]) -> Any:
        flow.clear_default_session()
        config = flow.function_config()
        config.train.num_gradient_accumulation_steps(2 if setting == "micro-batches" else 1)
        config.enable_auto_mixed_precision(setting == "mixed precision")

        @flow.global_function("train", config)
        def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
            with flow.experimental.scope.config(checkpointing=setting == "checkpointing"):
                y = choose(flow.ones((1,)), lambda x: flow.math.tanh(line(x)), root, x)
            loss = flow.math.square(y)
            flow.optimizer.SGD(0.1).minimize(loss)
            return loss

        flow.load_variables({"a": W, "b": W})
        for _ in range(2):
            job(X)
        return flow.get_all_variables()["b"].numpy()

    def first(pred: Any, then: Any, otherwise: Any, x: Any) -> Any:
        otherwise(x)
        return then(x)

    rtol = 1e-3 if setting == "mixed precision" else 1e-6  # results of branches are float32
    np.testing.assert_allclose(weights(flow.cond), weights(first), rtol=rtol, atol=rtol / 10)


def test_a_conversion_in_a_branch_is_not_reused_outside() -> None:
    """A gate in front of a conversion that another reader shares would hide its gradient."""

    @flow.global_function("train")
    def job(pred: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            x = flow.get_variable("x", (4,), initializer=flow.ones_initializer())
            double = lambda x: x.with_distribute(flow.distribute.split(0)) * 2.0  # noqa: E731
            y = flow.cond(pred, double, lambda x: x, x) + double(x)
            flow.optimizer.SGD(1.0).minimize(flow.math.reduce_sum(y))
            return y

    job([0])
    np.testing.assert_array_equal(flow.get_all_variables()["x"].numpy(), np.full(4, -2))


def test_open_batch_sizes() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None, 2))) -> tp.Numpy:
        return flow.cond(flow.math.reduce_sum(x) > 0, lambda x: x, lambda x: -x, x)

    for rows in (3, 1, 2):
        x = np.full((rows, 2), -1, np.float32)
        np.testing.assert_array_equal(job(x), -x)


def watched(x: Any) -> Any:
    flow.watch(x, print)
    return x


def counted(x: Any) -> Any:
    count = flow.get_variable("count", (2,), initializer=flow.zeros_initializer())
    flow.assign(count, count + 1.0)
    return x


def same(x: Any) -> Any:
    return x


WRONG: dict[str, tuple[Callable[[Any], Any], type[FlowError], str]] = {
    "two elements": (lambda x: flow.cond(x, same, same, x), JobError, "shape (2,)"),
    "a number": (lambda x: flow.cond(1, same, same, x), JobError, "int 1"),
    "no function": (lambda x: flow.cond(x[:1], same, 4, x), JobError, "a function of blobs"),
    "another shape": (
        lambda x: flow.cond(x[:1], same, lambda x: x[:1], x),
        JobError,
        "of the same form",
    ),
    "another form": (lambda x: flow.cond(x[:1], same, lambda x: [x], x), JobError, "list of"),
    "no result": (lambda x: flow.cond(x[:1], same, lambda x: None, x), JobError, "returns None"),
    "an array": (lambda x: flow.cond(x[:1], same, lambda x: 1.0, x), JobError, "float 1.0"),
    "watch": (lambda x: flow.cond(x[:1], same, watched, x), UnsupportedError, "watch"),
    "assignment": (lambda x: flow.cond(x[:1], counted, same, x), UnsupportedError, "assign"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_at_the_user_s_line(name: str) -> None:
    function, kind, text = WRONG[name]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return function(x)

    with pytest.raises(kind) as error:
        job(np.ones(2, np.float32))
    assert text in str(error.value)
    assert "test_cond.py" in str(error.value)
    assert error.value.allowed
