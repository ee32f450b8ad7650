"""Whole jobs: ONNX Runtime computes the same results as the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_cases.models import run_model

import oneflow as flow
import oneflow.typing as tp

BATCH = 4


def exported(job: Any, folder: Path, **options: Any) -> Path:
    """Export a job with newly initialized weights and return the model's path."""
    flow.train.CheckPoint().save(str(folder / "weights"))
    path = folder / "model.onnx"
    flow.onnx.export(job, str(folder / "weights"), str(path), **options)
    return path


def lenet(images: Any, form: str) -> Any:
    init = flow.truncated_normal(0.1)
    options = {"padding": "SAME", "kernel_initializer": init, "data_format": form}
    pool = {"ksize": 2, "strides": 2, "padding": "SAME", "data_format": form}
    x = flow.layers.conv2d(images, 8, 5, activation=flow.nn.relu, name="conv1", **options)
    x = flow.nn.max_pool2d(x, **pool)
    x = flow.layers.conv2d(x, 12, 5, activation=flow.nn.relu, name="conv2", **options)
    x = flow.nn.avg_pool2d(x, **pool)
    x = flow.reshape(x, [x.shape[0], -1])
    x = flow.layers.dense(x, 16, activation=flow.nn.relu, kernel_initializer=init, name="dense1")
    return flow.layers.dense(flow.nn.dropout(x, 0.5), 10, kernel_initializer=init, name="dense2")


