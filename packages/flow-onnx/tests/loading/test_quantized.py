"""Models that ONNX Runtime has quantized, loaded into jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime import quantization

import oneflow as flow
import oneflow.typing as tp

SHAPE = (2, 3, 12, 12)


def network(path: Path) -> None:
    """Write a model of two convolutions, a residual and a product in float32."""
    rng = np.random.default_rng(0)
    make = onnx.helper.make_node
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        make("Conv", ["x", "w1", "b1"], ["c1"], **conv), make("Relu", ["c1"], ["h1"]),
        make("MaxPool", ["h1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        make("Conv", ["p1", "w2", "b2"], ["c2"], **conv), make("Add", ["c2", "p1"], ["a"]),
        make("Relu", ["a"], ["h2"]), make("Flatten", ["h2"], ["f"]),
        make("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]  # fmt: skip
    shapes = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "b2": (16,),
              "w3": (5, 576), "b3": (5,)}  # fmt: skip
    weights = [
        onnx.numpy_helper.from_array(rng.normal(0, 0.1, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    ends = [value("x", kind, SHAPE)], [value("y", kind, (2, 5))]
    graph = onnx.helper.make_graph(nodes, "net", *ends, weights)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), path)


class Feeds(quantization.CalibrationDataReader):
    def __init__(self, x: Any) -> None:
        self.left = [{"x": x}]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_quantized_models(signed: bool, per_channel: bool, tmp_path: Path) -> None:
    """Zero points are not 0 here; the results differ by roundings at ties only."""
    x = np.random.default_rng(1).normal(0.3, 1, SHAPE).astype(np.float32)
    network(tmp_path / "net.onnx")
    kind = quantization.QuantType.QInt8 if signed else quantization.QuantType.QUInt8
    quantization.quantize_static(
        tmp_path / "net.onnx", tmp_path / "int8.onnx", Feeds(x), per_channel=per_channel,
        activation_type=kind,
    )  # fmt: skip
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(SHAPE)) -> tp.Numpy:  # type: ignore[valid-type]
        return flow.onnx.load(str(tmp_path / "int8.onnx"), x)

    found = job(x)
    session = onnxruntime.InferenceSession(
        tmp_path / "int8.onnx", providers=["CPUExecutionProvider"]
    )
    (wanted,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.02 * np.abs(wanted).max())
    found_int8 = [task.type for task in job.plan().tasks].count("onednn_int8_conv")
    assert found_int8 in (0, 3), "without int8 dot products, all are computed in float32"


def test_models_store_the_levels_of_quantized_weights(tmp_path: Path) -> None:
    """A quarter of the bytes, no node that quantizes a weight, and the same int8 kernels."""
    flow.clear_default_session()
    draw = flow.random_normal_initializer(stddev=0.1)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(SHAPE)) -> tp.Numpy:  # type: ignore[valid-type]
        h = flow.layers.conv2d(x, 64, 3, padding="SAME", name="a", kernel_initializer=draw)
        h = flow.nn.relu(flow.layers.batch_normalization(h, axis=1, name="n", training=False))
        h = flow.layers.conv2d(h, 64, 3, padding="SAME", name="b", kernel_initializer=draw)
        return flow.layers.dense(flow.reshape(h, (2, -1)), 5, name="c", kernel_initializer=draw)

    x = np.random.default_rng(1).normal(0.3, 1, SHAPE).astype(np.float32)
    quantized = flow.quantization.calibrate(job, [x])
    wanted = quantized(x)
    flow.checkpoint.save(str(tmp_path / "saved"))
    for made, name in ((job, "float32"), (quantized, "int8")):
        flow.onnx.export(made, str(tmp_path / "saved"), str(tmp_path / f"{name}.onnx"))
    sizes = [(tmp_path / f"{name}.onnx").stat().st_size for name in ("float32", "int8")]
    assert sizes[1] < 0.3 * sizes[0]
    model = onnx.load(tmp_path / "int8.onnx").graph
    assert [n.op_type for n in model.node].count("QuantizeLinear") == 3, "one per activation"
    session = onnxruntime.InferenceSession(
        tmp_path / "int8.onnx", providers=["CPUExecutionProvider"]
    )
    limit = 0.02 * np.abs(wanted).max()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=0, atol=limit)
    flow.clear_default_session()

    @flow.global_function()
    def again(x: tp.Numpy.Placeholder(SHAPE)) -> tp.Numpy:  # type: ignore[valid-type]
        return flow.onnx.load(str(tmp_path / "int8.onnx"), x)

    np.testing.assert_allclose(again(x), wanted, rtol=0, atol=limit)
    assert [task.type for task in again.plan().tasks].count("onednn_int8_conv") in (0, 3)
