#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: a `Scan` whose sequences have no positions raises an error when it runs.
# A `Loop` with a trip count of 0 over the same body returns the initial state and empty results.  A
# model with an open length is therefore valid for every length but 0, which an empty text or batch
# of events has.  The error names an internal offset, not the node's input.
#
# Seen on 2026-11-30, x86-64, Python 3.11:
#   Scan, 2 positions: shapes (2,), (2, 2); 0 positions: "Invalid dim0_offset of 0. Dimension 0 is 0"
#   Loop, 0 positions: shapes (2,), (0, 2)
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

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
SCAN = """
sums (float[2] x, float[length, 2] xs) => (float[2] last, float[rows, 2] all) {
    last, all = Scan <
        num_scan_inputs = 1,
        body = step (float[2] s, float[2] e) => (float[2] n, float[2] o) {
            n = Add (s, e)
            o = Identity (n)
        }
    > (x, xs)
}
"""
LOOP = """
doublings (int64 count, float[2] x) => (float[2] last, float[rows, 2] all) {
    last, all = Loop <
        body = step (int64 i, bool c, float[2] s) => (bool d, float[2] n, float[2] o) {
            d = Identity (c)
            n = Add (s, s)
            o = Identity (n)
        }
    > (count, , x)
}
"""


def shapes(text, **feeds):
    """Return the shapes of the results of a model."""
    model = onnx.parser.parse_model(HEAD + text)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [found.shape for found in session.run(None, feeds)]


x = np.ones(2, np.float32)
assert shapes(SCAN, x=x, xs=np.ones((2, 2), np.float32)) == [(2,), (2, 2)]
assert shapes(LOOP, x=x, count=np.array(0)) == [(2,), (0, 2)]
try:
    shapes(SCAN, x=x, xs=np.ones((0, 2), np.float32))
except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
    print(error)
    assert "Dimension 0 is 0" in str(error)
else:
    raise SystemExit("no error")
print("as described")
EOF
