#!/usr/bin/env bash
# OpenVINO 2026.2.0, CPU, float32: ops lose NaN, so that a network whose intermediate values are NaN returns
# ordinary numbers.  Clip gives its lower limit, Exp infinity, HardSigmoid 1, the maximum with a constant
# the constant, ReduceMax ignores it, and NaN is greater than any number.  Add, Sqrt and Tanh keep it.
#
# Seen on 2026-11-30, x86-64 with AVX-512, Python 3.11, numpy 2.4.6: the values of the assert below
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


nan, one = F([np.nan]), F([1])
seen = {
    "Clip": run("Clip", [nan, np.array(-2, F), np.array(2, F)], known=(1, 2)),
    "Exp": run("Exp", [nan]),
    "HardSigmoid": run("HardSigmoid", [nan]),
    "Max": run("Max", [nan, one], known=(1,)),
    "ReduceMax": run("ReduceMax", [F([np.nan, 3])]),
    "Greater": run("Greater", [nan, one], known=(1,)),
    "Add": run("Add", [nan, one]),
    "Sqrt": run("Sqrt", [nan]),
    "Tanh": run("Tanh", [nan]),
}
seen = {op: y.item() for op, (y,) in seen.items()}
print(seen)
assert np.isnan([seen.pop("Add"), seen.pop("Sqrt"), seen.pop("Tanh")]).all()
assert seen == {
    "Clip": -2, "Exp": np.inf, "HardSigmoid": 1, "Max": 1, "ReduceMax": 3, "Greater": True,
}
print("as described")
END
