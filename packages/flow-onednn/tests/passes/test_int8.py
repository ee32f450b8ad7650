"""Quantized networks in int8, against the same rounded numbers in float32."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.frontend.job.function import AnyJob, JobFunction
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.checks import run_kernel
from flow_onednn import library, threads
from flow_onednn.kernels.convolution import chain, int8
from flow_onednn.kernels.convolution.chain import CHAIN
from flow_onednn.kernels.convolution.int8 import PACK, PRODUCT, packed_size
from flow_onednn.passes import chain_convs

pytestmark = [
    pytest.mark.usefixtures("onednn"),
    pytest.mark.skipif(not library.has_int8(), reason="the processor has no int8 dot products"),
]
BATCH = 3


@pytest.fixture(autouse=True)
def fresh() -> None:
    flow.clear_default_session()


def norm(x: Any, name: str) -> Any:
    return flow.layers.batch_normalization(
        x, axis=1, name=name, training=False, trainable=False,
        moving_mean_initializer=flow.random_uniform_initializer(-0.5, 0.5),
        moving_variance_initializer=flow.random_uniform_initializer(0.5, 2.0),
        gamma_initializer=flow.random_uniform_initializer(-1.0, 1.0),
    )  # fmt: skip


def conv(x: Any, name: str, filters: int, size: int, groups: int = 1, **how: Any) -> Any:
    draw = flow.random_normal_initializer(stddev=0.2)
    return flow.layers.conv2d(
        x, filters, size, padding="SAME", name=name, groups=groups, kernel_initializer=draw, **how
    )


def residual(x: Any) -> Any:
    x = flow.nn.relu(norm(conv(x, "a", 16, 3, use_bias=False), "na"))
    x = flow.nn.max_pool2d(x, 3, 2, "SAME")
    y = flow.nn.relu(conv(x, "b", 32, 1))
    y = norm(conv(y, "c", 32, 3, groups=4), "nc")
    x = flow.nn.relu(y + conv(x, "d", 32, 1))
    return conv(x, "e", 8, 3)


def inverted(x: Any) -> Any:
    x = conv(x, "a", 16, 3, strides=2)
    y = flow.clip_by_value(conv(x, "b", 24, 1), 0.0, 6.0)
    y = flow.clip_by_value(norm(conv(y, "c", 24, 3, groups=24), "nc"), 0.0, 1.5)
    x = x + conv(y, "d", 16, 1)
    x = flow.clip_by_value(conv(x, "f", 24, 1), 0.0, 6.0)
    return flow.layers.dense(flow.math.reduce_mean(x, [2, 3]), 10, name="e")


def dense(x: Any) -> Any:
    x = flow.layers.dense(flow.flatten(x, 1), 30, flow.nn.relu, name="a")
    w = flow.get_variable("b", (30, 30), initializer=flow.random_uniform_initializer(-0.3, 0.3))
    x = flow.math.tanh(flow.matmul(x, w) + x)
    return flow.layers.dense(x, 5, name="c")


def job_of(network: Any) -> JobFunction[[Array], Array]:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((BATCH, 3, 12, 12))) -> tp.Numpy:  # type: ignore[valid-type]
        return network(x)

    return predict


def images(seed: int, low: float = -1.0) -> Array:
    draw = np.random.default_rng(seed).uniform(low, 1, (BATCH, 3, 12, 12))
    return draw.astype(np.float32)


def kinds(job: AnyJob) -> Counter[str]:
    return Counter(task.type for task in job.plan().tasks)


STEPS = {
    residual: {PRODUCT: 5, "onednn_int8_pool": 1},
    inverted: {PRODUCT: 6, "reduce_mean": 1},
    dense: {PRODUCT: 3, "tanh": 1},
}


@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("network", STEPS)
def test_networks_in_int8(network: Any, low: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are those of the rounded numbers in float32, but for roundings at ties."""
    job = job_of(network)
    samples = [images(seed, low) for seed in range(4)]
    exact = job(samples[0])
    quantized = flow.quantization.calibrate(job, samples)
    found = quantized(samples[0])
    monkeypatch.setattr(int8, "has_int8", lambda: False)
    floats = flow.quantization.calibrate(job, samples)
    wanted = floats(samples[0])
    assert PRODUCT not in kinds(floats)
    scale = np.abs(exact).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-2 * scale)
    np.testing.assert_allclose(found, exact, rtol=0, atol=5e-2 * scale)
    moves = ("onednn_reorder", "onednn_quantize", "quantize_linear")
    steps = {kind: n for kind, n in kinds(quantized).items() if kind not in moves}
    assert steps == STEPS[network]
    assert kinds(quantized)["quantize_linear"] <= 2


