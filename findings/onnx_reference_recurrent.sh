#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator ignores the attributes `activations` (LSTM, GRU) and `clip`, and
# the input `sequence_lens`, of recurrent nodes, without a message; RNN refuses each activation but
# Tanh.  The operators' text, and ONNX Runtime 1.32.0, honor them.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: the same numbers for Tanh, Relu and HardSigmoid, with and
# without clip=0.1, and with lengths 3, 1 of 3 positions, where ONNX Runtime's differ; RNN RuntimeError
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


def layer(op, gates, lengths=None, **attributes):
    """Return the results of both for the same random weights."""
    rng = np.random.default_rng(0)
    shapes = (3, 2, 3), (1, 2 * gates, 3), (1, 2 * gates, 2), (1, 4 * gates)
    x, w, r, b = (rng.standard_normal(shape).astype(F) for shape in shapes)
    found, expected = both(op, 22, [x, w, r, b, lengths], hidden_size=2, **attributes)
    return found if isinstance(found, str) else found[0].ravel(), expected[0].ravel()


for op, gates, changed in (
    ("LSTM", 4, {"activations": ["Sigmoid", "Relu", "Relu"]}),
    ("LSTM", 4, {"activations": ["HardSigmoid", "Tanh", "Tanh"]}),
    ("LSTM", 4, {"clip": 0.1}),
    ("LSTM", 4, {"lengths": np.array([3, 1], np.int32)}),
    ("GRU", 3, {"activations": ["Sigmoid", "Relu"]}),
    ("GRU", 3, {"clip": 0.1}),
):
    (plain, right), (found, expected) = layer(op, gates), layer(op, gates, **changed)
    print(op, changed, "ignored:", np.array_equal(plain, found))
    assert np.allclose(plain, right, atol=1e-5) and np.array_equal(plain, found)
    assert not np.allclose(right, expected, atol=1e-2)
assert layer("RNN", 1, activations=["Relu"])[0] == "RuntimeError"
print("as described")
END
