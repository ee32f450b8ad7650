"""Post-training quantization of predict jobs, without int8 kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.arrays import Array
from flow_core.base.errors import ConfigError, DataError, InferenceError, JobError
from flow_core.frontend.job.function import JobFunction
from flow_core.ir.graph import Graph
from flow_core.passes.base import Pass
from flow_core.passes.quantization.post_training import PostTraining

SHAPE = (4, 3, 8, 8)


@pytest.fixture(autouse=True)
def fresh() -> None:
    flow.clear_default_session()


def network(x: Any) -> Any:
    draw = flow.random_normal_initializer(stddev=0.3)
    h = flow.layers.conv2d(x, 8, 3, padding="SAME", name="a", kernel_initializer=draw)
    h = flow.nn.relu(flow.layers.batch_normalization(h, axis=1, name="n", training=False))
    h = flow.nn.max_pool2d(h, 2, 2, "VALID")
    h = h + flow.layers.conv2d(h, 8, 3, padding="SAME", name="b", kernel_initializer=draw)
    return flow.layers.dense(flow.reshape(h, (4, -1)), 5, name="c", kernel_initializer=draw)


def job_of(config: Any = None, type_: str = "predict") -> JobFunction[[Array], Array]:
    @flow.global_function(type=type_, function_config=config)
    def job(x: tp.Numpy.Placeholder(SHAPE)) -> tp.Numpy:  # type: ignore[valid-type]
        y = network(x)
        if type_ == "train":
            flow.optimizer.SGD(1e-3).minimize(flow.math.reduce_mean(y))
        return y

    return job


def samples(count: int = 4) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.uniform(-1, 1, SHAPE).astype(np.float32) for _ in range(count)]


def levels(graph: Graph) -> dict[str, str]:
    """Return the types of quantized values, by name of the op that makes the value."""
    return {
        op.inputs[0].op: str(graph.types[op.name][0].dtype)
        for op in graph.ops.values()
        if op.type == "quantize_linear" and op.attrs["axis"] is None
    }


def test_the_pass_rounds_operands(apply: Callable[[Pass, str], str]) -> None:
    before = """
