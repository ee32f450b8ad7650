#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: `Sign` of NaN is NaN in float32 and float64, and 0 in float16.  A model that
# was converted to float16 no longer passes NaN on, so that a check for NaN behind it finds none.
#
# Seen on 2026-11-29, x86-64, Python 3.11, for [nan, -2, 0]: [nan, -1, 0] in float32 and float64,
# [0, -1, 0] in float16.
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


for dtype, expected in ((np.float32, np.nan), (np.float64, np.nan), (np.float16, 0)):
    found = run("Sign", np.array([np.nan, -2, 0], dtype))
    print(dtype.__name__, found)
    np.testing.assert_array_equal(found, np.array([expected, -1, 0], dtype))
print("as described")
EOF
