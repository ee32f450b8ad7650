#!/usr/bin/env bash
# onnx 1.23.2: valid nodes that the checker accepts and ONNX Runtime 1.32.0 computes, and for which the
# reference evaluator raises errors of its own: ConvTranspose with groups, GatherElements whose indices
# are fewer than the elements along another axis, Pad that crops by negative numbers, OneHot whose
# depth is a tensor of one element, and DequantizeLinear of the opsets 10 to 18 (QuantizeLinear of the
# same opsets works).
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: ValueError, ValueError, ValueError, TypeError,
# RuntimeError
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


levels = np.array([1, 2], np.int8)
seen = [
    both("ConvTranspose", 22, [np.ones((1, 4, 6), F), np.ones((4, 3, 3), F)], group=2)[0],
    both("GatherElements", 13, [np.ones((3, 4), F), np.array([[0, 3], [2, 1]])], axis=1)[0],
    both("Pad", 21, [np.ones((2, 4), F), np.array([0, -1, 0, -1])])[0],
    both("OneHot", 11, [np.array([0, 2]), np.array([3]), F([0, 1])])[0],
    both("DequantizeLinear", 13, [levels, np.array(0.5, F), np.array(0, np.int8)])[0],
]
print(seen)
assert seen == ["ValueError"] * 3 + ["TypeError", "RuntimeError"]
(found,), (expected,) = both("QuantizeLinear", 13, [F([1, 2]), np.array(0.5, F), np.array(0, np.int8)])
assert np.array_equal(found, expected)
print("as described")
END
