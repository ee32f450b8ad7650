"""One logical program on several emulated devices equals one device."""

from typing import Any

import numpy as np
import pytest
from parallel_forms import INIT, dense, emulated

import oneflow as flow
import oneflow.typing as tp

ROWS = {"model_distribute": flow.distribute.split(0)}


def mlp(x: Any, **hint: Any) -> Any:
    h = flow.layers.dense(x, 16, activation=flow.nn.relu, kernel_initializer=INIT, name="h", **hint)
    h = flow.nn.dropout(h, rate=0.3, name="drop")
    return dense(h, 5, "o")


def conv(x: Any) -> Any:
    x = flow.reshape(x, (20, 3, 2, 2))
    x = flow.layers.conv2d(x, 4, 3, padding="SAME", kernel_initializer=INIT, name="c")
    x = flow.nn.relu(flow.layers.batch_normalization(x, axis=1, name="bn"))
    x = flow.reshape(flow.nn.max_pool2d(x, 2, 2, "VALID"), (20, -1))
    return dense(x, 5, "o")


def losses(devices: str, body: Any, **hint: Any) -> Any:
    flow.clear_default_session()

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((20, 12)), y: tp.Numpy.Placeholder((20,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, body(x, **hint))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    rng = np.random.RandomState(0)
    steps = [(rng.rand(20, 12).astype("f4"), rng.randint(0, 5, 20).astype("i4")) for _ in range(5)]
    return np.array([job(*step) for step in steps])


@pytest.mark.representative("data-2|rows-3|conv-3", "each network once, even and uneven splits")
@pytest.mark.arithmetic
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(
    ("body", "hint"), [(mlp, {}), (mlp, ROWS), (conv, {})], ids=["data", "rows", "conv"]
)
def test_training_on_many_devices_equals_one(body: Any, hint: dict[str, Any], count: int) -> None:
    with emulated(4, without=()):
        one = losses("0:0", body)
        many, again = (losses(f"0:0-{count - 1}", body, **hint) for _ in range(2))
    np.testing.assert_allclose(many, one, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(many, again)
