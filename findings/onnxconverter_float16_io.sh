#!/usr/bin/env bash
# onnxconverter-common 1.16.0: `convert_float_to_float16` with `keep_io_types=True` gives an invalid model if two nodes
# without names, which ONNX does not require, read an input: the conversion of the input is added twice, with the same name
# of its result.  If a node of an operator that stays in float32, such as Max, computes an output of the model, the output
# becomes float16, although its type is to be kept.
#
# Seen on 2026-11-30, x86-64, Python 3.11: for relu(x) + abs(x), "Graph must be in single static assignment (SSA) form,
# however 'x_cast_to_' has been used as output names multiple times"; for max(x, y) of float32, float16.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxconverter-common==1.16.0 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, checker, helper
from onnxconverter_common import float16


def model(nodes, inputs):
    """Return a model of float32 tensors of three elements."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in (*inputs, "z")]
    graph = helper.make_graph(nodes, "model", infos[:-1], infos[-1:])
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    checker.check_model(found, full_check=True)
    return found


two_readers = model(
    [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Abs", ["x"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["z"]),
    ],
    ["x"],
)
found = float16.convert_float_to_float16(two_readers, keep_io_types=True)
try:
    checker.check_model(found)
    raise AssertionError("the model is valid")
except checker.ValidationError as error:
    print(str(error).splitlines()[0])
    assert "single static assignment" in str(error)

largest = model([helper.make_node("Max", ["x", "y"], ["z"])], ["x", "y"])
found = float16.convert_float_to_float16(largest, keep_io_types=True)
declared = TensorProto.DataType.Name(found.graph.output[0].type.tensor_type.elem_type)
session = onnxruntime.InferenceSession(
    found.SerializeToString(), providers=["CPUExecutionProvider"]
)
(z,) = session.run(None, {name: np.ones(3, np.float32) for name in ("x", "y")})
print(f"Max: output declared as {declared}, computed as {z.dtype}")
assert z.dtype == np.float16
print("as described")
EOF
