#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator computes valid pooling nodes differently from the operators'
# text and from ONNX Runtime 1.32.0.  GlobalMaxPool of one spatial axis reduces the channels and loses
# their axis; the indices of MaxPool's second result count from the channel and not from the tensor;
# MaxPool with SAME_LOWER drops the last window; AveragePool leaves NaN out of the mean.  The same
# nodes with two spatial axes, SAME_UPPER, and GlobalAveragePool are right.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: the values of the asserts below
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


x = np.arange(12, dtype=F).reshape(1, 2, 6)
(found,), (expected,) = both("GlobalMaxPool", 22, [x])
print("GlobalMaxPool", found.shape, found.ravel(), expected.shape, expected.ravel())
assert (found.shape, found.ravel().tolist()) == ((1, 1), [11])
assert (expected.shape, expected.ravel().tolist()) == ((1, 2, 1), [5, 11])
(found,), (expected,) = both("GlobalMaxPool", 22, [x.reshape(1, 2, 2, 3)])
assert np.array_equal(found, expected)

found, expected = (y[1].ravel().tolist() for y in both("MaxPool", 22, [x], 2, kernel_shape=[2]))
print("indices", found, expected)
assert found == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]
assert expected == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]

row = np.arange(7, dtype=F).reshape(1, 1, 7)
pairs = {"kernel_shape": [2], "strides": [2]}
(found,), (expected,) = both("MaxPool", 22, [row], **pairs, auto_pad="SAME_LOWER")
print("SAME_LOWER", found.ravel(), expected.ravel())
assert found.ravel().tolist() == [2, 4, 6] and expected.ravel().tolist() == [0, 2, 4, 6]
(found,), (expected,) = both("MaxPool", 22, [row], **pairs, auto_pad="SAME_UPPER")
assert np.array_equal(found, expected)

(found,), (expected,) = both("AveragePool", 22, [np.array([[[1, np.nan, 3, 4]]], F)], kernel_shape=[2])
print("NaN", found.ravel(), expected.ravel())
assert found.ravel().tolist() == [1, 3, 3.5] and np.isnan(expected.ravel()[:2]).all()
print("as described")
END
