#!/usr/bin/env bash
# onnxoptimizer 0.4.2: `optimize` drops the first of two Reshape nodes without regard to zeros in the shape of the second, which
# copy a dimension of its input: they then copy one of another tensor.  The result has another shape, or the model fails
# when it runs.  onnxsim 0.8.1 and onnxslim 0.1.98 replace the zeros first.
#
# Seen on 2026-12-01, x86-64, Python 3.11, onnxruntime 1.32.0, numpy 2.4.6: 2 x 3 numbers, reshaped to 3, 2 and then to 0, -1, have
# the shape 3, 2, and 2, 3 after `optimize`.  2 x 6 numbers, reshaped to 4, 1, 3 and then to 0, 3, 1, fail after it: "The input
# tensor cannot be reshaped to the requested shape."
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

onnxruntime.set_default_logger_severity(4)
TOOLS = {
    "none": lambda model: model, "onnxoptimizer": onnxoptimizer.optimize,
    "onnxsim": lambda model: onnxsim.simplify(model)[0], "onnxslim": onnxslim.slim,
}


def shapes(rows, columns, first, second):
    """Reshape a matrix twice; return the shape of the result by tool, or the error."""
    ranks = f"int64[{len(first)}] s = {{{str(first)[1:-1]}}}, int64[{len(second)}] t = {{{str(second)[1:-1]}}}"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[A, B] x) => (float[{", ".join("CDE"[: len(second)])}] y)'
    model = onnx.parser.parse_model(text + f" <{ranks}> {{ z = Reshape(x, s)  y = Reshape(z, t) }}")
    onnx.checker.check_model(model, full_check=True)
    x, seen = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns), {}
    for name, tool in TOOLS.items():
        try:
            session = onnxruntime.InferenceSession(tool(model).SerializeToString(), providers=["CPUExecutionProvider"])
            seen[name] = session.run(None, {"x": x})[0].shape
        except Exception as error:
            seen[name] = "cannot be reshaped" in str(error)
    return seen


print(shorter := shapes(2, 3, [3, 2], [0, -1]))
assert shorter == {**dict.fromkeys(TOOLS, (3, 2)), "onnxoptimizer": (2, 3)}
print(longer := shapes(2, 6, [4, 1, 3], [0, 3, 1]))
assert longer == {**dict.fromkeys(TOOLS, (4, 3, 1)), "onnxoptimizer": True}
EOF
echo "as described"
