"""Quantization-aware training: what int8 kernels would read and write is on their grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError

pytestmark = pytest.mark.usefixtures("four_gpus")

RNG = np.random.default_rng(5)
IMAGES = RNG.uniform(-1, 3, (4, 2, 5, 5)).astype(np.float32)
STOP = "qat.moving_min_max_stop_update_after_iters"
MAX = "-fake-quant-observer-fake-quant-moving-max"
MIN = "-fake-quant-observer-fake-quant-moving-min"


def config(place: tuple[str, str] = ("cpu", "0:0"), stop: int | None = 1000, **qat: Any) -> Any:
    found = flow.FunctionConfig()
    found.enable_qat(True)
    found.default_placement_scope(flow.scope.placement(*place))
    if stop is not None:
        found.qat.moving_min_max_stop_update_after_iters(stop)
    for name, value in qat.items():
        getattr(found.qat, name)(value)
    return found


def network(x: Any) -> Any:
    init = flow.random_normal_initializer(stddev=0.4)
    y = flow.layers.conv2d(
        x, 3, 3, padding="SAME", activation=flow.nn.relu, name="conv",
        kernel_initializer=init, bias_initializer=flow.constant_initializer(0.0001),
    )  # fmt: skip
    y = flow.nn.max_pool2d(y, 2, 2, "VALID", name="pool")
    return flow.layers.dense(
        flow.reshape(y, (y.shape[0], -1)), 2, name="out", kernel_initializer=init
    )


def trained(settings: Any, rate: float = 0.0, body: Any = network) -> Any:
    @flow.global_function(type="train", function_config=settings)
    def job(x: tp.Numpy.Placeholder(IMAGES.shape)) -> tp.Numpy:
        y = body(x)
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [rate])
        flow.optimizer.SGD(schedule, momentum=0).minimize(flow.math.square(y))
        return y

    return job


# --- the same in numpy


def grid(x: Any, symmetric: bool, rows: bool) -> tuple[Any, Any]:
    axes = tuple(range(1, x.ndim)) if rows else None
    high, low = x.max(axes, keepdims=True), x.min(axes, keepdims=True)
    if symmetric:
        return np.maximum(abs(high), abs(low)) / 127, np.zeros_like(high)
    scale = (high - low) / 255
    return scale, -low / scale


def on_grid(x: Any, scale: Any, zero: Any, symmetric: bool) -> Any:
    steps = x / scale + zero
    steps = np.trunc(steps + np.copysign(0.5, steps))
    return (np.clip(steps, -127 if symmetric else 0, 127 if symmetric else 255) - zero) * scale


def expected(v: dict[str, Any], symmetric: bool, rows: bool) -> Any:
    def rounded(x: Any, weight: bool = False) -> Any:
        return on_grid(x, *grid(x, symmetric, weight and rows), symmetric)

    x, w = rounded(IMAGES), rounded(v["conv-weight"], weight=True)
    steps = grid(IMAGES, symmetric, False)[0] * grid(v["conv-weight"], symmetric, rows)[0]
    bias = on_grid(v["conv-bias"], steps.reshape(-1), 0.0, symmetric)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    y = np.einsum("nchwij,ocij->nohw", windows, w) + bias[:, None, None]
    y = rounded(np.maximum(y, 0))
    pooled = y[:, :, :4, :4].reshape(4, 3, 2, 2, 2, 2).max((3, 5))
    flat = rounded(pooled).reshape(4, -1)
    return rounded(flat @ rounded(v["out-weight"], weight=True).T)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("place", [("cpu", "0:0"), ("gpu", "0:0-1")], ids=["one", "two"])
def test_the_first_step_is_numpy_s(symmetric: bool, rows: bool, place: tuple[str, str]) -> None:
    asked = config(place, symmetric=symmetric, per_channel_weight_quantization=rows)
    job = trained(asked)
    found = job(IMAGES)
    values = {name: x.numpy() for name, x in flow.get_all_variables().items()}
    wanted = expected(values, symmetric, rows)
    step = np.abs(wanted).max() / 127
    assert np.mean(np.abs(found - wanted) < step / 10) >= 0.7  # others are a step away, by rounding
    assert np.abs(found - wanted).max() < 2.2 * step


def test_what_is_rounded_and_the_names_of_what_is_kept() -> None:
    job = trained(config())
    rounded = {op.inputs[0].op for op in job.compile().logical.of_type("fake_quantization")}
    assert rounded == {
        "Input_x", "conv-weight", "conv-bias", "conv-activation", "pool", "out-weight", "out-matmul"
    }  # fmt: skip
    kept = {f"{name}{end}" for name in (
        "Input_x-out", "conv-activation-out_0", "pool-y_0", "out-matmul-out_0"
    ) for end in (MAX, MIN)}  # fmt: skip
    names = {n for n in flow.get_all_variables() if "fake-quant" in n}
    assert names == kept | {"conv-bias-out-fake-quant-zp"}


def test_averages_move_until_they_are_told_to_stop() -> None:
    job, high = trained(config(stop=2, moving_min_max_momentum=0.5)), f"Input_x-out{MAX}"
    seen = []
    for factor in (1, 3, 5, 7, 9):
        job(IMAGES * np.float32(factor))
        seen.append(float(flow.get_all_variables()[high].numpy()[0]) / np.abs(IMAGES).max())
    np.testing.assert_allclose(seen, [1, 2, 3.5, 3.5, 3.5], rtol=1e-6)


def test_gradients_pass_and_the_loss_falls() -> None:
    job = trained(config(), rate=0.05)
    losses = [float(np.square(job(IMAGES)).mean()) for _ in range(20)]
    assert losses[-1] < 0.2 * losses[0]


def test_a_predict_job_uses_what_training_has_seen() -> None:
    trained(config())(IMAGES)

    @flow.global_function(function_config=config())
    def job(x: tp.Numpy.Placeholder(IMAGES.shape)) -> tp.Numpy:
        return network(x)

    before = {n: x.numpy() for n, x in flow.get_all_variables().items() if MAX in n}
    assert np.abs(job(IMAGES * 100)).max() <= before[f"out-matmul-out_0{MAX}"][0] * 1.01
    for name, value in before.items():
        np.testing.assert_array_equal(flow.get_all_variables()[name].numpy(), value)


def test_without_a_last_step_it_says_what_is_missing() -> None:
    job = trained(config(stop=None))
    with pytest.raises(ConfigError, match=f"no {STOP}"):
        job(IMAGES)


def test_weights_alone_need_no_last_step() -> None:
    def body(x: Any) -> Any:
        w = flow.get_variable("w", shape=(2, 2), initializer=flow.ones_initializer())
        return flow.math.square(w) * flow.math.reduce_sum(x)

    assert np.isfinite(trained(config(stop=None), body=body)(IMAGES)).all()


def test_each_device_of_the_mirrored_view_has_its_averages() -> None:
    asked = config(("gpu", "0:0-1"))
    asked.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(type="train", function_config=asked)
    def mirrored(x: tp.ListNumpy.Placeholder(IMAGES.shape)) -> tp.ListNumpy:
        y = network(x)
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
        flow.optimizer.SGD(schedule, momentum=0).minimize(flow.math.square(y))
        return y

    one = trained(config())(IMAGES)
    two = mirrored([IMAGES, IMAGES])
    for y in two:
        np.testing.assert_allclose(y, one, atol=1e-5)
    losses = [float(np.square(mirrored([IMAGES, IMAGES])[0]).mean()) for _ in range(8)]
    assert losses[-1] < losses[0]


def test_residual_sums_and_normalization() -> None:
    def body(x: Any) -> Any:
        y = flow.layers.conv2d(x, 2, 3, padding="SAME", use_bias=False, name="conv")
        y = flow.layers.batch_normalization(y, axis=1, name="bn")
        return flow.math.relu(y, name="relu") + x

    job = trained(config(), body=body)
    rounded = {op.inputs[0].op for op in job.compile().logical.of_type("fake_quantization")}
    assert {"Input_x", "conv-weight", "relu"} < rounded
    assert not {"conv", "bn"} & rounded
    assert np.isfinite(job(IMAGES)).all()
