#!/usr/bin/env bash
# numcodecs 0.16.6: `Quantize` multiplies numbers by a power of two in their own type before it rounds them, so that
# large finite ones become infinity.  With two digits, these are all float16 numbers from 512 on, which lie apart by
# 0.5 or more and would need no rounding.
#
# Seen on 2026-11-30, x86-64, Python 3.11: float16 511 is kept, 512 and 1000.5 become inf; float32 3e38 becomes inf.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numcodecs==0.16.6 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import numpy as np
from numcodecs import Quantize

for kind, numbers, infinite in (
    ("f2", [511, 512, 1000.5], [False, True, True]),
    ("f4", [1e30, 3e38], [False, True]),
):
    codec = Quantize(digits=2, dtype=kind)
    array = np.array(numbers, kind)
    found = codec.decode(codec.encode(array))
    print(f"{array.dtype}: {array.tolist()} -> {found.tolist()}")
    assert np.isfinite(array).all()
    assert np.isinf(found).tolist() == infinite
print("as described")
EOF
