#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: a row with +infinity has another `LogSoftmax` in float64 than in float32.
# In float32 and float16 all elements are NaN; in float64 only the infinite one is, and the others are
# -inf, as a limit would be.  `Softmax` gives NaN for all elements in each of the types.
#
# Seen on 2026-11-29, x86-64, Python 3.11, for [inf, 1, -inf]: [nan, nan, nan] in float16 and float32,
# [nan, -inf, -inf] in float64.
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


def run(op, x, opset=13):
    """Run a model of one operator on one array."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"])],
        "model",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, x.shape)],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=providers)
    return session.run(None, {"x": x})[0]


row = [[np.inf, 1, -np.inf]]
for dtype, rest in ((np.float16, np.nan), (np.float32, np.nan), (np.float64, -np.inf)):
    found = run("LogSoftmax", np.array(row, dtype))
    print(dtype.__name__, found)
    np.testing.assert_array_equal(found, np.array([[np.nan, rest, rest]], dtype))
    assert np.isnan(run("Softmax", np.array(row, dtype))).all()
print("as described")
EOF
