#!/usr/bin/env bash
# onnx 1.23.2, ReferenceEvaluator: a `Loop` whose optional condition is omitted runs no iteration.
# The operator's definition says that an omitted condition is true, so that only the trip count ends
# such a loop (`for` in the definition's table of forms).  The initial values are returned without
# an error; with the condition given as true, or with ONNX Runtime, the results are right.
#
# Seen on 2026-11-30, x86-64, Python 3.11, for three doublings of [1, 1]:
#   reference, condition omitted: [1, 1]; condition true: [8, 8]; onnxruntime 1.32.0: [8, 8] twice
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
doublings (int64 count, bool go, float[2] x) => (float[2] y) {
    y = Loop <
        body = step (int64 i, bool c, float[2] s) => (bool d, float[2] n) {
            d = Identity (c)
            n = Add (s, s)
        }
    > (count, CONDITION, x)
}
"""
FEEDS = {"count": np.array(3), "go": np.array(True), "x": np.ones(2, np.float32)}


def results(condition):
    """Return the results of the reference and of the runtime."""
    model = onnx.parser.parse_model(MODEL.replace("CONDITION", condition))
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return ReferenceEvaluator(model).run(None, FEEDS)[0], session.run(None, FEEDS)[0]


for condition, expected in (("", ([1, 1], [8, 8])), ("go", ([8, 8], [8, 8]))):
    found = results(condition)
    print(f"condition {condition or 'omitted'}: reference {found[0]}, runtime {found[1]}")
    np.testing.assert_array_equal(found, expected)
print("as described")
EOF
