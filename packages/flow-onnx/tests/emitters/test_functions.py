"""Public functions used in jobs, most of which consist of several ops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_cases.models import run_model

import oneflow as flow
import oneflow.typing as tp

SHAPE = (2, 4, 6, 6)


def rows(x: Any) -> Any:
    return flow.reshape(x, (8, 36))


def sequence(x: Any) -> Any:
    return flow.reshape(x, (2, 4, 36))


def index(x: Any) -> Any:
    """Return integers from 0 to 3."""
    return flow.cast(flow.math.floor(flow.clamp(x + 2.0, 0.0, 3.0)), flow.int32)


def variable(name: str, shape: tuple[int, ...]) -> Any:
    return flow.get_variable(name, shape, initializer=flow.random_uniform_initializer(0.5, 1.5))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "swish": flow.nn.swish,
    "mish": flow.nn.mish,
    "relu6": flow.nn.relu6,
    "hardswish": flow.nn.hardswish,
    "hardsigmoid": flow.nn.hardsigmoid,
    "elu": lambda x: flow.nn.elu(x, 0.7),
    "leaky_relu": lambda x: flow.nn.leaky_relu(x, 0.2),
    "prelu": lambda x: flow.layers.prelu(x, name="prelu"),
    "moments": lambda x: flow.nn.moments(x, [2, 3])[1],
    "reduce_variance": lambda x: flow.math.reduce_variance(x, axis=[1, -1]),
    "reduce_std": lambda x: flow.math.reduce_std(x, axis=[1], keepdims=True),
    "reduce_logsumexp": lambda x: flow.math.reduce_logsumexp(x, axis=[3]),
    "reduce_euclidean_norm": lambda x: flow.math.reduce_euclidean_norm(x, axis=[2]),
    "reduce_any": lambda x: flow.math.reduce_any(x > 1.5, axis=[1]),
    "reduce_max": flow.math.reduce_max,
    "cumsum": lambda x: flow.cumsum(x, 2),
    "cumsum_from_the_end": lambda x: flow.cumsum(x, -1, exclusive=True, reverse=True),
    "einsum": lambda x: flow.einsum("nchw,ncxw->nhx", x, x),
    "roll": lambda x: flow.roll(x, (1, -2), (1, 3)),
    "group_norm": lambda x: flow.nn.GroupNorm(x, 2),
    "instance_norm": lambda x: flow.nn.InstanceNorm2d(x, name="instance"),
    "layer_norm": lambda x: flow.layers.layer_norm(x, name="layer"),
    "l2_normalize": lambda x: flow.math.l2_normalize(x, axis=1),
    "upsample": lambda x: flow.layers.upsample_2d(x, 2, interpolation="bilinear"),
    "reflection_pad": lambda x: flow.reflection_pad2d(x, [2, 1, 2, 1]),
    "constant_pad": lambda x: flow.pad(x, ((0, 0), (1, 2), (0, 3), (1, 0)), 1.5),
    "stack": lambda x: flow.stack([x, x * 2.0], axis=-1),
    "concat": lambda x: flow.concat([x, -x], 1),
    "flatten": lambda x: flow.flatten(x, start_dim=1),
    "squeeze": lambda x: flow.squeeze(flow.expand_dims(x, 2), [2]),
    "reverse": lambda x: flow.reverse(x, [1, -1]),
    "slice": lambda x: flow.slice_v2(x, [(None, None, None), (3, 0, -2), (1, 5, 2)]),
    "one_hot": lambda x: flow.one_hot(index(x), 4, on_value=2.0, off_value=-1.0),
    "embedding": lambda x: flow.gather(variable("table", (4, 5)), index(x)),
    "gather_nd": lambda x: flow.gather_nd(x, flow.reshape(index(x), (144, 2)) // 2),
    "where": lambda x: flow.where(x > 0.0, x, flow.math.exp(x)),
    "masked_fill": lambda x: flow.masked_fill(x, x > 0.0, -7.0),
    "argmax": lambda x: flow.math.argmax(x),
    "top_k": lambda x: flow.math.top_k(x, 3),
    "sort": lambda x: flow.sort(x, direction="DESCENDING"),
    "argsort": lambda x: flow.argsort(x),
    "clip": lambda x: flow.clip_by_value(x, -0.5, 0.7),
    "tril": lambda x: flow.math.tril(x, 1),
    "fused_scale_tril": lambda x: flow.math.fused_scale_tril(x, -1, 0.0, 0.5),
    "cast": lambda x: flow.cast(x * 9.0, flow.int32) % 4,
    "polyval": lambda x: flow.math.polyval([1.0, 2.0, 3.0], x),
    "comparisons": lambda x: (x > 0.1) + (x <= -0.5) + flow.math.logical_and(x > 1.0, x < 1.5),
    "conv1d": lambda x: flow.nn.conv1d(
        flow.reshape(x, (8, 6, 6)), variable("w1", (4, 6, 3)), 1, "SAME_UPPER"
    ),
    "conv2d_transpose": lambda x: flow.nn.conv2d_transpose(
        x, variable("w2", (4, 3, 3, 3)), output_shape=(2, 3, 12, 12), strides=2, padding="SAME"
    ),
    "depthwise": lambda x: flow.layers.conv2d(x, 4, 3, groups=4, padding="SAME", name="depth"),
    "losses": lambda x: flow.nn.sparse_softmax_cross_entropy_with_logits(
        flow.reshape(index(flow.slice(rows(x), [0, 0], [8, 1])), (8,)), rows(x)
    ),
    "smooth_l1": lambda x: flow.smooth_l1_loss(x, flow.zeros_like(x), 0.7),
    "range": lambda x: flow.slice(x, [0, 0, 0, 0], [1, 1, 1, 6]) + flow.range(6, dtype=flow.float),
    "log_softmax": lambda x: flow.nn.logsoftmax(x, axis=1),
    "norm": lambda x: flow.linalg.norm(x, 3, 1),
    "attention": lambda x: flow.nn.attention(x, x, x, causal=True),
    "multi_head_attention": lambda x: flow.layers.multi_head_attention(
        sequence(x), 4, num_key_value_heads=2, head_size=8, causal=True, rotary_base=10000
    ),
    "rms_norm": flow.layers.rms_norm,
    "swiglu": lambda x: flow.layers.swiglu(sequence(x), 6),
    "lstm": lambda x: flow.layers.lstm(sequence(x), 5)[0],
    "gru": lambda x: flow.layers.gru(sequence(x), 5)[0],
    "scan": lambda x: flow.scan(lambda s, e: (s * 0.5 + e, s), x[0], x)[1],
    "cond": lambda x: flow.cond(flow.math.reduce_sum(x) > 0, lambda x: x * 2.0, lambda x: -x, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(SHAPE)) -> tp.Numpy:
        return FUNCTIONS[name](x)

    x = np.random.default_rng(1).uniform(-2, 2, SHAPE).astype(np.float32)
    expected = job(x)
    flow.train.CheckPoint().save(str(tmp_path / "weights"))
    flow.onnx.export(job, str(tmp_path / "weights"), tmp_path / "model.onnx")
    (found,) = run_model(tmp_path / "model.onnx", {"x": x})
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
