#!/usr/bin/env bash
# OpenVINO 2026.2.0, CPU: float64 tensors are computed in float32, and infinities become the largest finite
# float32 on the way in.  So inf - inf is 0, 0 * inf is 0, and a mask of -inf no longer is one.  Infinities
# of float32 tensors stay.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: for float64 inf - inf 0.0, 0 * inf 0.0, 1 / 3 0.3333333432674408;
# for float32 nan, nan
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


def one(op, a, b, dtype):
    (y,) = run(op, [np.array([a], dtype), np.array([b], dtype)])
    return y.item()


inf = float("inf")
double = [one("Sub", inf, inf, np.float64), one("Mul", 0, inf, np.float64), one("Div", 1, 3, np.float64)]
single = [one("Sub", inf, inf, F), one("Mul", 0, inf, F)]
print(double, single)
assert double == [0.0, 0.0, 0.3333333432674408]
assert np.isnan(single).all()
print("as described")
END
