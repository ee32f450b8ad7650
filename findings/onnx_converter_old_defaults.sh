#!/usr/bin/env bash
# onnx 1.23.2: `version_converter.convert_version` changes what some valid models compute, as operators changed their meaning
# between opsets, and the converter keeps the node as it is.  From 10 to 11, Resize got `coordinate_transformation_mode`, whose
# default is half_pixel; before, coordinates were those of "asymmetric", and linear resizing (also of Upsample-9) samples other
# places.  From 12 to 13, Hardmax takes one axis instead of all from it on; Softmax and LogSoftmax are converted right.
#
# Seen on 2026-12-01, x86-64, Python 3.11, onnxruntime 1.32.0, numpy 2.4.6: [0, 4] by 2 is [0, 2, 4, 4] before and [0, 1, 3, 4]
# after; [[5, 1], [2, 9]] has one 1 before and two after.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
import onnxruntime
from onnx import TensorProto, checker, helper, numpy_helper, version_converter


def computed(name, versions, x, *constants, **attributes):
    """Compute one node before and after the conversion."""
    names = [f"constant{i}" for i in range(len(constants))]
    graph = helper.make_graph(
        [helper.make_node(name, ["x", *names], ["y"], **attributes)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * x.ndim)],
        [numpy_helper.from_array(np.float32(value), n) for value, n in zip(constants, names)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", versions[0])], ir_version=10)
    outputs = []
    for tried in (model, version_converter.convert_version(model, versions[1])):
        checker.check_model(tried, full_check=True)
        session = onnxruntime.InferenceSession(tried.SerializeToString())
        outputs.append(session.run(None, {"x": x})[0].ravel().tolist())
    print(name, versions, *outputs)
    return outputs


line, square = np.float32([[[[0, 4]]]]), np.float32([[[5, 1], [2, 9]]])
for name, versions in (("Resize", (10, 11)), ("Upsample", (9, 11))):
    old, new = computed(name, versions, line, [1, 1, 1, 2], mode="linear")
    assert (old, new) == ([0, 2, 4, 4], [0, 1, 3, 4])
assert computed("Hardmax", (12, 13), square, axis=1) == [[0, 0, 0, 1], [1, 0, 0, 1]]
for name in ("Softmax", "LogSoftmax"):
    np.testing.assert_allclose(*computed(name, (12, 13), square, axis=1), rtol=1e-6)
EOF
echo "as described"
