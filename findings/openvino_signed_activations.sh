#!/usr/bin/env bash
# openvino 2026.2.0, CPU: of a network in int8 whose activations are signed, no convolution runs in
# int8.  ONNX Runtime's static quantization makes signed activations by default, with zero points;
# OpenVINO then computes in float32 and, after each layer, rounds in float32, too, which takes longer
# than the network before its quantization.  With unsigned activations, all convolutions run in int8.
#
# Seen on 2026-11-30, x86-64 with VNNI, Python 3.11:
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q openvino==2026.2.0 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - << 'END'
import logging
from collections import Counter

import numpy as np
import onnx
import openvino
from onnxruntime import quantization
from onnxruntime.quantization import QuantType

logging.disable(logging.WARNING)
rng = np.random.default_rng(0)
X = rng.normal(0, 1, (1, 16, 32, 32)).astype(np.float32)
nodes, weights, last = [], [], "x"
for layer in range(4):
    w = rng.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32)
    weights.append(onnx.numpy_helper.from_array(w, f"w{layer}"))
    nodes.append(onnx.helper.make_node(
        "Conv", [last, f"w{layer}"], [f"c{layer}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    nodes.append(onnx.helper.make_node("Relu", [f"c{layer}"], [f"y{layer}"]))
    last = f"y{layer}"
value = onnx.helper.make_tensor_value_info
ends = [value(name, onnx.TensorProto.FLOAT, X.shape) for name in ("x", last)]
graph = onnx.helper.make_graph(nodes, "four", ends[:1], ends[1:], weights)
model = onnx.helper.make_model(
    graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
onnx.checker.check_model(model, full_check=True)
onnx.save(model, "float.onnx")


class Feeds(quantization.CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": X}]

    def get_next(self):
        return self.left.pop() if self.left else None


found = {}
for name, kind in (("signed", QuantType.QInt8), ("unsigned", QuantType.QUInt8)):
    quantization.quantize_static(
        "float.onnx", f"{name}.onnx", Feeds(), per_channel=True, activation_type=kind)
    compiled = openvino.Core().compile_model(
        f"{name}.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    rows = [op.get_rt_info() for op in compiled.get_runtime_model().get_ops()]
    rows = [{k: v.astype(str) for k, v in row.items() if k in ("layerType", "runtimePrecision")}
            for row in rows]
    found[name] = Counter(
        row["runtimePrecision"] for row in rows if row["layerType"] == "Convolution")
    print(name, dict(found[name]))
END
