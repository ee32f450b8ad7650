#!/usr/bin/env bash
# mlx 0.32.4 (Linux, CPU): the mean of 1,000 numbers 100 in float16 is infinite, because their sum, 100,000, is made in float16
# and then divided.  NumPy, whose mean has a float32 sum, returns 100.  `softmax` of 70,000 equal numbers returns 0.000488 each,
# which add up to 34, because its sum in float16 stays at 2,048; `precise=True` returns 0.0000143.  The mean in bfloat16 is right.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q 'mlx[cpu]==0.32.4' numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
x = np.full(1000, 100, np.float16)
equal = mx.zeros((70_000,), dtype=mx.float16)
seen = {
    "mean": mx.mean(mx.array(x)).item(), "numpy": x.mean().item(),
    "bfloat16": mx.mean(mx.array(x).astype(mx.bfloat16)).item(),
    "softmax": mx.softmax(equal)[0].item(), "precise": mx.softmax(equal, precise=True)[0].item(),
}
print(seen)
assert seen["mean"] == np.inf and seen["numpy"] == 100 and seen["bfloat16"] == 100
assert seen["softmax"] * 70_000 > 34 and abs(seen["precise"] * 70_000 - 1) < 0.01
EOF
echo "as described"
