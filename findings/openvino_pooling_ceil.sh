#!/usr/bin/env bash
# OpenVINO 2026.2.0, CPU: pooling with `ceil_mode` counts a window that begins in the padding on the right,
# which ONNX omits, and which has no element: its maximum is the lowest float32, and its mean 0, or
# NaN with two spatial axes.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: 7 ones, window 2, stride 3, padding 1 and 1:
# 1, 1, 1 and -3.4028235e+38 (MaxPool), 0 (AveragePool); for 5 x 5, NaN
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" HOME="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q openvino==2026.2.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'END'
import numpy as np
import onnx
import openvino
from onnx import helper, numpy_helper

F = np.float32


def run(op, arrays, known=(), results=1, opset=21, **attributes):
    """Return the results of a node on the CPU; the numbers of constant inputs are in `known`."""
    names = ["" if array is None else f"x{i}" for i, array in enumerate(arrays)]
    fed = {name: x for i, (name, x) in enumerate(zip(names, arrays)) if name and i not in known}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in fed.items()
    ]
    constants = [numpy_helper.from_array(arrays[i], names[i]) for i in known]
    outputs = [f"y{i}" for i in range(results)]
    untyped = [onnx.ValueInfoProto(name=name) for name in outputs]
    node = helper.make_node(op, names, outputs, **attributes)
    graph = helper.make_graph([node], "one", inputs, untyped, constants)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    onnx.checker.check_model(model, full_check=True)
    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU")
    found = compiled(fed)
    return [found[output] for output in compiled.outputs]


row, image = np.ones((1, 1, 7), F), np.ones((1, 1, 5, 5), F)
one = {"kernel_shape": [2], "strides": [3], "pads": [1] * 2, "ceil_mode": 1}
two = {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1] * 4, "ceil_mode": 1}
(largest,), (mean,) = run("MaxPool", [row], **one), run("AveragePool", [row], **one)
(means,) = run("AveragePool", [image], **two)
print(largest.ravel(), mean.ravel(), means.ravel())
assert largest.ravel().tolist() == [1, 1, 1, np.finfo(F).min]
assert mean.ravel().tolist() == [1, 1, 1, 0]
assert means.shape == (1, 1, 3, 3) and np.isnan(means[0, 0, 2]).all()
print("as described")
END
