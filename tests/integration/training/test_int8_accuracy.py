"""Accuracy of a convolutional network on handwritten digits, in float32 and in int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

MNIST = Path(__file__).parents[4] / "shared" / "data" / "mnist.npz"
BATCH, TEST, STEPS = 64, 2000, 250

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MNIST.exists(), reason="needs the MNIST file in ../shared"),
]


def test_int8_recognizes_as_many_digits() -> None:
    """A hundred images calibrate the network; the accuracies differ by at most 0.5 %."""
    flow.clear_default_session()

    def network(x: Any) -> Any:
        draw = flow.glorot_uniform_initializer()
        for name, filters in (("a", 16), ("b", 32)):
            x = flow.layers.conv2d(
                x, filters, 5, padding="SAME", name=name, activation=flow.nn.relu,
                kernel_initializer=draw,
            )  # fmt: skip
            x = flow.nn.max_pool2d(x, 2, 2, "VALID")
        x = flow.reshape(x, (x.shape[0], -1))
        x = flow.layers.dense(x, 128, flow.nn.relu, kernel_initializer=draw, name="c")
        return flow.layers.dense(x, 10, kernel_initializer=draw, name="d")

    @flow.global_function(type="train")
    def train(
        x: tp.Numpy.Placeholder((BATCH, 1, 28, 28)),  # type: ignore[valid-type]
        y: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, network(x))
        flow.optimizer.Adam(1e-3).minimize(loss)
        return loss

    @flow.global_function(type="predict")
    def predict(x: tp.Numpy.Placeholder((100, 1, 28, 28))) -> tp.Numpy:  # type: ignore[valid-type]
        return network(x)

    data = np.load(MNIST)
    images = {k: (data[k][:, None] / 255.0).astype(np.float32) for k in ("x_train", "x_test")}
    labels = data["y_train"].astype(np.int32)
    for step in range(STEPS):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        train(images["x_train"][batch], labels[batch])
    in_int8 = flow.quantization.calibrate(predict, [images["x_train"][:100]])
    right = []
    for job in (predict, in_int8):
        scores = [job(images["x_test"][i : i + 100]) for i in range(0, TEST, 100)]
        right.append(np.mean(np.concatenate(scores).argmax(1) == data["y_test"][:TEST]))
    assert right[0] > 0.95
    assert abs(right[1] - right[0]) <= 0.005
