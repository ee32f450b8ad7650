#!/usr/bin/env bash
# gguf 0.19.0: `quants.quantize` to MXFP4 makes zeros of all 32 numbers of a block that has a NaN or an infinity, so that a
# network that has diverged gets finite weights.  In Q8_0, such a block is NaN.
#
# Seen on 2026-11-30, x86-64, Python 3.11: 31 ones and one NaN, or infinity, are 32 zeros in MXFP4, and NaN in Q8_0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import numpy as np
from gguf import GGMLQuantizationType, quants

for value in (np.nan, np.inf, -np.inf, 2.0):
    block = np.ones((1, 32), np.float32)
    block[0, 5] = value
    found = {}
    for name in ("MXFP4", "Q8_0"):
        kind = GGMLQuantizationType[name]
        found[name] = quants.dequantize(quants.quantize(block, kind), kind)
        print(f"{value} beside ones, {name}: {np.unique(found[name]).tolist()}")
    if np.isfinite(value):
        assert np.array_equal(found["MXFP4"], block)
    else:
        assert not found["MXFP4"].any()
        assert np.isnan(found["Q8_0"]).all()
print("as described")
EOF
