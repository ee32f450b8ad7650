"""Axes that are shorter than there are devices may be split: some devices hold nothing then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp


def train(devices: str, split: bool) -> tuple[Any, dict[str, Any]]:
    """Losses of some steps and all variables, everything split as is asked or not at all."""
    flow.clear_default_session()
    init = flow.random_normal_initializer(stddev=0.3)

    def over(axis: int) -> Any:
        return flow.distribute.split(axis) if split else None

    def cast(x: Any, axis: int) -> Any:
        return x.with_distribute(flow.distribute.split(axis)) if split else x

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((2, 6)), y: tp.Numpy.Placeholder((2,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            weight = flow.get_variable("w", (6, 3), initializer=init, distribute=over(1))
            bias = flow.get_variable("b", (3,), initializer=init, distribute=over(0))
            h = flow.nn.relu(flow.nn.bias_add(flow.matmul(x, weight), bias))
            h = cast(cast(h, 0) * 2.0, 1)
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, flow.math.tanh(h))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    rng = np.random.RandomState(0)
    steps = [(rng.rand(2, 6).astype("f4"), rng.randint(0, 3, 2).astype("i4")) for _ in range(3)]
    losses = np.array([job(*step) for step in steps])
    return losses, {name: v.numpy() for name, v in flow.get_all_variables().items()}


@pytest.mark.parametrize("devices", ["0:0-3", "0:0-4"])
def test_what_is_asked_for_is_done(devices: str) -> None:
    losses, variables = train("0:0", split=False)
    many, others = train(devices, split=True)
    np.testing.assert_allclose(many, losses, 2e-5, 2e-6)
    for name, value in variables.items():
        np.testing.assert_allclose(others[name], value, 2e-5, 2e-6, err_msg=name)
