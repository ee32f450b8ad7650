#!/usr/bin/env bash
# OpenVINO 2026.2.0, CPU: QuantizeLinear rounds after it has added the zero point, where ONNX rounds the
# quotient to even first.  For an odd zero point, each quotient in the middle of two integers becomes
# the other neighbor: results of a quantized network differ by one from those of other runtimes, also
# if all scales are powers of two.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: 0.5 and 1.5 with zero point 3: 4, 4 (ONNX: 3, 5);
# with zero point 2: 2, 4
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" HOME="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q openvino==2026.2.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'END'
import numpy as np
import onnx
import openvino
from onnx import helper, numpy_helper

F = np.float32


def run(op, arrays, known=(), results=1, opset=21, **attributes):
    """Return the results of a node on the CPU; the numbers of constant inputs are in `known`."""
    names = ["" if array is None else f"x{i}" for i, array in enumerate(arrays)]
    fed = {name: x for i, (name, x) in enumerate(zip(names, arrays)) if name and i not in known}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in fed.items()
    ]
    constants = [numpy_helper.from_array(arrays[i], names[i]) for i in known]
    outputs = [f"y{i}" for i in range(results)]
    untyped = [onnx.ValueInfoProto(name=name) for name in outputs]
    node = helper.make_node(op, names, outputs, **attributes)
    graph = helper.make_graph([node], "one", inputs, untyped, constants)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    onnx.checker.check_model(model, full_check=True)
    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU")
    found = compiled(fed)
    return [found[output] for output in compiled.outputs]


seen = {}
for zero in (2, 3):
    inputs = [F([0.5, 1.5]), np.array(1, F), np.array(zero, np.int8)]
    (y,) = run("QuantizeLinear", inputs, known=(1, 2))
    seen[zero] = y.tolist()
print(seen)
assert seen == {2: [2, 4], 3: [4, 4]}
print("as described")
END
