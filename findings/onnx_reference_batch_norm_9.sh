#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator computes BatchNormalization of the opsets 9 to 13 with one result,
# which is inference, by means and variances into which it mixes a tenth of those of the batch (the
# `momentum` of training).  So the result for one sample depends on the others.  Opset 14 and ONNX
# Runtime 1.32.0 use the given statistics alone.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: 0 normalized with mean 1 and variance 4: -0.583 in
# opset 9, -0.5 in opset 14 and by ONNX Runtime
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
from onnx import helper
from onnx.reference import ReferenceEvaluator

F = np.float32


def both(op, opset, arrays, results=1, **attributes):
    """Return the results of a node by the reference evaluator, or its error, and by ONNX Runtime."""
    feeds = {f"x{i}": array for i, array in enumerate(arrays) if array is not None}
    names = ["" if array is None else f"x{i}" for i, array in enumerate(arrays)]
    outputs = [f"y{i}" for i in range(results)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    node = helper.make_node(op, names, outputs, **attributes)
    untyped = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "one", inputs, untyped)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, feeds)
    try:
        return ReferenceEvaluator(model).run(None, feeds), expected
    except Exception as error:
        return type(error).__name__, expected


x = np.arange(6, dtype=F).reshape(1, 1, 6)
inputs = [x, F([1]), F([0]), F([1]), F([4])]
for opset, first in ((9, -0.583), (13, -0.583), (14, -0.5)):
    (found,), (expected,) = both("BatchNormalization", opset, inputs)
    print(opset, found.ravel()[0], expected.ravel()[0])
    assert abs(found.ravel()[0] - first) < 1e-3 and abs(expected.ravel()[0] + 0.5) < 1e-3
print("as described")
END
