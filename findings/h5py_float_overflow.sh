#!/usr/bin/env bash
# h5py 3.16.0 with HDF5 2.0: a number between the largest finite one of a data set's type and half a unit in the last
# place above it is stored as infinity, where IEEE 754 and numpy round it to the largest finite one.  This holds for
# float64 in data sets of float32 and float16, and for integers in data sets of float16.
#
# Seen on 2026-11-30, x86-64, Python 3.11: 65505, 65519.99 and the integer 65505 are stored in float16 as inf instead of
# 65504, the next float64 after the largest float32 in float32 as inf.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q h5py==3.16.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/file.h5" << 'EOF'
import sys

import h5py
import numpy as np

largest = float(np.finfo(np.float32).max)
cases = (
    ("float16", np.array([65504.0, 65505.0, 65519.99])),
    ("float16", np.array([65504, 65505], np.int64)),
    ("float32", np.array([largest, np.nextafter(largest, np.inf)])),
)
print(f"HDF5 {h5py.version.hdf5_version}")
with h5py.File(sys.argv[1], "w") as file:
    for i, (kind, array) in enumerate(cases):
        stored = file.create_dataset(str(i), array.shape, kind)
        stored[:] = array
        print(f"{array.dtype} {array.tolist()} in {kind}: {stored[:].tolist()}")
        assert np.isfinite(array.astype(kind)).all()
        assert np.isinf(stored[:]).tolist() == [False] + [True] * (len(array) - 1)
print("as described")
EOF
