#!/usr/bin/env bash
# torch 2.13.0, CPU: `torch.compile` computes `x * 0`, with the integer 0, as 0 for every x: NaN and infinity become 0, and 0
# loses its sign.  IEEE 754 and PyTorch without the compiler have NaN for both, and the compiler too if the factor is 0.0.  A
# diverged loss that is multiplied by such a factor looks right.
#
# Seen on 2026-12-01, x86-64, Python 3.11, for NaN, infinity, -1 and 2: NaN, NaN, -0, 0 without the compiler and times 0.0; 0,
# 0, 0, 0 with it, and 1 divided by these is inf, inf, inf, inf instead of NaN, NaN, -inf, inf.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" TORCHINDUCTOR_CACHE_DIR="$folder/cache" CUDA_VISIBLE_DEVICES=
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6 setuptools==81.0.0
cat > "$folder/program.py" << 'EOF'
import numpy as np
import torch

NAN, INF = float("nan"), float("inf")
x = torch.tensor([NAN, INF, -1.0, 2.0])
SEEN = {
    "times 0": (lambda x: x * 0, [0, 0, 0, 0]),
    "times 0.0": (lambda x: x * 0.0, [NAN, NAN, -0.0, 0]),
    "one by times 0": (lambda x: 1 / (x * 0), [INF] * 4),
}
for name, (function, compiled) in SEEN.items():
    right, found = function(x), torch.compile(function)(x)
    print(f"{name}: {right.tolist()}, compiled {found.tolist()}")
    np.testing.assert_array_equal(found, compiled)
    np.testing.assert_array_equal(right, [NAN, NAN, -INF, INF] if "one" in name else [NAN, NAN, 0, 0])
EOF
"$folder/venv/bin/python" -W ignore "$folder/program.py"
echo "as described"
