#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU with AVX-512: NaN in the input of a maximum neither reaches the result, nor is it skipped: numbers
# beside it are lost.  ReduceMax of [0, NaN, 2, ..., 7] is 6, and GlobalMaxPool of [5, 4, NaN, 3, 2, 1] is 4.  ReduceMax is NaN if
# NaN is the first number.  Hardmax of [NaN, 1, 2] has no 1 at all.  By onnx's reference evaluator, the maxima are NaN.
#
# Seen on 2026-12-01, x86-64 (AMD EPYC), Python 3.11, numpy 2.4.6.
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


eight = np.arange(8, dtype=np.float32)
eight[1] = np.nan
first = eight[::-1].copy()[6:]
pooled = np.array([5, 4, np.nan, 3, 2, 1], np.float32)
hard = np.array([np.nan, 1, 2], np.float32)
seen = {
    "ReduceMax": run("ReduceMax", eight, keepdims=0),
    "ReduceMax, NaN first": run("ReduceMax", first, keepdims=0),
    "GlobalMaxPool": run("GlobalMaxPool", pooled.reshape(1, 1, -1, 1)),
    "Hardmax": run("Hardmax", hard),
}
seen = {name: tuple(x.reshape(-1).tolist() for x in row) for name, row in seen.items()}
print(seen)
assert str(seen["ReduceMax"]) == "([6.0], [nan])"
assert str(seen["ReduceMax, NaN first"]) == "([nan], [nan])"
assert str(seen["GlobalMaxPool"]) == "([4.0], [nan])"
assert seen["Hardmax"] == ([0, 0, 0], [1, 0, 0])
EOF
echo "as described"
