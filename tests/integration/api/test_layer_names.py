"""Layers without a name are numbered, so that jobs with the same layers share variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import InferenceError, VariableError

X = np.arange(12, dtype=np.float32).reshape(4, 3)
PICTURES = np.zeros((2, 3, 4, 4), np.float32)


def network(x: Any) -> Any:
    ones = flow.ones_initializer()
    for units in (5, 4):
        x = flow.layers.dense(x, units, kernel_initializer=ones)
    with flow.scope.namespace("head"):
        return flow.layers.dense(x, 1, kernel_initializer=ones)


def test_jobs_with_the_same_layers_share_their_variables() -> None:
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        loss = flow.math.reduce_mean(network(x))
        flow.optimizer.SGD(0.01).minimize(loss)
        return loss

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((None, 3))) -> tp.Numpy:
        return network(x)

    before = predict(X)
    assert predict(X[:2]).shape == (2, 1)  # traced again, for another size
    train(X)
    assert (predict(X) < before).all()
    layers = ("Dense", "Dense_1", "head-Dense")
    weights = {name for name in flow.get_all_variables() if name.endswith(("-weight", "-bias"))}
    assert weights == {f"{layer}-{kind}" for layer in layers for kind in ("weight", "bias")}


def test_each_kind_of_layer_is_numbered() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(PICTURES.shape)) -> tp.Numpy:
        for _ in range(2):
            x = flow.layers.conv2d(x, 3, 3, padding="SAME")
            x = flow.layers.batch_normalization(x, axis=1)
            x = flow.layers.batch_normalization_relu(x, axis=1)
            x = flow.layers.prelu(x)
            x = flow.layers.layer_norm(x)
        return x

    job(PICTURES)
    layers = {name.rpartition("-")[0] for name in flow.get_all_variables()}
    assert layers == {
        "Conv2d", "Conv2d_1", "PRelu", "PRelu_1", "LayerNorm", "LayerNorm_1",
        "BatchNorm", "BatchNorm_1", "BatchNorm_2", "BatchNorm_3",
    }  # fmt: skip


def test_a_name_that_the_program_gives_twice_is_refused() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return flow.layers.dense(flow.layers.dense(x, 3, name="Dense"), 3, name="Dense")

    with pytest.raises(VariableError, match="Dense-weight"):
        job(X)


@pytest.mark.parametrize("devices", ["0:0", "0:0-1"])
def test_layers_that_share_variables_add_their_gradients(devices: str) -> None:
    def tower(x: Any) -> Any:
        with flow.scope.reuse_variables():
            return flow.layers.dense(x, 1, use_bias=False, name="tower")

    with emulated(2):

        @flow.global_function("train")
        def train(x: tp.Numpy.Placeholder((4, 3)), y: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
            with flow.scope.placement("gpu", devices):
                loss = flow.math.reduce_mean(tower(x) + 2 * tower(y))
                flow.optimizer.SGD(1.0, momentum=0).minimize(loss)
            return loss

        train(X, X[::-1])
        values = {name: v.numpy() for name, v in flow.get_all_variables().items()}
    weights = [value for name, value in values.items() if name.startswith("tower")]
    assert len(weights) == 1
    np.testing.assert_allclose(weights[0].ravel(), -3 * X.mean(axis=0), rtol=1e-6)


def test_layers_share_variables_of_one_shape_and_by_name_only() -> None:
    @flow.global_function()
    def other_shape(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.reuse_variables():
            return flow.layers.dense(flow.layers.dense(x, 2, name="one"), 1, name="one")

    with pytest.raises(VariableError, match=r"type float32\[1,2\]"):
        other_shape.compile()

    @flow.global_function()
    def unnamed(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.reuse_variables():
            return flow.layers.dense(x, 2)

    with pytest.raises(InferenceError, match="a layer without a name"):
        unnamed.compile()
