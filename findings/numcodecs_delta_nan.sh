#!/usr/bin/env bash
# numcodecs 0.16.6: `Delta` of floating-point numbers decodes by sums, so that one NaN or infinity makes NaN of all later
# numbers of the chunk, and a large number takes the low digits of those after it.  The documentation warns of overflow
# of integers only.
#
# Seen on 2026-11-30, x86-64, Python 3.11, float32: [1, nan, 2, 3] -> [1, nan, nan, nan]; [1, inf, 2] -> [1, inf, nan];
# [1e8, 1, 0.001] -> [1e8, 0, -0.999].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numcodecs==0.16.6 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import numpy as np
from numcodecs import Delta

nan, inf = np.nan, np.inf
cases = (
    ([1, nan, 2, 3], [1, nan, nan, nan]),
    ([1, inf, 2], [1, inf, nan]),
    ([1e8, 1, 0.001], [1e8, 0, np.float32(0.001) - np.float32(1)]),
)
codec = Delta(dtype="f4")
for given, wanted in cases:
    found = codec.decode(codec.encode(np.array(given, "f4")))
    print(f"{given} -> {found.tolist()}")
    assert np.array_equal(found, np.array(wanted, "f4"), equal_nan=True)
print("as described")
EOF
