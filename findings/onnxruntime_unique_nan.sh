#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: `Unique` of a tensor whose first number is NaN returns NaN alone, and loses all other numbers.  If
# NaN comes later, it is lost itself.  onnx's reference evaluator, as numpy, returns the numbers and one NaN.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6: [NaN, 1, 2] has the unique numbers [NaN], and [1, NaN, 2] has [1, 2].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator


def run(op, x, **attributes):
    """Return the results of a node by ONNX Runtime and by onnx's reference evaluator."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attributes)],
        "model",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    with np.errstate(invalid="ignore"):
        return session.run(None, {"x": x})[0], ReferenceEvaluator(model).run(None, {"x": x})[0]


first, _ = run("Unique", np.array([np.nan, 1, 2], np.float32))
second, usual = run("Unique", np.array([1, np.nan, 2], np.float32))
print(first, second, usual)
assert (str(first), str(second), str(usual)) == ("[nan]", "[1. 2.]", "[ 1.  2. nan]")
EOF
echo "as described"