@pytest.mark.parametrize("network", [residual, inverted])
def test_chains_have_the_bits_of_convolutions(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "CACHED", 0)
    found, x = [], images(0)
    for size in (0, 1 << 30):
        flow.clear_default_session()
        monkeypatch.setattr(chain_convs, "CACHE", size)
        job = flow.quantization.calibrate(job_of(network), [x])
        found.append(job(x))
        assert kinds(job)[CHAIN] == (not size)
    np.testing.assert_array_equal(*found)


def test_loaded_weights_are_quantized_again() -> None:
    job = job_of(residual)
    x = images(0)
    quantized = flow.quantization.calibrate(job, [x])
    quantized(x)
    values = {n: v.numpy() for n, v in flow.get_all_variables().items()}
    flow.load_variables({"e-weight": 3 * values["e-weight"], "e-bias": 3 * values["e-bias"]})
    np.testing.assert_allclose(quantized(x), job(x), atol=0.05 * np.abs(job(x)).max())


def test_the_bits_are_those_of_any_number_of_threads() -> None:
    job = job_of(residual)
    x, found = images(0), set()
    for count in (1, 2, 3):
        with threads.limited(count):
            found.add(flow.quantization.calibrate(job, [x])(x).tobytes())
    assert len(found) == 1


def run(op: str, attrs: dict[str, Any], arrays: list[Array], types: list[Any]) -> list[Array]:
    inputs = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in arrays)
    query = KernelQuery(op, Attrs(attrs), inputs, tuple(types))
    return run_kernel(default_registry().find_kernel(query, "cpu"), query, arrays)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(2, 3, 30, 41), (1, 7, 3, 5), (3, 1, 1, 600)])
def test_quantized_images_have_the_levels_of_the_op(kind: str, shape: tuple[int, ...]) -> None:
    """Halves, numbers beyond the ends, and NaN, in the layout NHWC."""
    x = (np.random.default_rng(0).integers(-900, 900, shape) / 8).astype(np.float32)
    x.flat[:3] = np.nan, np.inf, -np.inf
    grid = np.array([0.25], np.float32), np.array([3], kind)
    last = (shape[0], *shape[2:], shape[1])
    results = [tensor_type(s, as_dtype(kind)) for s in (shape, last)]
    (wanted,) = run("quantize_linear", {"axis": None}, [x, *grid], results[:1])
    (found,) = run("onednn_quantize", {}, [x, *grid], results[1:])
    np.testing.assert_array_equal(found, wanted.transpose(0, 2, 3, 1))


def test_images_are_quantized_and_reordered_in_one_pass() -> None:
    """The remaining reorder is that of the float32 result."""
    job = job_of(residual)
    found = kinds(flow.quantization.calibrate(job, [images(0)]))
    assert (found["onednn_quantize"], found["onednn_reorder"]) == (1, 1)