@pytest.mark.parametrize("opset", [None, 11])
@pytest.mark.parametrize("form", ["NCHW", "NHWC"])
def test_lenet(form: str, opset: int | None, tmp_path: Path) -> None:
    shape = (BATCH, 1, 14, 14) if form == "NCHW" else (BATCH, 14, 14, 1)

    @flow.global_function()
    def job(images: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        return lenet(images, form)

    images = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    path = exported(job, tmp_path, opset=opset)
    np.testing.assert_allclose(
        run_model(path, {"images": images})[0], job(images), rtol=1e-4, atol=1e-5
    )
    model = onnx.load(path)
    assert model.opset_import[0].version == (opset or 18)
    names = {tensor.name for tensor in model.graph.initializer}
    assert {"conv1-weight", "conv2-bias", "dense2-weight"} <= names


HEADS, WIDTH, LENGTH, WORDS = 2, 8, 5, 11


def attention(x: Any, mask: Any) -> Any:
    def heads(name: str) -> Any:
        y = flow.layers.dense(flow.reshape(x, (-1, WIDTH)), WIDTH, name=name)
        y = flow.reshape(y, (x.shape[0], LENGTH, HEADS, WIDTH // HEADS))
        return flow.transpose(y, (0, 2, 1, 3))

    scores = flow.matmul(heads("query"), heads("key"), transpose_b=True, alpha=0.5)
    bias = (1.0 - flow.cast(mask, flow.float)) * -1e4
    bias = flow.reshape(bias, (mask.shape[0], 1, 1, LENGTH))
    mixed = flow.matmul(flow.nn.softmax(scores + bias), heads("value"))
    mixed = flow.reshape(flow.transpose(mixed, (0, 2, 1, 3)), (-1, WIDTH))
    return flow.reshape(flow.layers.dense(mixed, WIDTH, name="mix"), x.shape)


def transformer(tokens: Any, mask: Any) -> Any:
    table = flow.get_variable("table", (WORDS, WIDTH), initializer=flow.truncated_normal(1.0))
    x = flow.gather(table, tokens)
    x = flow.layers.layer_norm(
        x + attention(x, mask), begin_norm_axis=2, begin_params_axis=2, name="norm1"
    )
    wide = flow.layers.dense(
        flow.reshape(x, (-1, WIDTH)), 16, activation=flow.math.gelu, name="wide"
    )
    x = x + flow.reshape(flow.layers.dense(wide, WIDTH, name="narrow"), x.shape)
    return flow.layers.layer_norm(x, begin_norm_axis=2, begin_params_axis=2, name="norm2")


def transformer_job() -> Any:
    @flow.global_function()
    def job(
        tokens: tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32),
        mask: tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int8),
    ) -> tuple[tp.Numpy, tp.Numpy]:
        y = transformer(tokens, mask)
        first = flow.slice(y, [None, 0, None], [None, 1, None])
        return y, flow.math.argmax(flow.squeeze(first, [1]))

    return job


@pytest.mark.parametrize("opset", [None, 11])
def test_transformer_layer_with_two_results(opset: int | None, tmp_path: Path) -> None:
    job, rng = transformer_job(), np.random.default_rng(0)
    tokens = rng.integers(0, WORDS, (BATCH, LENGTH)).astype(np.int32)
    mask = rng.integers(0, 2, (BATCH, LENGTH)).astype(np.int8)
    path = exported(job, tmp_path, opset=opset)
    found = run_model(path, {"tokens": tokens, "mask": mask})
    expected = job(tokens, mask)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    assert found[1].tolist() == expected[1].tolist()


def test_transformer_layer_with_a_dynamic_batch(tmp_path: Path) -> None:
    job, rng = transformer_job(), np.random.default_rng(0)
    sizes = {"tokens": ("batch", LENGTH), "mask": ("batch", LENGTH)}
    path = exported(job, tmp_path, shape_override=sizes)
    tokens = rng.integers(0, WORDS, (BATCH, LENGTH)).astype(np.int32)
    mask = np.ones((BATCH, LENGTH), np.int8)
    expected = job(tokens, mask)[0]
    for rows in (1, 3, BATCH):
        found = run_model(path, {"tokens": tokens[:rows], "mask": mask[:rows]})
        np.testing.assert_allclose(found[0], expected[:rows], rtol=1e-4, atol=1e-5)
    outputs = onnx.load(path).graph.output
    assert [d.dim_param or d.dim_value for d in outputs[0].type.tensor_type.shape.dim] == [
        "batch", LENGTH, WIDTH,
    ]  # fmt: skip


def test_weights_come_from_the_checkpoint_not_the_session(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return x + flow.get_variable("w", (2,), initializer=flow.ones_initializer())

    flow.checkpoint.save(str(tmp_path / "then"), {"w": np.array([3, 4], np.float32)})
    flow.onnx.export(job, str(tmp_path / "then"), tmp_path / "model.onnx")
    zeros = np.zeros(2, np.float32)
    assert run_model(tmp_path / "model.onnx", {"x": zeros})[0].tolist() == [3, 4]
    assert job(zeros).tolist() == [1, 1]


def test_inputs_may_be_returned_repeatedly(tmp_path: Path) -> None:
    @flow.global_function()
    def job(
        pair: tuple[tp.Numpy.Placeholder((2,)), tp.Numpy.Placeholder((2,))],
        unread: tp.Numpy.Placeholder((3,)),
    ) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        total = pair[0] + pair[1]
        return pair[0], total, total

    path = exported(job, tmp_path)
    ones = np.ones(2, np.float32)
    found = run_model(path, {"pair-0": ones, "pair-1": ones, "unread": np.zeros(3, np.float32)})
    assert [array.tolist() for array in found] == [[1, 1], [2, 2], [2, 2]]


def test_batch_norms_use_the_moving_statistics(tmp_path: Path) -> None:
    shape = (2, 3, 4, 4)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        return flow.layers.batch_normalization(x, axis=1, training=False, name="norm")

    flow.train.CheckPoint().init()
    rng = np.random.default_rng(0)
    statistics = {name: rng.uniform(0.5, 2, 3).astype(np.float32) for name in (
        "norm-gamma", "norm-beta", "norm-moving_mean", "norm-moving_variance",
    )}  # fmt: skip
    job(np.zeros(shape, np.float32))
    flow.load_variables(statistics)
    path = exported(job, tmp_path)
    x = rng.normal(size=shape).astype(np.float32)
    np.testing.assert_allclose(run_model(path, {"x": x})[0], job(x), rtol=1e-4, atol=1e-5)


def test_two_dynamic_sizes(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 5, 8))) -> tuple[tp.Numpy, tp.Numpy]:
        heads = flow.transpose(flow.reshape(x, (2, 5, 2, 4)), (0, 2, 1, 3))
        scores = flow.nn.softmax(flow.matmul(heads, heads, transpose_b=True))
        return flow.matmul(scores, heads), flow.math.reduce_sum(flow.reshape(x, (-1, 8)), axis=[1])

    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    whole = {"x": ("batch", "length", 8)}
    path = exported(job, tmp_path, shape_override=whole)
    found = run_model(path, {"x": x})
    for a, b in zip(found, job(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    parts = run_model(path, {"x": x[1:, :3]})
    assert [a.shape for a in parts] == [(1, 2, 3, 4), (3,)]


def test_slices_and_broadcasts_of_dynamic_sizes(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        behind = flow.slice(x, [1, None], [None, 2])
        ones = flow.broadcast_like(flow.constant(2.0, flow.float, (1, 3)), x)
        mean = flow.math.reduce_mean(x, axis=[1], keepdims=True)
        return behind, ones * x, flow.concat([x - mean, flow.zeros_like(x)], 0)

    path = exported(job, tmp_path, shape_override={"x": ("rows", 3)})
    x = np.arange(18, dtype=np.float32).reshape(6, 3)
    found = run_model(path, {"x": x})
    np.testing.assert_array_equal(found[0], x[1:, :2])
    np.testing.assert_array_equal(found[1], 2 * x)
    np.testing.assert_allclose(found[2][:6], x - x.mean(1, keepdims=True), atol=1e-6)
    assert found[2].shape == (12, 3)


def test_several_devices_export_to_one_model(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            w = flow.get_variable("w", (6, 2), initializer=flow.truncated_normal(1.0))
            w = w.with_distribute(flow.distribute.split(1))
            return flow.matmul(flow.parallel_cast(x, distribute=flow.distribute.split(0)), w)

    path = exported(job, tmp_path)
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    np.testing.assert_allclose(run_model(path, {"x": x})[0], job(x), rtol=1e-5, atol=1e-6)
    assert [node.op_type for node in onnx.load(path).graph.node] == ["MatMul"]


def test_half_precision(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        y = flow.math.tanh(flow.cast(x, flow.float16) * 0.5)
        return flow.cast(flow.matmul(y, y, transpose_b=True), flow.float)

    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    found = run_model(exported(job, tmp_path), {"x": x})
    np.testing.assert_allclose(found[0], job(x), rtol=1e-2, atol=1e-2)


def test_job_without_inputs_and_with_a_scalar_result(tmp_path: Path) -> None:
    @flow.global_function()
    def constants() -> tp.Numpy:
        return flow.constant(3.0, flow.float, (2,)) + 1

    assert run_model(exported(constants, tmp_path), {})[0].tolist() == [4, 4]

    @flow.global_function()
    def scalar(x: tp.Numpy.Placeholder(())) -> tp.Numpy:
        return x * x

    flow.onnx.export(scalar, str(tmp_path / "weights"), tmp_path / "scalar.onnx")
    assert run_model(tmp_path / "scalar.onnx", {"x": np.array(3, np.float32)})[0] == 9


def test_quantization_aware_jobs_round_identically(tmp_path: Path) -> None:
    config = flow.function_config()
    config.enable_qat(True)
    config.qat.moving_min_max_stop_update_after_iters(1)

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((2, 3, 6, 6))) -> tp.Numpy:
        init = flow.truncated_normal(0.5)
        return flow.layers.conv2d(x, 4, 3, padding="SAME", kernel_initializer=init, name="conv")

    x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 6, 6)).astype(np.float32)
    job(x)
    names = [name for name in flow.get_all_variables() if "moving" in name or "max" in name]
    flow.load_variables({name: np.full((1,), 0.9, np.float32) for name in names})
    found = run_model(exported(job, tmp_path), {"x": x})
    np.testing.assert_allclose(found[0], job(x), rtol=1e-4, atol=1e-5)
    assert len(np.unique(found[0])) < 256
