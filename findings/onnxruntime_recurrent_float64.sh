#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: models with `LSTM` or `GRU` in float64 can be opened, since kernels for this type
# are registered, but each run fails: "LSTM operator does not support double yet".  A test that opens a
# model finds nothing wrong.  A model with `RNN` in float64, which has no such kernel, cannot be opened.
#
# Seen on 2026-11-29, x86-64, Python 3.11: float32 runs; float64 opens and raises a RuntimeException.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
import onnxruntime
from onnx import helper

onnxruntime.set_default_logger_severity(4)


def opened(op, parts, kind):
    """Open a model of one layer of 2 units on 3 positions of width 2; return it and its inputs."""
    shapes = {"x": (3, 1, 2), "w": (1, 2 * parts, 2), "r": (1, 2 * parts, 2)}
    arrays = {name: np.full(shape, 0.25, kind) for name, shape in shapes.items()}
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    infos = [helper.make_tensor_value_info(name, element, s) for name, s in shapes.items()]
    result = helper.make_tensor_value_info("y", element, None)
    node = helper.make_node(op, list(shapes), ["y"], hidden_size=2)
    graph = helper.make_graph([node], "model", infos, [result])
    opsets = [helper.make_opsetid("", 14)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]), arrays


for op, parts in (("LSTM", 4), ("GRU", 3)):
    session, arrays = opened(op, parts, np.float32)
    print(op, "float32:", session.run(None, arrays)[0].ravel())
    session, arrays = opened(op, parts, np.float64)
    try:
        session.run(None, arrays)
    except Exception as error:
        print(op, "float64:", error)
        assert f"{op} operator does not support double yet" in str(error), error
    else:
        raise AssertionError(f"{op} runs in float64")
try:
    opened("RNN", 1, np.float64)
except Exception as error:
    print("RNN float64:", error)
    assert "NOT_IMPLEMENTED" in str(error), error
else:
    raise AssertionError("a model with RNN in float64 opens")
print("as described")
EOF