@pytest.mark.parametrize("zeros", [(0, 0, 0), (5, 9, 3)])
@pytest.mark.parametrize("result", ["int8", "uint8", "float32"])
@pytest.mark.parametrize("added", ["", "int8", "uint8"])
@pytest.mark.parametrize("given", ["int8", "uint8"])
@pytest.mark.parametrize("relu", [False, True])
def test_levels_of_a_convolution(
    given: str, added: str, result: str, relu: bool, zeros: tuple[int, int, int]
) -> None:
    """All levels, the extreme ones included, against exact integers.

    Pixels outside of the image stand for the number 0, which is the zero point.
    """
    rng = np.random.default_rng(0)
    shapes = (2, 5, 6, 16), (2, 5, 6, 32)
    attrs: dict[str, Any] = {
        "kernel_size": (3, 3), "strides": (1, 1), "dilation_rate": (1, 1),
        "padding_before": (1, 1), "groups": 1, "weights_last": False, "transposed": False,
        "relu": relu, "image": shapes[0], "image_type": given, "result": shapes[1],
        "result_type": result, "filters": (32, 16, 3, 3), "bias": True, "residual_type": added,
        "image_zero": zeros[0], "result_zero": zeros[1] if result != "float32" else 0,
        "residual_zero": zeros[2] if added else 0, "high": inf,
    }  # fmt: skip
    x, w, r = (
        rng.choice([*range(np.iinfo(t).min, np.iinfo(t).max + 1)], shape).astype(t)
        for t, shape in (
            (given, shapes[0]),
            ("int8", attrs["filters"]),
            (added or "int8", shapes[1]),
        )
    )
    scales = rng.uniform(1e-4, 2e-4, 32).astype(np.float32)
    x_scale, r_scale, y_scale = (np.array([s], np.float32) for s in (0.02, 0.03, 0.01))
    bias = rng.uniform(-1, 1, 32).astype(np.float32)
    size = packed_size(attrs)
    assert size is not None
    vector, one = tensor_type((32,), as_dtype("float32")), tensor_type((1,), as_dtype("float32"))
    more = [bias, *([r_scale] if added else []), *([y_scale] if result != "float32" else [])]
    pair = tensor_type((2,), as_dtype("int32"))
    types = [tensor_type((size,), as_dtype("int8")), vector, vector, one, pair]
    packed = run(PACK, {**attrs, "size": size}, [w, scales, x_scale, *more], types)
    inputs = [x, *packed, *([r] if added else [])]
    out = tensor_type(shapes[1], as_dtype(result))
    (found,) = run(PRODUCT, {**attrs, "shape": shapes[1]}, inputs, [out])
    padded = np.pad(x.astype(np.int64) - zeros[0], ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    wanted = np.einsum("nhwcij,fcij->nhwf", windows, w.astype(np.int64)) * (scales * 0.02) + bias
    wanted = wanted + (r.astype(int) - zeros[2]) * 0.03 if added else wanted
    wanted = np.maximum(wanted, 0) if relu else wanted
    if result == "float32":
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    else:
        ends = np.iinfo(result)
        levels = np.clip(np.rint(wanted / 0.01) + zeros[1], ends.min, ends.max)
        assert np.abs(found - levels).max() <= 1
        assert (found != levels).mean() < 1e-3  # rounded at ties


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("padding", "size", "stride"), [("same", 3, 2), ("valid", 2, 2)])
def test_pooled_levels(padding: str, size: int, stride: int, dtype: str) -> None:
    """Levels outside of the image are left out, as in the pooling of numbers."""
    ends = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(ends.min, ends.max + 1, (2, 7, 6, 20)).astype(dtype)
    attrs = {
        "padding": padding, "padding_before": None, "padding_after": None, "ceil_mode": False,
        "pool_size": (size, size), "strides": (stride, stride), "data_format": "channels_last",
    }  # fmt: skip
    reference = default_registry().ops["max_pool_2d"].reference
    assert reference is not None
    wanted = reference(x, **attrs)
    types = [tensor_type(wanted.shape, as_dtype(dtype))]
    (found,) = run("onednn_int8_pool", {**attrs, "space": wanted.shape[1:3]}, [x], types)
    np.testing.assert_array_equal(found, wanted)