graph
x = input() : float32[2,3] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 3)}
w = variable() : float32[3,4] @cpu[0:0] {'dtype': 'float32', 'initializer': ('constant', 0.0), 'regularizer': None, 'seed': None, 'shape': (3, 4), 'trainable': True}
m = matmul(x:0, w:0) : float32[2,4] @cpu[0:0] {'alpha': 1.0, 'transpose_a': False, 'transpose_b': False}
return m:0
effects
"""
    after = apply(PostTraining({"x:0": (-1.0, 1.0)}), before)
    assert after.count(" = quantize_linear(") == after.count(" = dequantize_linear(") == 2


def test_operands_are_rounded() -> None:
    """Numbers of both signs are int8; the pooled numbers have the grid of their input."""
    job = job_of()
    quantized = flow.quantization.calibrate(job, samples())
    found = quantized.config.get("quantization_ranges")
    ranges = {name: (low, high) for name, low, high in found}
    assert [*ranges] == ["Input_x:0", "relu:0", "reshape:0"]
    graph = quantized.compile().request.graph
    assert levels(graph) == {
        "Input_x": "int8", "relu": "uint8", "max_pool_2d": "uint8", "reshape": "int8",
    }  # fmt: skip
    weights = [op for op in graph.of_type("quantize_linear") if op.attrs["axis"] is not None]
    assert [graph.types[op.name][0].shape for op in weights] == [
        (8, 3, 3, 3),
        (8, 8, 3, 3),
        (5, 128),
    ]
    x = samples()[0]
    exact = job(x)
    np.testing.assert_allclose(quantized(x), exact, rtol=0, atol=0.04 * np.abs(exact).max())
    assert not np.array_equal(quantized(x), exact)


def test_ranges_span_all_samples() -> None:
    job, xs = job_of(), samples()
    found = flow.quantization.calibrate(job, xs).config.get("quantization_ranges")
    assert found[0] == ("Input_x:0", min(map(np.min, xs)), max(map(np.max, xs)))
    again = flow.quantization.calibrate(job, reversed(xs))
    assert again.config.get("quantization_ranges") == found


def test_ranges_serve_another_job_of_the_function() -> None:
    job, xs = job_of(), samples()
    quantized = flow.quantization.calibrate(job, xs)
    wanted = quantized(xs[0])
    config = flow.FunctionConfig()
    ranges = quantized.config.get("quantization_ranges")
    config.quantization_ranges({name: (low, high) for name, low, high in ranges})
    np.testing.assert_array_equal(job_of(config)(xs[0]), wanted)


def test_a_value_without_range_is_refused() -> None:
    config = flow.FunctionConfig()
    config.quantization_ranges({"relu:0": (0.0, 1.0)})
    with pytest.raises(ConfigError, match=r"'Input_x:0'.*\n.*ranges of 1 other values"):
        job_of(config)(samples()[0])


@pytest.mark.parametrize("ranges", [{}, {"a": 1}, {"a": (2, 1)}, {"a": (0, float("nan"))}, 7])
def test_ranges_are_checked(ranges: Any) -> None:
    with pytest.raises(ConfigError, match="a lowest and a highest number"):
        flow.FunctionConfig().quantization_ranges(ranges)


def test_jobs_that_train_are_refused() -> None:
    with pytest.raises(JobError, match="a job that trains"):
        flow.quantization.calibrate(job_of(type_="train"), samples())
    flow.clear_default_session()
    config = flow.FunctionConfig()
    config.quantization_ranges({"Input_x:0": (0.0, 1.0)})
    with pytest.raises(JobError, match="a train job with ranges"):
        job_of(config, "train").prepare()


def test_samples_are_checked() -> None:
    job = job_of()
    with pytest.raises(DataError, match="no samples"):
        flow.quantization.calibrate(job, [])
    with pytest.raises(DataError, match=r"'Input_x:0'.*\n.*nan"):
        flow.quantization.calibrate(job, [np.full(SHAPE, np.nan, np.float32)])

    @flow.global_function()
    def sums(x: tp.Numpy.Placeholder((3,))) -> tp.Numpy:  # type: ignore[valid-type]
        return x + x

    with pytest.raises(DataError, match="no product or convolution"):
        flow.quantization.calibrate(sums, [np.ones(3, np.float32)])


def test_several_devices_round_alike() -> None:
    """Norms stay ops of their own there, which rounds other weights."""

    def found(count: int) -> Array:
        flow.clear_default_session()
        flow.config.cpu_device_num(count)
        job = job_of()
        x = samples()
        job(x[0])
        rng = np.random.default_rng(1)
        shapes = {n: v.shape for n, v in flow.get_all_variables().items() if not n.startswith("n-")}
        flow.load_variables(
            {n: rng.normal(0, 0.2, s).astype(np.float32) for n, s in shapes.items()}
        )
        return flow.quantization.calibrate(job, x)(x[0])

    one, four = found(1), found(4)
    flow.config.cpu_device_num(1)
    np.testing.assert_allclose(one, four, rtol=0, atol=0.02 * np.abs(one).max())


def test_arguments_are_tuples_or_single_arrays() -> None:
    @flow.global_function()
    def product(
        x: tp.Numpy.Placeholder((2, 6)),  # type: ignore[valid-type]
        scale: tp.Numpy.Placeholder((2, 4)),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        draw = flow.random_normal_initializer(stddev=0.3)
        w = flow.get_variable("w", (6, 4), initializer=draw)
        return flow.matmul(x, w) * scale

    rng = np.random.default_rng(0)
    x, scale = rng.normal(0, 1, (2, 6)), rng.normal(0, 1, (2, 4))
    fed = (x.astype(np.float32), scale.astype(np.float32))
    quantized = flow.quantization.calibrate(product, [fed])
    np.testing.assert_allclose(quantized(*fed), product(*fed), rtol=0, atol=0.05)


def test_both_jobs_belong_to_the_session() -> None:
    job = job_of()
    quantized = flow.quantization.calibrate(job, samples())
    assert job.session is not None
    assert [one.name for one in job.session.jobs] == ["job", "job_int8"]
    assert quantized.session is job.session


@pytest.mark.parametrize("axis", [-1, -2])
def test_axes_of_grids_count_from_the_end_if_negative(axis: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    grid = np.array([1, 2, 4], np.float32)[: x.shape[axis]]

    @flow.global_function()
    def job(
        x: tp.Numpy.Placeholder((2, 3)),
        grid: tp.Numpy.Placeholder(grid.shape),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        zero = flow.constant(0, flow.int8, grid.shape)
        levels = flow.quantization.quantize_linear(x, grid, zero, axis)
        return flow.quantization.dequantize_linear(levels, grid, zero, axis)

    steps = np.expand_dims(grid, tuple({0, 1} - {axis + 2}))
    assert np.array_equal(job(x, grid), np.rint(x / steps) * steps)


def test_axes_outside_of_the_shape_are_refused() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        one, zero = flow.constant(1.0, flow.float, (2,)), flow.constant(0, flow.int8, (2,))
        return flow.quantization.quantize_linear(x, one, zero, axis=-3)

    with pytest.raises(InferenceError, match=r"flow\.quantization\.quantize_linear") as error:
        job(np.zeros((2, 3), np.float32))
    assert "-2 to 1" in str(error.value)
