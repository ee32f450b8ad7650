#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: eight ops that run in a model of opset 21 have no kernel in opset 22, which
# the package supports otherwise: its kernels are still those of opset 21, and the changes of opset 22
# only allow bfloat16.  So raising the opset of a float32 model, as onnx's version converter does,
# makes a valid model one that does not load.  Other ops of the same change, such as GRU or Dropout,
# run in both.
#
# Seen on 2026-11-30, x86-64, Python 3.11: for each op, opset 21 "runs", opset 22 "not implemented":
#   RandomNormal, RandomNormalLike, RandomUniform, RandomUniformLike, Multinomial, RoiAlign,
#   MaxRoiPool, GlobalLpPool; Dropout and EyeLike run in both
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

IMAGE = np.ones((1, 1, 4, 4), np.float32)
ROWS, BOX = np.ones((2, 3), np.float32), np.array([[0, 0, 2, 2]], np.float32)
LOST = {
    "RandomNormal": ({"shape": [3]}, []),
    "RandomUniform": ({"shape": [3]}, []),
    "RandomNormalLike": ({}, [ROWS]),
    "RandomUniformLike": ({}, [ROWS]),
    "Multinomial": ({"sample_size": 4}, [ROWS]),
    "GlobalLpPool": ({}, [IMAGE]),
    "MaxRoiPool": ({"pooled_shape": [1, 1]}, [IMAGE, np.array([[0, 0, 0, 2, 2]], np.float32)]),
    "RoiAlign": ({}, [IMAGE, BOX, np.zeros(1, np.int64)]),
}
KEPT = {"Dropout": ({}, [ROWS]), "EyeLike": ({}, [ROWS])}


def outcome(op, opset, attributes, arrays):
    """Return whether a model with one op runs."""
    names = [f"x{i}" for i in range(len(arrays))]
    node = onnx.helper.make_node(op, names, ["y"], **attributes)
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in zip(names, arrays)
    ]
    element = onnx.TensorProto.INT32 if op == "Multinomial" else onnx.TensorProto.FLOAT
    axes = [None] * (arrays[0].ndim if arrays else 1)
    output = onnx.helper.make_tensor_value_info("y", element, axes)
    graph = onnx.helper.make_graph([node], "one", inputs, [output])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10
    )
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return "not implemented"
    session.run(None, dict(zip(names, arrays)))
    return "runs"


for op, (attributes, arrays) in {**LOST, **KEPT}.items():
    found = [outcome(op, opset, attributes, arrays) for opset in (21, 22)]
    print(op, found)
    assert found == ["runs", "not implemented" if op in LOST else "runs"], op
print("as described")
END
