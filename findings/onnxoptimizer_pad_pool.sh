#!/usr/bin/env bash
# onnxoptimizer 0.4.2: `optimize` moves a Pad with zeros into the attribute `pads` of the MaxPool after it.  A MaxPool pads with
# -infinity, so that the maxima of negative numbers at the border change from 0 to the numbers.  The pass has to leave Pad
# alone, or to demand that it pads with the lowest number.
#
# Seen on 2026-12-01, x86-64, Python 3.11, onnxruntime 1.32.0, numpy 2.4.6: of -1, -2, -3, -4, padded by a zero on both sides,
# the maxima of two are 0, -1, -2, -3, 0, and -1, -1, -2, -3, -4 after `optimize`; onnxsim 0.8.1 and onnxslim 0.1.98 keep them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxoptimizer==0.4.2 onnxsim==0.8.1 onnxslim==0.1.98 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
import onnx.parser
import onnxoptimizer
import onnxruntime
import onnxsim
import onnxslim

model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
g (float[1, 1, 4] x) => (float[1, 1, 5] y) <int64[6] pads = {0, 0, 1, 0, 0, 1}> {
    z = Pad(x, pads)
    y = MaxPool<kernel_shape = [2]>(z)
}""")
onnx.checker.check_model(model, full_check=True)
x = -1 - np.arange(4, dtype=np.float32).reshape(1, 1, 4)
tools = {
    "none": lambda model: model, "onnxoptimizer": onnxoptimizer.optimize,
    "onnxsim": lambda model: onnxsim.simplify(model)[0], "onnxslim": onnxslim.slim,
}
seen = {}
for name, tool in tools.items():
    session = onnxruntime.InferenceSession(tool(model).SerializeToString(), providers=["CPUExecutionProvider"])
    seen[name] = session.run(None, {"x": x})[0].ravel().tolist()
print(seen)
assert seen == {**dict.fromkeys(tools, [0, -1, -2, -3, 0]), "onnxoptimizer": [-1, -1, -2, -3, -4]}
EOF
echo "as described"
