#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: `MeanVarianceNormalization` of a constant channel is NaN, such as that of a black image.  The function
# body by which ONNX defines the operator adds 1e-9 to the deviation, so that the result is 0, as by onnx's reference evaluator.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6: NaN for channels of 0 and of 0.1; equal results for [0, 1, 2, 3].
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


for number in (0, 0.1):
    found, usual = run("MeanVarianceNormalization", np.full((1, 1, 2, 2), number, np.float32))
    print(number, found.reshape(-1), usual.reshape(-1))
    assert np.isnan(found).all() and (usual == 0).all()
found, usual = run("MeanVarianceNormalization", np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2))
assert np.allclose(found, usual)
EOF
echo "as described"
