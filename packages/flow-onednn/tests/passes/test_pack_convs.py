"""Convolutions outside of training: norms folded, weights packed, sums and limits fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.arrays import Array
from flow_core.frontend.job.function import JobFunction
from flow_core.plan import Plan
from flow_onednn import library
from flow_onednn.kernels.convolution import chain
from flow_onednn.ops import OPS
from flow_onednn.passes import chain_convs

pytestmark = pytest.mark.usefixtures("onednn")

BATCH, CHANNELS, WIDTH, EPSILON = 2, 16, 9, 1e-3
_CONV: Callable[..., Array] = next(op.reference for op in OPS if op.type == "onednn_conv")  # type: ignore[assignment]


def variable(name: str, shape: tuple[int, ...], low: float = -1.0) -> Any:
    uniform = flow.random_uniform_initializer(low, 1.0)
    return flow.get_variable(name, shape, initializer=uniform)


def conv(x: Any, name: str, size: int, stride: int = 1, groups: int = 1) -> Any:
    filters = variable(f"{name}.w", (CHANNELS, CHANNELS // groups, size, size))
    pads = [[0, 0], [0, 0], [size // 2] * 2, [size // 2] * 2]
    return flow.nn.conv2d(x, filters, stride, pads, groups=groups, name=name)


def norm(x: Any, name: str) -> Any:
    return flow.layers.batch_normalization(
        x, axis=1, epsilon=EPSILON, name=name, training=False, trainable=False,
        beta_initializer=flow.random_uniform_initializer(-1.0, 1.0),
        gamma_initializer=flow.random_uniform_initializer(0.5, 1.0),
        moving_mean_initializer=flow.random_uniform_initializer(-1.0, 1.0),
        moving_variance_initializer=flow.random_uniform_initializer(0.5, 1.0),
    )  # fmt: skip


def relu6(x: Any) -> Any:
    return flow.clip_by_value(x, 0.0, 6.0)


def net(x: Any) -> Any:
    x = flow.nn.relu(norm(conv(x, "a", 3), "na"))
    y = relu6(norm(conv(x, "b", 3, groups=CHANNELS), "nb"))
    y = norm(flow.nn.bias_add(conv(y, "c", 1), variable("c.b", (CHANNELS,)), "NCHW"), "nc")
    x = flow.nn.relu(y + x)
    return conv(x, "d", 3, stride=2)


def exact(x: Array, values: dict[str, Array]) -> Array:
    """Return the result of `net` in float64."""
    values = {name: value.astype(np.float64) for name, value in values.items()}

    def conv(x: Array, name: str, size: int, stride: int = 1, groups: int = 1) -> Array:
        pad = (size // 2, size // 2)
        return _CONV(
            x, values[f"{name}.w"], kernel_size=(size, size), strides=(stride, stride),
            dilation_rate=(1, 1), padding_before=pad, padding_after=pad, groups=groups,
            weights_last=False, activation="",
        )  # fmt: skip

    def norm(x: Array, name: str) -> Array:
        mean, variance, gamma, beta = (
            values[f"{name}-{part}"] for part in ("moving_mean", "moving_variance", "gamma", "beta")
        )
        return (x - mean) / np.sqrt(variance + EPSILON) * gamma + beta

    x = np.maximum(norm(conv(x.transpose(0, 2, 3, 1), "a", 3), "na"), 0)
    y = np.clip(norm(conv(x, "b", 3, groups=CHANNELS), "nb"), 0, 6)
    y = norm(conv(y, "c", 1) + values["c.b"], "nc")
    return conv(np.maximum(y + x, 0), "d", 3, stride=2).transpose(0, 3, 1, 2)


def predict_job(mixed: bool = False) -> JobFunction:
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)

    @flow.global_function(function_config=config)
    def predict(x: tp.Numpy.Placeholder((BATCH, CHANNELS, WIDTH, WIDTH))) -> tp.Numpy:
        return net(x)

    return predict


@pytest.fixture(autouse=True, params=[False, True], ids=["whole", "chains"])
def chains(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether convolutions are joined to chains, in bands of one row."""
    flow.clear_default_session()
    if request.param:
        monkeypatch.setattr(chain_convs, "CACHE", 0)
        monkeypatch.setattr(chain, "CACHED", 0)
    return bool(request.param)


