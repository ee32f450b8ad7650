#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator applies Python's rules to a Slice with a negative step, whose start
# and end ONNX limits to the axis first: starts=-20, ends=-30, steps=-1 of four elements is the first
# element, and the evaluator returns none.  And ReduceSumSquare of int32 returns int64, unlike the
# other reductions and the type that ONNX infers.  ONNX Runtime 1.32.0 does both as the text says.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: [] instead of [0.0]; int64 instead of int32
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


bounds = [np.array([number]) for number in (-20, -30, 0, -1)]
(found,), (expected,) = both("Slice", 13, [np.arange(4, dtype=F), *bounds])
print(found, expected)
assert found.tolist() == [] and expected.tolist() == [0]
numbers = np.arange(4, dtype=np.int32)
(found,), (expected,) = both("ReduceSumSquare", 18, [numbers])
print(found.dtype, expected.dtype)
assert (found.dtype, expected.dtype) == (np.int64, np.int32)
(found,), (expected,) = both("ReduceSum", 13, [numbers])
assert found.dtype == expected.dtype == np.int32
print("as described")
END
