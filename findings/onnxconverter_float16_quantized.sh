#!/usr/bin/env bash
# onnxconverter-common 1.16.0: `convert_float_to_float16` makes invalid models of quantized ones: it feeds float16 to
# QuantizeLinear and DynamicQuantizeLinear, which take float32 only, the former before opset 19.
#
# Seen on 2026-11-30, x86-64, Python 3.11, opset 13: "x typestr: T1, has unsupported type: tensor(float16)" for both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxconverter-common==1.16.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, shape_inference
from onnxconverter_common import float16


def model(nodes, result, constants=()):
    """Return a model that reads x, float32 of [1, 1, 4, 4]."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])],
        [helper.make_tensor_value_info("y", result, [1, 1, None, None])],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    checker.check_model(found, full_check=True)
    return found


constants = [("scale", np.array(0.5, np.float32)), ("zero", np.array(0, np.uint8))]
names = [name for name, _ in constants]
quantize = helper.make_node("QuantizeLinear", ["x", *names], ["q"], name="quantize")
dequantize = helper.make_node("DequantizeLinear", ["q", *names], ["y"], name="dequantize")
dynamic = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"], name="dynamic")
models = {
    "QuantizeLinear": model([quantize, dequantize], TensorProto.FLOAT, constants),
    "DynamicQuantizeLinear": model([dynamic], TensorProto.UINT8),
}
found = {}
for name, valid in models.items():
    converted = float16.convert_float_to_float16(valid, keep_io_types=True)
    try:
        checker.check_model(converted, full_check=True)
        found[name] = "valid"
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        found[name] = str(error).strip().splitlines()[0]
    print(f"{name}: {found[name]}")
assert all("unsupported type: tensor(float16)" in text for text in found.values())
print("as described")
EOF
