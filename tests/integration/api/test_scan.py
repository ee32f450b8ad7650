"""``flow.scan`` traces its function once, and gives what a Python loop gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, JobError, UnsupportedError

STEPS, BATCH, WIDTH = 5, 4, 3
X = np.random.default_rng(0).normal(size=(STEPS, BATCH, WIDTH)).astype(np.float32)
H = np.random.default_rng(1).normal(size=(BATCH, WIDTH)).astype(np.float32)
W = np.random.default_rng(2).normal(size=(WIDTH, WIDTH)).astype(np.float32)


@pytest.fixture(autouse=True)
def devices() -> None:
    flow.config.cpu_device_num(4)


def weight() -> Any:
    return flow.get_variable("w", W.shape, initializer=flow.zeros_initializer())


def cell(h: Any, x: Any) -> Any:
    h = flow.math.tanh(flow.matmul(h, weight()) + x)
    return h, (h * 2.0, flow.math.reduce_sum(h, 1))


def numpy_cell(h: Any, x: Any) -> Any:
    h = np.tanh(h @ W + x)
    return h, (h * 2, h.sum(1))


def numpy_scan(xs: Any) -> tuple[Any, Any]:
    h, ys = H, []
    for x in xs:
        h, y = numpy_cell(h, x)
        ys.append(y)
    return h, [np.stack(parts) for parts in zip(*ys, strict=True)]


def recurrent(reverse: bool, devices: str = "0:0") -> Any:
    @flow.global_function()
    def job(
        h: tp.Numpy.Placeholder(H.shape), x: tp.Numpy.Placeholder(X.shape)
    ) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        with flow.scope.placement("cpu", devices):
            last, (first, second) = flow.scan(cell, h, x, reverse=reverse)
            return last, first, second

    return job


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_are_those_of_a_loop(reverse: bool, devices: str) -> None:
    job = recurrent(reverse, devices)
    flow.load_variables({"w": W})
    last, *ys = job(H, X)
    wanted, others = numpy_scan(X[::-1] if reverse else X)
    np.testing.assert_allclose(last, wanted, rtol=1e-5, atol=1e-6)
    for found, other in zip(ys, others, strict=True):
        np.testing.assert_allclose(found, other[::-1] if reverse else other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_function_is_traced_once(length: int) -> None:
    calls = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((length, 2))) -> tp.Numpy:
        def body(state: Any, element: Any) -> Any:
            calls.append(element.shape)
            return state + element, None

        return flow.scan(body, flow.zeros((2,)), x)[0]

    np.testing.assert_array_equal(job(np.ones((length, 2), np.float32)), np.full(2, length))
    assert calls == [(2,)]


def trained(loop: Callable[..., Any], devices: str) -> Any:
    """Return the loss and the weight after three steps of a job that trains through a loop."""

    @flow.global_function("train")
    def job(h: tp.Numpy.Placeholder(H.shape), x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            last, ys = loop(cell, h, x)
            loss = flow.math.reduce_mean(flow.math.square(last)) + flow.math.reduce_mean(ys[1])
            flow.optimizer.SGD(0.1).minimize(loss)
            return loss

    flow.load_variables({"w": W})
    losses = [job(H, X)[0] for _ in range(3)]
    return losses, flow.get_all_variables()["w"].numpy()


def python_loop(body: Any, state: Any, xs: Any) -> Any:
    ys = []
    for x in flow.unbind(xs):
        state, y = body(state, x)
        ys.append(y)
    return state, [flow.stack(parts) for parts in zip(*ys, strict=True)]


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
def test_gradients_are_those_of_a_loop(devices: str) -> None:
    losses, w = trained(flow.scan, devices)
    flow.clear_default_session()
    flow.config.cpu_device_num(4)
    wanted, other = trained(python_loop, devices)
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
    np.testing.assert_allclose(w, other, rtol=1e-5, atol=1e-6)
    assert losses[2] < losses[0]


def trained_with(setting: str, loop: Callable[..., Any]) -> Any:
    """Return the losses of two steps, and the weight, of a job with a setting."""
    flow.clear_default_session()
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(2 if setting == "micro-batches" else 1)
    config.enable_auto_mixed_precision(setting == "mixed precision")

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((BATCH, STEPS, WIDTH))) -> tp.Numpy:
        with flow.experimental.scope.config(checkpointing=setting == "checkpointing"):
            _, ys = loop(cell, flow.zeros_like(x[:, 0]), flow.transpose(x, (1, 0, 2)))
        loss = flow.math.reduce_mean(flow.math.square(ys[0]))
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    flow.load_variables({"w": W})
    x = np.ascontiguousarray(X.transpose(1, 0, 2))
    losses = [job(x).mean() for _ in range(2)]
    return losses, flow.get_all_variables()["w"].numpy()


@pytest.mark.parametrize("setting", ["checkpointing", "micro-batches", "mixed precision"])
def test_settings_apply_to_all_positions(setting: str) -> None:
    losses, w = trained_with(setting, flow.scan)
    wanted, other = trained_with(setting, python_loop)
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
    np.testing.assert_allclose(w, other, rtol=1e-6)


def test_the_batch_may_be_of_any_size() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None, 3))) -> tp.Numpy:
        steps = flow.transpose(x, (1, 0))
        return flow.scan(lambda s, e: (s + e, s), flow.zeros_like(x[:, 0]), steps)[1]

    for rows in (4, 2, 3):
        x = np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(job(x), np.cumsum(x, 1).T - x.T)


def test_ops_that_do_not_vary_are_shared() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((6, 3))) -> tp.Numpy:
        def body(state: Any, element: Any) -> Any:
            doubled = flow.matmul(weight(), weight())
            return state + element * flow.math.reduce_sum(doubled), None

        return flow.scan(body, flow.zeros((3,)), x)[0]

    types = [op.type for op in job.prepare().build.builder.ops.values()]
    assert types.count("matmul") == 1


def test_the_first_state_may_also_be_read_from_outside() -> None:
    @flow.global_function()
    def job(h: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return flow.scan(lambda s, _: (s + h, None), h, length=3)[0]

    np.testing.assert_array_equal(job(np.ones(2, np.float32)), [4, 4])


def test_several_states_keep_their_form() -> None:
    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        def body(state: Any, _: None) -> Any:
            a, b = state
            return (b, a + b), None

        one = flow.ones((1,), flow.int64)
        (a, b), none = flow.scan(body, (one, one), length=10)
        assert none is None
        return a, b

    assert [x.item() for x in job()] == [89, 144]


def test_random_numbers_differ_by_position() -> None:
    @flow.global_function("train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", (64,), initializer=flow.ones_initializer())
        _, ys = flow.scan(lambda s, _: (s, flow.nn.dropout(s, 0.5)), w, length=4)
        flow.optimizer.SGD(0.0).minimize(flow.math.reduce_sum(ys))
        return ys

    found = job()
    assert len({row.tobytes() for row in found}) == 4
    assert set(np.unique(found)) == {0, 2}


def counted() -> Any:
    count = flow.get_variable("count", (2,), initializer=flow.zeros_initializer())
    flow.assign(count, count + 1.0)
    return count


def watched(state: Any) -> Any:
    flow.watch(state, print)
    return state


WRONG: dict[str, tuple[Callable[[Any], Any], type[FlowError], str]] = {
    "another shape": (
        lambda x: flow.scan(lambda s, e: (flow.stack([s, e]), None), x[0], x),
        JobError,
        "as the state before",
    ),
    "no pair": (lambda x: flow.scan(lambda s, e: s + e, x[0], x), JobError, "(state, result)"),
    "no length": (lambda x: flow.scan(lambda s, e: (s, s), x[0]), JobError, "length=None"),
    "two lengths": (
        lambda x: flow.scan(lambda s, e: (s, s), x[0], (x, x[1:])),
        JobError,
        "one size of axis 0",
    ),
    "another length": (
        lambda x: flow.scan(lambda s, e: (s, s), x[0], x, length=2),
        JobError,
        "length=2",
    ),
    "assignment": (
        lambda x: flow.scan(lambda s, e: (s + counted(), None), x[0], x),
        UnsupportedError,
        "assign",
    ),
    "watch": (
        lambda x: flow.scan(lambda s, e: (watched(s), None), x[0], x),
        UnsupportedError,
        "watch",
    ),
    "a number": (lambda x: flow.scan(lambda s, e: (s, None), 0.0, x), FlowError, "0.0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_at_the_user_s_line(name: str) -> None:
    function, kind, text = WRONG[name]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3, 2))) -> tp.Numpy:
        return function(x)[0]

    with pytest.raises(kind) as error:
        job(np.ones((3, 2), np.float32))
    assert text in str(error.value)
    assert "test_scan.py" in str(error.value)


def test_the_mirrored_view_is_refused() -> None:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        return flow.scan(lambda s, e: (s + e, None), x[0], x)[0]

    with pytest.raises(UnsupportedError, match="consistent view"):
        job(np.ones((4, 2), np.float32))
