#!/usr/bin/env bash
# onnxoptimizer 0.4.2, onnxsim 0.8.1 and onnxslim 0.1.98 take random nodes for functions of their inputs: two that read the same
# input become one, although ONNX gives each node without a seed a seed of its own, so that the difference of two noises is 0.
# onnxslim makes a constant of RandomNormal, which has no inputs, and every run then adds the same noise.
#
# Seen on 2026-12-01, x86-64, Python 3.11, onnx 1.23.2, onnxruntime 1.32.0, numpy 2.4.6: the difference of two nodes is 0
# everywhere by all three for RandomUniformLike and RandomNormalLike.
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

TOOLS = {
    "none": lambda model: model, "onnxoptimizer": onnxoptimizer.optimize,
    "onnxsim": lambda model: onnxsim.simplify(model)[0], "onnxslim": onnxslim.slim,
}


def runs(body, tool):
    """Run a model of 64 numbers twice."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[64] x) => (float[64] y) {body}')
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(tool(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return [session.run(None, {"x": np.full(64, 0.5, np.float32)})[0] for _ in range(2)]


for node in ("RandomUniformLike", "RandomNormalLike"):
    body = f"{{ a = {node}(x)  b = {node}(x)  y = Sub(a, b) }}"
    same = {name: not np.any(runs(body, tool)) for name, tool in TOOLS.items()}
    print(node, "equal:", same)
    assert same == {**dict.fromkeys(TOOLS, True), "none": False}
noise = "{ a = RandomNormal<shape = [64]>()  y = Add(x, a) }"
seen = {name: np.array_equal(*runs(noise, tool)) for name, tool in TOOLS.items()}
print("the noise of two runs is equal:", seen)
assert seen == {**dict.fromkeys(TOOLS, False), "onnxslim": True}
EOF
echo "as described"
