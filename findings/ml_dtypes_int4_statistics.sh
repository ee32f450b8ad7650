#!/usr/bin/env bash
# ml_dtypes 0.5.4 with numpy: statistics of int4 (and int2, uint4, uint2) arrays are computed in int4
# and wrap.  numpy accumulates its own integers in int64, and their means in float64.  So the mean of
# an int4 array is an int4, its variance may be negative, `np.dot` wraps at 8, and `@`, which has no
# loop for int4 and takes that of int8, at 128, without a warning; `dtype=` gives the right numbers.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6, of [7, 7, 7] as int4 and as int16:
#   sum 5, 21; mean 1, 7.0; var -1, 0.0; np.dot with itself 3, 147; `@` -109, 147;
#   sum with dtype=int64 21, 21
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ml_dtypes==0.5.4 numpy==2.4.6
"$folder/venv/bin/python" - << 'END'
import ml_dtypes
import numpy as np

small, wide = np.array([7, 7, 7], ml_dtypes.int4), np.array([7, 7, 7], np.int16)
seen = {
    "sum": (int(small.sum()), int(wide.sum())),
    "mean": (float(small.mean()), float(wide.mean())),
    "var": (float(small.var()), float(wide.var())),
    "dot": (int(np.dot(small, small)), int(np.dot(wide, wide))),
    "@": (int(small @ small), int(wide @ wide)),
    "sum in int64": (int(small.sum(dtype=np.int64)), int(wide.sum(dtype=np.int64))),
}
print(seen, small.mean().dtype)
assert seen == {
    "sum": (5, 21), "mean": (1, 7), "var": (-1, 0), "dot": (3, 147), "@": (-109, 147),
    "sum in int64": (21, 21),
}
assert small.mean().dtype == ml_dtypes.int4
print("as described")
END
