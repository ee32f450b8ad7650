#!/usr/bin/env bash
# onnxsim 0.8.1: `simplify` merges two multiplications by constants into one by their product, which may be 0, infinite or
# finite where the partial results were not: x * 1e-30 * 1e-30 becomes x * 0, and x * 1e38 * 1e-38 loses its infinity.
# onnxoptimizer 0.4.2, onnxslim 0.1.98 and ONNX Runtime's own optimization keep the two.
#
# Seen on 2026-12-01, x86-64, Python 3.11, onnxruntime 1.32.0, numpy 2.4.6, float32: 1e38 * 1e-30 * 1e-30 is 1e-22, and 0
# simplified; 1e-38 * 1e30 * 1e30 is 1e22, and infinite; 1e10 * 1e38 * 1e-38 is infinite, and 1e10.
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

tools = {
    "none": lambda model: model, "onnxoptimizer": onnxoptimizer.optimize,
    "onnxslim": onnxslim.slim, "onnxsim": lambda model: onnxsim.simplify(model)[0],
}
for x, a, b, right, simplified in (
    (1e38, 1e-30, 1e-30, 1e-22, 0), (1e-38, 1e30, 1e30, 1e22, np.inf), (1e10, 1e38, 1e-38, np.inf, 1e10)
):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y)'
        f" <float[1] a = {{{a}}}, float[1] b = {{{b}}}> {{ z = Mul(x, a)  y = Mul(z, b) }}"
    )
    onnx.checker.check_model(model, full_check=True)
    seen = {}
    for name, tool in tools.items():
        session = onnxruntime.InferenceSession(tool(model).SerializeToString(), providers=["CPUExecutionProvider"])
        seen[name] = session.run(None, {"x": np.array([x], np.float32)})[0].item()
    print(x, a, b, seen)
    np.testing.assert_allclose([*seen.values()], [right, right, right, simplified], rtol=1e-6)
EOF
echo "as described"
