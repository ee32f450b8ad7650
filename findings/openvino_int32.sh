#!/usr/bin/env bash
# OpenVINO 2026.2.0, CPU: comparisons and divisions of int32 tensors are computed in float32, whose integers
# are exact up to 2**24 only; additions are exact.  So two different ids may be equal, and a quotient
# has seven digits.
#
# Seen on 2026-11-30, x86-64 with AVX-512, Python 3.11, numpy 2.4.6: Equal(16777217, 16777216) True, Less(16777216,
# 16777217) False, Div(2147483647, 7) 306783392 (right: 306783378), Add(16777216, 1) 16777217
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


def one(op, a, b):
    (y,) = run(op, [np.array([a], np.int32), np.array([b], np.int32)])
    return y.item()


seen = [
    one("Equal", 16777217, 16777216),
    one("Less", 16777216, 16777217),
    one("Div", 2147483647, 7),
    one("Add", 16777216, 1),
]
print(seen)
assert seen == [True, False, 306783392, 16777217]
print("as described")
END
