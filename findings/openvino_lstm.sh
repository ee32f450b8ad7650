#!/usr/bin/env bash
# OpenVINO 2026.2.0, CPU: the peephole weights (the input P) and the attribute `input_forget` of ONNX's LSTM
# are ignored without a message: the model loads, and gives the numbers of an LSTM without them.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: the same results with and without peepholes and
# input_forget; other activations change them
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


def layer(peepholes=False, **attributes):
    rng = np.random.default_rng(0)
    shapes = (3, 2, 3), (1, 8, 3), (1, 8, 2), (1, 16)
    arrays = [rng.standard_normal(shape).astype(F) for shape in shapes]
    if peepholes:
        arrays += [None, None, None, np.ones((1, 6), F)]
    known = (1, 2, 3, 7) if peepholes else (1, 2, 3)
    return run("LSTM", arrays, known, hidden_size=2, **attributes)[0].ravel()


plain = layer()
print(plain[:3], layer(peepholes=True)[:3], layer(input_forget=1)[:3])
assert np.array_equal(plain, layer(peepholes=True))
assert np.array_equal(plain, layer(input_forget=1))
assert not np.allclose(plain, layer(activations=["Sigmoid", "Relu", "Relu"]))
print("as described")
END
