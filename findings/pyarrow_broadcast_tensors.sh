#!/usr/bin/env bash
# pyarrow 26.0.1: `FixedShapeTensorArray.from_numpy_ndarray` takes the order of the axes of each tensor from the strides, also
# if one is 0: it stores a tensor whose rows are broadcast with the axes exchanged, but its numbers in the order of rows, so
# that they come back in other places.  `Tensor.from_numpy` keeps them.
#
# Seen on 2026-11-30, x86-64, Python 3.11: two equal rows [0, 1, 2] come back as [0, 2, 1] and [1, 0, 2].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
import pyarrow as pa

array = np.broadcast_to(np.arange(6.0).reshape(2, 1, 3), (2, 2, 3))
found = pa.FixedShapeTensorArray.from_numpy_ndarray(array)
back = found.to_numpy_ndarray()
print(f"{array.tolist()} -> {back.tolist()}, {found.type}")
assert back[0].tolist() == [[0.0, 2.0, 1.0], [1.0, 0.0, 2.0]]
for same in (array.copy(), np.broadcast_to(array[:, :, :1], (2, 2, 3))):
    assert np.array_equal(
        pa.FixedShapeTensorArray.from_numpy_ndarray(same).to_numpy_ndarray(), same
    )
assert np.array_equal(pa.Tensor.from_numpy(array).to_numpy(), array)
print("as described")
EOF