def image(seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((BATCH, CHANNELS, WIDTH, WIDTH), np.float32)


def check(predict: JobFunction, x: Array, tolerance: float = 1e-5) -> None:
    values = {name: blob.numpy() for name, blob in flow.get_all_variables().items()}
    wanted = exact(x.astype(np.float64), values)
    found = predict(x)
    scale = np.abs(wanted[np.isfinite(wanted)]).max()
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * scale)


def test_a_step_has_only_packed_convolutions(chains: bool) -> None:
    """Two convolutions and the residual read the result of the first one."""
    plan = predict_job().plan()
    step = [task.type for task in plan.tasks if task.type != "onednn_reorder"]
    joined = ["onednn_packed_conv", "onednn_conv_chain"]
    assert step == (joined if chains else ["onednn_packed_conv"] * 4)
    assert [task.type for task in plan.derived].count("onednn_pack_conv") == 4
    assert Plan.from_json(plan.to_json()) == plan


def test_results_are_those_in_float64() -> None:
    check(predict_job(), image())


needs_fast_half = pytest.mark.skipif(
    not library.has_fast_half(), reason="no fast products of bfloat16"
)


@needs_fast_half
def test_a_step_in_bfloat16_has_only_packed_convolutions(chains: bool) -> None:
    plan = predict_job(mixed=True).plan()
    step = [task for task in plan.tasks if task.type not in ("cast", "onednn_reorder")]
    joined = ["onednn_packed_conv", "onednn_conv_chain"]
    assert [task.type for task in step] == (joined if chains else ["onednn_packed_conv"] * 4)
    assert {str(plan.buffers[task.outputs[0]].type.dtype) for task in step} == {"bfloat16"}
    assert [task.type for task in plan.derived].count("onednn_pack_conv") == 4


def test_distance_of_bfloat16_from_float64() -> None:
    """Four layers round images and weights by at most 2^-8 each; on float32 copies, too."""
    predict = predict_job(mixed=True)
    check(predict, image(), 2e-2)
    flow.load_variables({"b.w": np.full((CHANNELS, 1, 3, 3), 0.25, np.float32)})
    check(predict, image(), 2e-2)


def test_loaded_and_trained_weights_are_packed_again() -> None:
    predict = predict_job()
    check(predict, image())
    flow.load_variables({"b.w": np.full((CHANNELS, 1, 3, 3), 0.25, np.float32)})
    check(predict, image())

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((BATCH, CHANNELS, WIDTH, WIDTH))) -> tp.Numpy:
        loss = flow.math.reduce_mean(net(x))
        rates = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(rates).minimize(loss)
        return loss

    assert "onednn_packed_conv" not in {task.type for task in train.plan().tasks}
    train(image(1))
    check(predict, image())
    train(image(2))
    train(image(3))
    check(predict, image())


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_numbers_that_are_not_moderate(value: float, mixed: bool) -> None:
    predict, x = predict_job(mixed), image()
    x[1, 3, 4, 5] = value
    with np.errstate(all="ignore"):
        values = {name: blob.numpy() for name, blob in flow.get_all_variables().items()}
        wanted = exact(x.astype(np.float64), values).astype(np.float32)
    found = predict(x)
    np.testing.assert_array_equal(np.isnan(found[0]), np.isnan(wanted[0]))
    assert not np.isnan(found[0]).any()
    if np.isnan(value):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


def test_chains_have_the_bits_of_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for size in (0, 1 << 30):
        flow.clear_default_session()
        monkeypatch.setattr(chain_convs, "CACHE", size)
        found.append(predict_job()(image()))
    np.testing.assert_array_equal(*found)


def test_a_chain_with_other_bits_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_convs, "same_bits", lambda whole, convs: False)
    assert "onednn_conv_chain" not in [task.type for task in predict_job().plan().tasks]


def test_weights_that_are_not_finite_reach_the_result() -> None:
    predict, filters = predict_job(), np.full((CHANNELS, CHANNELS, 1, 1), 0.25, np.float32)
    predict(image())
    filters[3, 4] = np.nan
    flow.load_variables({"c.w": filters})
    assert np.isnan(predict(image())).all()
