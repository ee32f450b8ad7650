#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: `ReduceSum`, `ReduceProd`, `ReduceL1`, `ReduceSumSquare`, `ReduceMean`, `Einsum`
# and `Pow` of int64 compute in float64, so that results beyond 2**53 lose their low bits without a
# word; even a sum over an axis of size 1 changes its only number.  Sums beyond 64 bits are the largest
# integer, whereas numpy's wrap around.  `CumSum`, `MatMul`, `Add` and `ReduceMax` are exact.  Hashes and
# identifiers of 64 bits are such numbers.
#
# Seen on 2026-11-29, x86-64, Python 3.11, for [2**62 + 1, 2, 4, 8]: the sum is 4611686018427387904, the
# right one, and that of CumSum and MatMul, 4611686018427387919; 3 ** 39 is 4052555153018976256 instead of
# 4052555153018976267.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper


def run(op, *arrays, axis=None, **attributes):
    """Run a model of one operator of opset 18; an axis is a further input."""
    arrays = [np.array(x, np.int64) for x in (*arrays, *([] if axis is None else [[axis]]))]
    names = [f"x{i}" for i in range(len(arrays))]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.INT64, x.shape)
        for name, x in zip(names, arrays)
    ]
    result = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    node = helper.make_node(op, names, ["y"], **attributes)
    graph = helper.make_graph([node], "model", infos, [result])
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, arrays)))[0].ravel().tolist()


big = 2**62 + 1
x, total = [big, 2, 4, 8], big + 14
rounded = 2**62
found = {
    "ReduceSum": run("ReduceSum", x, axis=0),
    "ReduceSum, axis of size 1": run("ReduceSum", [x], axis=0),
    "ReduceSum beyond 64 bits": run("ReduceSum", [2**63 - 1] * 4, axis=0),
    "ReduceProd": run("ReduceProd", [big, 1], axis=0),
    "ReduceL1": run("ReduceL1", [-big, 2], axis=0),
    "ReduceMean": run("ReduceMean", [big], axis=0),
    "Einsum": run("Einsum", x, equation="i->"),
    "Pow": run("Pow", [3], [39]),
    "CumSum": run("CumSum", x, axis=0)[-1:],
    "MatMul": run("MatMul", [x], [[1]] * 4),
    "ReduceMax": run("ReduceMax", x, axis=0),
}
for name, values in found.items():
    print(f"{name}: {values}")
assert found == {
    "ReduceSum": [rounded], "ReduceSum, axis of size 1": [rounded, 2, 4, 8],
    "ReduceSum beyond 64 bits": [2**63 - 1], "ReduceProd": [rounded], "ReduceL1": [rounded],
    "ReduceMean": [rounded], "Einsum": [rounded], "Pow": [4052555153018976256],
    "CumSum": [total], "MatMul": [total], "ReduceMax": [big],
}
print("as described")
EOF
