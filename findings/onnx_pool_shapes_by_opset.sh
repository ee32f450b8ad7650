#!/usr/bin/env bash
# onnx 1.23.2 and onnxruntime 1.32.0: for a pooling window with `ceil_mode` that would begin in the padding
# on the right, onnx's shape inference counts the window in opsets before 22 and omits it from 22 on.
# ONNX Runtime omits it in all.  So a model of opset 10 to 21 whose output is declared as onnx infers
# it returns fewer elements than it declares, and version_converter to opset 22 makes it one
# that the checker refuses.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: 7 elements, window 2, stride 3, padding 1 and 1: 4 inferred
# in opsets 10, 19, 21, and 3 in 22; 3 returned in all
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'END'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

ATTRIBUTES = {"kernel_shape": [2], "strides": [3], "pads": [1, 1], "ceil_mode": 1}


def sizes(op, opset):
    """Return the inferred and the returned size of the last axis."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 7])
    node = helper.make_node(op, ["x"], ["y"], **ATTRIBUTES)
    graph = helper.make_graph([node], "one", [x], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        inferred.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, {"x": np.zeros((1, 1, 7), np.float32)})
    return inferred.graph.output[0].type.tensor_type.shape.dim[2].dim_value, y.shape[2]


for op in ("MaxPool", "AveragePool"):
    seen = {opset: sizes(op, opset) for opset in (10, 19, 21, 22)}
    print(op, seen)
    assert seen == {10: (4, 3), 19: (4, 3), 21: (4, 3), 22: (3, 3)}
print("as described")
END
