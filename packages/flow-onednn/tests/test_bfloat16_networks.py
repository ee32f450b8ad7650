"""Whole predict jobs in bfloat16, native or on float32 copies, are close to those in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_onednn.native import compiler

pytestmark = [
    pytest.mark.usefixtures("onednn"),
    pytest.mark.skipif(not compiler.available(), reason=f"no C compiler: {compiler.state()}"),
]

TOLERANCE = 0.02
"""Distance from float32, relative to the largest result: five roundings by 2^-8."""

INIT = flow.random_uniform_initializer(-0.3, 0.3)


def image_network(x: Any) -> Any:
    """Convolutions, one of them depthwise, then the ops after them up to a dense layer."""
    for i, groups in enumerate((1, 16)):
        weight = flow.get_variable(f"w{i}", (16, x.shape[1] // groups, 3, 3), initializer=INIT)
        pads = [[0, 0], [0, 0], [1, 1], [1, 1]]
        x = flow.nn.conv2d(x, weight, 1, pads, groups=groups, name=f"c{i}")
        x = flow.layers.batch_normalization(x, axis=1, name=f"n{i}", training=False)
        x = flow.clip_by_value(x, 0.0, 6.0)
    x = flow.math.reduce_mean(flow.nn.max_pool2d(x, 2, 2, "VALID"), axis=[2, 3])
    return flow.layers.dense(x, 5, kernel_initializer=INIT, name="logits")


def encoder(x: Any) -> Any:
    """Attention with two heads, then two dense layers."""
    batch, length, hidden = x.shape
    rows = flow.reshape(x, (-1, hidden))

    def heads(name: str) -> Any:
        part = flow.layers.dense(rows, hidden, kernel_initializer=INIT, name=name)
        return flow.transpose(flow.reshape(part, (batch, length, 2, -1)), perm=[0, 2, 1, 3])

    scores = flow.matmul(heads("q"), heads("k"), transpose_b=True) * 0.25
    mixed = flow.transpose(flow.matmul(flow.nn.softmax(scores), heads("v")), perm=[0, 2, 1, 3])
    rows = flow.layers.layer_norm(rows + flow.reshape(mixed, (-1, hidden)), name="norm")
    wide = flow.layers.dense(rows, 64, flow.math.gelu, kernel_initializer=INIT, name="wide")
    return flow.layers.dense(wide, hidden, kernel_initializer=INIT, name="narrow")


@pytest.mark.parametrize(
    ("network", "shape"), [(image_network, (2, 3, 8, 8)), (encoder, (2, 12, 32))]
)
def test_distance_from_float32(network: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    flow.clear_default_session()
    found = []
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    for mixed in (False, True):
        config = flow.FunctionConfig()
        config.enable_auto_mixed_precision(mixed)

        @flow.global_function(function_config=config)
        def predict(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:  # type: ignore[valid-type]
            return network(x)

        found.append(predict(x))
    exact, half = found
    assert half.dtype == np.float32
    assert 0 < np.abs(half - exact).max() < TOLERANCE * np.abs(exact).max()
