#!/usr/bin/env bash
# gguf 0.19.0: `quants.quantize` stores the scale of a block of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 in float16 without a check:
# a weight whose scale is greater than 65504 makes infinity of itself, and NaN of zeros and of other numbers of its block.
# MXFP4 and BF16 keep it.
#
# Seen on 2026-11-30, x86-64, Python 3.11: of one 1e7 and 31 ones, 31 are NaN in all five types, none in MXFP4 and BF16.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import numpy as np
from gguf import GGMLQuantizationType, quants

block = np.ones((1, 32), np.float32)
block[0, 5] = 1e7
found = {}
for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "BF16"):
    kind = GGMLQuantizationType[name]
    back = quants.dequantize(quants.quantize(block, kind), kind)
    found[name] = int(np.isnan(back).sum())
    print(f"{name}: {back[0, 5]} for 1e7, {found[name]} NaN")
assert found == dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"), 31) | {"MXFP4": 0, "BF16": 0}
print("as described")
EOF
