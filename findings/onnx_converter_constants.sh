#!/usr/bin/env bash
# onnx 1.23.2: `version_converter.convert_version` from opset 10 to 11 turns the attributes `min` and `max`
# of Clip, and `value` of Pad, into constants of float32, whatever type the node has.  A valid model
# with float16 or float64 becomes one that the checker refuses.
#
# Seen on 2026-11-30, x86-64, Python 3.11: float32 valid after the conversion; float16, float64
# "has inconsistent type tensor(float)"
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'END'
import onnx
from onnx import TensorProto, checker, helper, version_converter

NODES = {
    "Clip": {"min": -1.0, "max": 2.0},
    "Pad": {"pads": [1, 0], "value": 1.0},
}


def outcome(op, element):
    """Return what the checker says of a model with one node that was converted to opset 11."""
    types = [helper.make_tensor_value_info(name, element, shape) for name, shape in
             (("x", [3]), ("y", [4 if op == "Pad" else 3]))]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **NODES[op])], "g", types[:1], types[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=5)
    checker.check_model(model, full_check=True)
    converted = version_converter.convert_version(model, 11)
    try:
        checker.check_model(converted, full_check=True)
    except onnx.shape_inference.InferenceError as error:
        assert "inconsistent type tensor(float)" in str(error)
        return "refused"
    return "valid"


seen = {
    (op, name): outcome(op, getattr(TensorProto, name))
    for op in NODES
    for name in ("FLOAT", "FLOAT16", "DOUBLE")
}
print(seen)
assert all(text == ("valid" if name == "FLOAT" else "refused") for (_, name), text in seen.items())
print("as described")
END
