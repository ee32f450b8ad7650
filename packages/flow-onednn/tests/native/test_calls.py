"""Launches of C functions, alone and joined."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.arrays import Array
from flow_core.base.errors import DataError
from flow_core.builtin import calls
from flow_core.builtin.numpy_driver import NumpyDriver
from flow_core.device import Loop
from flow_core.sharding.topology import Device
from flow_onednn import threads
from flow_onednn.kernels.loops import pointer
from flow_onednn.native import compiler
from flow_onednn.native.calls import Call, call, choice, joined, limited, repeated

pytestmark = pytest.mark.usefixtures("onednn")


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    if not compiler.available():
        pytest.skip("there is no C compiler")


def clip(x: Array, low: float, high: float) -> Call:
    return call("clip_inplace", pointer(x), x.size, low, high)


def fails(count: int) -> Call:
    """Return a launch that finds ``count`` labels out of range; the error has their number."""
    label, x = np.full(count, 9, np.int32), np.zeros((count, 2), np.float32)
    arrays = [pointer(x), pointer(label, "void *"), pointer(x), pointer(x)]

    def fail(status: int, kept: object = (label, x)) -> None:
        raise ValueError(status)

    return call("cross_entropy", *arrays, count, 2, 4, fail=fail)


def test_calls_run_in_order_until_one_fails() -> None:
    x = np.array([-5, 0.5, 5], np.float32)
    joined([clip(x, -1.0, 1.0), clip(x, 0.0, 3.0)])()
    np.testing.assert_array_equal(x, [0, 0.5, 1])
    with pytest.raises(ValueError, match=r"^2$"):
        joined([clip(x, 0.25, 1.0), fails(2), clip(x, 7.0, 7.0)])()
    np.testing.assert_array_equal(x, [0.25, 0.5, 1])


def test_numbers_of_all_types_arrive() -> None:
    """A mask depends on a 64-bit seed, a step, and a rate in single precision."""
    step = np.array(3, np.int64)
    masks = np.zeros((2, 1000), np.int8)
    launches = [
        call("dropout_mask", pointer(mask, "int8_t *"), pointer(step, "int64_t *"), seed, 1000, 0.3)
        for mask, seed in zip(masks, ((1 << 64) - 7, (1 << 32) - 7), strict=True)
    ]
    for launch in launches:
        launch()
    wanted = masks.copy()
    masks[...] = 0
    joined(launches)()
    np.testing.assert_array_equal(masks, wanted)
    assert not np.array_equal(*masks)


def test_a_driver_joins_neighbors_only() -> None:
    x, seen = np.array([9.0], np.float32), []

    def look() -> None:
        seen.append(float(x[0]))

    parts = [clip(x, 0.0, 8.0), clip(x, 0.0, 7.0), look, clip(x, 0.0, 6.0), look, clip(x, 0.0, 5.0)]
    NumpyDriver(Device("cpu", 0, 0)).compile(parts)()
    assert (seen, float(x[0])) == ([7.0, 6.0], 5.0)


def test_the_size_of_the_pool_is_restored() -> None:
    pool = threads.runtime()
    if pool is None:
        pytest.skip("OpenMP is not libgomp")
    before, x = pool.omp_get_max_threads(), np.array([9.0], np.float32)
    limited(clip(x, 0.0, 1.0), 1)()
    assert (float(x[0]), pool.omp_get_max_threads()) == (1.0, before)
    with pytest.raises(ValueError, match=r"^3$"):
        limited(fails(3), 1)()
    assert pool.omp_get_max_threads() == before


@pytest.mark.parametrize(("value", "wanted"), [(2.0, 1.0), (2.0**41, 3.0), (np.nan, 3.0)])
def test_a_choice_reads_the_numbers(value: float, wanted: float) -> None:
    x, y = np.array([0.5, value], np.float32), np.zeros(1, np.float32)
    rows = compiler.ffi(compiler.CDEF).new("Bounded[]", 1)
    rows[0].x, rows[0].n = pointer(x, "void *"), x.size
    fast, exact = [clip(y, 1.0, 1.0)], [clip(y, 2.0, 2.0), clip(y, 3.0, 3.0)]
    choice("run_moderate", rows, 1, fast=fast, exact=exact)()
    assert float(y[0]) == wanted


def test_an_error_names_the_op_among_joined_ones() -> None:
    flow.clear_default_session()

    @flow.global_function()
    def predict(
        x: tp.Numpy.Placeholder((2, 3)),  # type: ignore[valid-type]
        y: tp.Numpy.Placeholder((2,), flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        hidden: Any = flow.layers.dense(x, 4, flow.nn.relu, name="hidden")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, hidden, name="wrong")
        return flow.math.exp(loss)

    x = np.ones((2, 3), np.float32)
    assert np.isfinite(predict(x, np.array([0, 3], np.int32))).all()
    with pytest.raises(DataError, match=r"1 of 2 labels") as raised:
        predict(x, np.array([0, 4], np.int32))
    assert raised.value.at is not None
    assert raised.value.at.line == predict.function.__code__.co_firstlineno + 6
    assert np.isfinite(predict(x, np.array([0, 3], np.int32))).all()


def loop_of(*bodies: Any, length: int = 5, reverse: bool = False) -> tuple[Loop, Array]:
    """Return a loop whose bodies read and write an array of two numbers, and its results."""
    order, x = range(length)[:: -1 if reverse else 1], np.zeros(2, np.float32)
    sequence = np.arange(2.0 * length, dtype=np.float32).reshape(length, 2)
    found = np.zeros((2, length, 2), np.float32)
    made = [[make(x) for make in body] for body in bodies]
    results = [[(x, found[k])] for k in range(2)]
    step, counter = np.zeros((), np.int64), np.array(3, np.int64)
    return Loop(order, [(x, sequence)], (*made,), (*results,), step, counter), found  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, 1, 4, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_in_one_call_equals_single_calls(length: int, reverse: bool) -> None:
    bodies = [lambda x: clip(x, 1.0, 5.0)], [lambda x: clip(x, 2.0, 9.0), lambda x: clip(x, 0, 7.0)]
    loop, found = loop_of(*bodies, length=length, reverse=reverse)
    single, wanted = loop_of(*bodies, length=length, reverse=reverse)
    bare = tuple([partial(each) for each in body] for body in single.bodies)  # not repeatable
    calls.repeated(replace(single, bodies=bare))()  # type: ignore[arg-type]
    launch = calls.repeated(loop)
    assert isinstance(launch, Call)
    launch()
    np.testing.assert_array_equal(found, wanted)
    assert loop.step == single.step == (0 if not length else 3 * length + loop.order[-1])
    strided, _ = loop_of(*bodies)
    rows = np.zeros((5, 4), np.float32)[:, ::2]
    assert not isinstance(calls.repeated(replace(strided, elements=[(rows[0], rows)])), Call)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_loop_ends_at_the_call_that_fails(failing: int) -> None:
    bodies: list[Any] = [[lambda x: clip(x, 0.0, 9.0)], [lambda x: clip(x, 0.0, 9.0)]]
    bodies[failing].append(lambda _: fails(3))
    loop, _ = loop_of(*bodies, length=2)
    with pytest.raises(ValueError, match=r"^3$"):
        calls.repeated(loop)()
    assert loop.step == 6 + failing


def test_a_scan_in_one_call_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop with dropout, whose numbers continue those of the step before, and its gradient."""
    seen, x = [], np.random.default_rng(0).normal(size=(6, 4, 8)).astype(np.float32)

    def counted(loop: Loop) -> Call:
        seen.append(len(loop.order))
        return repeated(loop)

    def losses() -> list[float]:
        flow.clear_default_session()

        @flow.global_function("train")
        def train(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:  # type: ignore[valid-type]
            init = flow.random_normal_initializer(stddev=0.3)
            w = flow.get_variable("w", (8, 8), initializer=init)

            def cell(h: Any, now: Any) -> Any:
                h = flow.math.tanh(flow.nn.dropout(now, 0.5) + flow.matmul(h, w))
                return h, h

            _, found = flow.scan(cell, flow.zeros((4, 8)), x, reverse=True)
            flow.optimizer.SGD(0.5).minimize(found * found)
            return found

        return [float(np.square(train(x)).mean()) for _ in range(4)]

    monkeypatch.setattr(Call, "repeat", staticmethod(counted))
    found = losses()
    assert seen == [6, 6]
    monkeypatch.delattr(Call, "repeat")
    assert losses() == found


def test_an_error_in_a_loop_names_the_line() -> None:
    flow.clear_default_session()

    @flow.global_function()
    def predict(
        x: tp.Numpy.Placeholder((3, 2, 4)),  # type: ignore[valid-type]
        y: tp.Numpy.Placeholder((3, 2), flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        def cell(h: Any, now: Any) -> Any:
            loss: Any = flow.nn.sparse_softmax_cross_entropy_with_logits(now[1], now[0] * 2)
            return h + loss, None

        return flow.scan(cell, flow.zeros((2,)), (x, y))[0]

    x = np.ones((3, 2, 4), np.float32)
    wrong = np.array([[0, 1], [2, 3], [4, 0]], np.int32)
    assert np.isfinite(predict(x, wrong % 4)).all()
    with pytest.raises(DataError, match=r"1 of 2 labels") as raised:
        predict(x, wrong)
    assert raised.value.at is not None
    assert raised.value.at.line == predict.function.__code__.co_firstlineno + 9
