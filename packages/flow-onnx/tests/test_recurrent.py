"""Recurrent layers become ONNX's operators, and operators become layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_cases.models import loaded_results, run_model

import oneflow as flow
import oneflow.typing as tp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 5)).astype(np.float32)
lstm, gru = flow.layers.lstm, flow.layers.gru


def encoded(x: Any) -> Any:
    """Return the results of a layer that starts with the states of another one."""
    return lstm(x, 6, lstm(x, 6, name="a")[1], name="b")[0]


LAYERS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "lstm": (lambda x: lstm(x, 6)[0], ["LSTM"]),
    "lstm, reverse": (lambda x: lstm(x, 6, reverse=True)[0], ["LSTM"]),
    "lstm, last states": (lambda x: flow.concat([*lstm(x, 6)[1]], 1), ["LSTM"]),
    "lstm, last states, reverse": (
        lambda x: flow.concat([*lstm(x, 6, reverse=True, use_bias=False)[1]], 1),
        ["LSTM"],
    ),
    "lstm, initial states": (encoded, ["LSTM", "LSTM"]),
    "gru": (lambda x: gru(x, 6)[0], ["GRU"]),
    "gru, reverse": (lambda x: gru(x, 6, reverse=True)[0], ["GRU"]),
    "gru, last state": (lambda x: gru(x, 6, use_bias=False)[1], ["GRU"]),
    "gru, initial state": (lambda x: gru(x, 6, gru(x, 6, name="a")[1], name="b")[0], ["GRU"] * 2),
    "float16": (
        lambda x: flow.cast(lstm(flow.cast(x, flow.float16), 6)[0], flow.float32),
        ["LSTM"],
    ),
    "float64, which ONNX Runtime lacks": (
        lambda x: flow.cast(gru(flow.cast(x, flow.float64), 6)[0], flow.float32),
        [],
    ),
}


def exported(layer: Callable[[Any], Any], path: Path, **options: Any) -> Any:
    """Export a job with random weights, and return its result."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        return layer(x)

    job(X)
    weights = {n: v.numpy() for n, v in flow.get_all_variables().items()}
    drawn = {n: RNG.normal(size=w.shape).astype(w.dtype) for n, w in weights.items()}
    flow.load_variables(drawn)
    flow.checkpoint.save(str(path / "weights"))
    flow.onnx.export(job, str(path / "weights"), str(path / "m.onnx"), **options)
    return job(X)


@pytest.mark.parametrize("opset", [11, 18, 23])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_one_operator_and_back(name: str, opset: int, tmp_path: Path) -> None:
    layer, operators = LAYERS[name]
    sizes = {"x": ("batch", *X.shape[1:])}
    expected = exported(layer, tmp_path, opset=opset, shape_override=sizes)
    path = tmp_path / "m.onnx"
    types = [node.op_type for node in onnx.load(path).graph.node]
    assert [t for t in types if t in ("LSTM", "GRU")] == operators
    assert ("MatMul" in types or "Gemm" in types) == (not operators)
    tolerance = 1e-2 if name == "float16" else 1e-5
    for count in (3, 2):
        feeds = {"x": X[:count]}
        for (found,) in (run_model(path, feeds), loaded_results(path, [X[:count]])):
            np.testing.assert_allclose(found, expected[:count], tolerance, tolerance)


def test_the_number_of_positions_may_be_open(tmp_path: Path) -> None:
    exported(lambda x: lstm(x, 6, name="layer")[0], tmp_path, shape_override={"x": (3, "t", 5)})
    path, x = tmp_path / "m.onnx", RNG.normal(size=(3, 7, 5)).astype(np.float32)
    (found,) = run_model(path, {"x": x})
    (expected,) = loaded_results(path, [x])
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


def test_a_loaded_layer_trains(tmp_path: Path) -> None:
    exported(lambda x: gru(x, 6, name="layer")[0], tmp_path)
    flow.clear_default_session()

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(flow.onnx.load(tmp_path / "m.onnx", x)))
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    losses = [job(X).item() for _ in range(60)]
    names = {f"layer-{name}" for name in ("weight", "bias", "recurrent-weight", "recurrent-bias")}
    assert set(flow.get_all_variables()) >= names
    assert losses[-1] < losses[0] / 2
