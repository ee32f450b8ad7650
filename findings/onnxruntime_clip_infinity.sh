#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: `Clip` without limits is not the identity, as the operator's function body
# in ONNX would be: infinities become the largest finite numbers of the type.  With one limit, the
# same happens on the side without a limit.  A causal mask of -inf that passes through a `Clip` with
# only a maximum is finite afterwards; NaN stays NaN.
#
# Seen on 2026-11-29, x86-64, Python 3.11, for [-inf, 5, inf, nan]:
#   float32: [-3.4028235e+38, 5, 3.4028235e+38, nan]
#   float64: [-1.7976931348623157e+308, 5, 1.7976931348623157e+308, nan]
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


for dtype in (np.float32, np.float64):
    found = run("Clip", np.array([-np.inf, 5, np.inf, np.nan], dtype))
    largest = np.finfo(dtype).max
    print(dtype.__name__, found)
    np.testing.assert_array_equal(found, np.array([-largest, 5, largest, np.nan], dtype))
print("as described")
EOF
