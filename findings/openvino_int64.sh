#!/usr/bin/env bash
# OpenVINO 2026.2.0, CPU: ops on int64 tensors of an ONNX model are computed in int32, although inputs and
# results stay int64 and nothing is said.  Fed numbers lose their upper 32 bits, constants are limited
# to the range of int32.  Ids made by hashing, or times in milliseconds, of a ranking model collide.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: 2**32 + 5 == 5 is True; Add(2**32 + 5, 1) is 6;
# Equal(2**40, constant 2**41) is False and Equal(2**31 - 1, constant 2**41) True
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


def one(op, a, b, known=()):
    (y,) = run(op, [np.array([a], np.int64), np.array([b], np.int64)], known)
    return y.dtype.name, y.item()


seen = [
    one("Equal", 2**32 + 5, 5),
    one("Add", 2**32 + 5, 1),
    one("Equal", 2**31 - 1, 2**41, known=(1,)),
    one("Add", 7, 5),
]
print(seen)
assert seen == [("bool", True), ("int64", 6), ("bool", True), ("int64", 12)]
print("as described")
END
