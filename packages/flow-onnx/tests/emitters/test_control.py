"""Loops and branches in exported models, computed by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import UnsupportedError

onnxruntime = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3)).astype(np.float32)


def weight() -> Any:
    return flow.get_variable("w", (3, 3), initializer=flow.random_normal_initializer())


def forward(x: Any) -> Any:
    def body(state: Any, element: Any) -> Any:
        state = flow.math.tanh(flow.matmul(state + flow.reshape(element, (1, 3)), weight()))
        return state, (state * 2.0, element)

    last, (rows, _) = flow.scan(body, flow.zeros((1, 3)), x)
    return last, rows


def backward(x: Any) -> Any:
    return flow.scan(lambda s, e: (s * 0.5 + e, s), flow.zeros((3,)), x, reverse=True)


def without_sequence(x: Any) -> Any:
    return flow.scan(lambda s, _: (s * 0.5 + x, flow.math.reduce_sum(s)), x, length=3)


def without_positions(x: Any) -> Any:
    return flow.scan(lambda s, _: (s * 0.5, s), x, length=0)


def branch(x: Any) -> Any:
    total = flow.math.reduce_sum(x)
    return flow.cond(total > 0, lambda y: (flow.matmul(y, weight()), y), lambda y: (-y, x), x)


def branch_within_loop(x: Any) -> Any:
    def body(state: Any, element: Any) -> Any:
        chosen = flow.math.reduce_sum(element) > 0
        state = flow.cond(chosen, lambda s: s + element, lambda s: s * 0.5, state)
        return state, state

    return flow.scan(body, flow.zeros((3,)), x)


JOBS: tuple[Callable[[Any], Any], ...] = (
    forward, backward, without_sequence, without_positions, branch, branch_within_loop,
)  # fmt: skip


def exported(function: Callable[[Any], Any], path: Path, shape: Any = None) -> Any:
    """Export a job; return it."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tuple[tp.Numpy, tp.Numpy]:
        return tuple(function(x))

    flow.checkpoint.save(str(path / "weights"))
    override = shape and {"x": shape}
    flow.onnx.export(job, str(path / "weights"), str(path / "m.onnx"), shape_override=override)
    return job


def computed(path: Path, x: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(path / "m.onnx")
    return session.run(None, {session.get_inputs()[0].name: x})


def types(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path / "m.onnx").graph.node]


@pytest.mark.parametrize("function", JOBS)
@pytest.mark.parametrize("sign", [1, -1])
def test_results_are_those_of_the_job(
    function: Callable[[Any], Any], sign: int, tmp_path: Path
) -> None:
    wanted = exported(function, tmp_path)(sign * X)
    assert {"Scan", "If"} & {*types(tmp_path)} or function is without_positions
    for mine, other in zip(wanted, computed(tmp_path, sign * X), strict=True):
        assert mine.shape == other.shape
        np.testing.assert_allclose(other, mine, 1e-5, 1e-6)


@pytest.mark.parametrize("function", [forward, backward, branch])
def test_lengths_may_be_open(function: Callable[[Any], Any], tmp_path: Path) -> None:
    exported(function, tmp_path, ("length", 3))
    flow.clear_default_session()
    longer = RNG.normal(size=(9, 3)).astype(np.float32)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(longer.shape)) -> tuple[tp.Numpy, tp.Numpy]:
        return tuple(function(x))

    flow.load_variables(flow.checkpoint.get(str(tmp_path / "weights")))
    for mine, other in zip(job(longer), computed(tmp_path, longer), strict=True):
        np.testing.assert_allclose(other, mine, 1e-5, 1e-6)


def test_numbers_that_depend_on_an_open_size_are_refused(tmp_path: Path) -> None:
    def average(x: Any) -> Any:
        size = float(x.shape[0])
        return flow.cond(flow.math.reduce_sum(x) > 0, lambda x: (x / size, x), lambda x: (x, x), x)

    with pytest.raises(UnsupportedError, match="open sizes"):
        exported(average, tmp_path, ("length", 3))


def test_ops_of_bodies_without_a_counterpart_are_named(tmp_path: Path) -> None:
    def drawn(x: Any) -> Any:
        return flow.scan(
            lambda s, e: (s + flow.random.bernoulli(flow.math.sigmoid(e)), s), flow.zeros((3,)), x
        )

    with pytest.raises(UnsupportedError, match="bernoulli") as error:
        exported(drawn, tmp_path)
    assert "test_control.py" in str(error.value.found)


def test_the_ops_of_models_come_back(tmp_path: Path) -> None:
    wanted = exported(branch_within_loop, tmp_path)(X)
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tuple[tp.Numpy, tp.Numpy]:
        return flow.onnx.load(tmp_path / "m.onnx", x)

    for mine, other in zip(wanted, job(X), strict=True):
        np.testing.assert_allclose(other, mine, 1e-5, 1e-6)
    assert "scan" in [task.type for task in job.plan().tasks]
