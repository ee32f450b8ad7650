#!/usr/bin/env bash
# torch 2.13.0, CPU: `torch.compile` computes `x // y` and `torch.div(x, y, rounding_mode="floor")` as the floor of the
# rounded quotient.  PyTorch without the compiler and numpy have the floor of the exact one: 0.1 in float32 or float64
# is greater than a tenth, so that 1 // 0.1 is 9.  Bins and time steps made this way change with the compiler.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6, for 1, -1, 5, 6 and 0.3 by 0.1, in float32 and float64: 9, -10, 49 and
# 59 without the compiler and by numpy, and 10, -10, 50 and 60 with it; the same for 0.3.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" TORCHINDUCTOR_CACHE_DIR="$folder/cache" CUDA_VISIBLE_DEVICES=
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6 setuptools==81.0.0
cat > "$folder/program.py" << 'EOF'
import numpy as np
import torch


def floors(x, y):
    """Divide by the operator and by the function."""
    return x // y, torch.div(x, y, rounding_mode="floor")


for dtype in (torch.float32, torch.float64):
    x = torch.tensor([1, -1, 5, 6, 0.3], dtype=dtype)
    y = torch.full_like(x, 0.1)
    right = np.floor_divide(x.numpy(), y.numpy())
    plain, compiled = floors(x, y), torch.compile(floors)(x, y)
    print(dtype, "numpy", right, "plain", *plain, "compiled", *compiled)
    for one in plain:
        np.testing.assert_array_equal(one, right)
    for one in compiled:
        np.testing.assert_array_equal(one, np.floor(x.numpy() / y.numpy()))
        assert (one.numpy() - right).tolist() == [1, 0, 1, 1, 0]
EOF
"$folder/venv/bin/python" -W ignore "$folder/program.py"
echo "as described"
