#!/usr/bin/env bash
# mlx 0.32.4 (Linux, CPU): exp of -88 is 0, although float32 has numbers down to 1.4e-45 and mlx computes with them (1e-45 * 1
# is kept): results below 1.2e-38 are cut.  erf of 1e-7 is 0 and not 1.13e-7; sinh, tanh, expm1 and log1p of 1e-7 are right to
# the last digit.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q 'mlx[cpu]==0.32.4' numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import math

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
low = np.array([-87, -88, -100], np.float32)
print("exp", np.array(mx.exp(mx.array(low))), "numpy", np.exp(low), "erf", mx.erf(mx.array(1e-7)).item(), math.erf(1e-7))
assert np.array(mx.exp(mx.array(low)))[1:].tolist() == [0, 0] and np.exp(low).all()
assert (mx.array(1e-45) * mx.array(1.0)).item() > 0
assert mx.erf(mx.array(1e-7)).item() == 0 and math.erf(1e-7) > 1e-7
for name in ("sinh", "tanh", "expm1", "log1p"):
    assert abs(getattr(mx, name)(mx.array(1e-7)).item() / 1e-7 - 1) < 1e-6
EOF
echo "as described"
