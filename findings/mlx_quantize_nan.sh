#!/usr/bin/env bash
# mlx 0.32.4 (Linux, CPU): `quantize` loses NaN among weights, without an error, in all modes.  "affine" makes it the smallest
# number of its group of 64; "mxfp4" and "nvfp4" make the whole group zero, and "mxfp8" makes each number of the group +896 or
# -896.  So a network whose weights are NaN predicts finite numbers after quantization.  Infinity makes a whole "affine" group
# NaN.
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
weights = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
weights[0, 3] = np.nan


def restored(array, **kind):
    """Quantize an array and return what it represents."""
    return np.array(mx.dequantize(*mx.quantize(mx.array(array), **kind), **kind).astype(mx.float32))[0]


affine = restored(weights, group_size=64, bits=4)
seen = {mode: restored(weights, mode=mode)[:16] for mode in ("mxfp4", "nvfp4", "mxfp8")}
print("affine", affine[:5], {mode: values[:5] for mode, values in seen.items()})
assert np.isfinite(affine).all() and abs(affine[3] - np.nanmin(weights)) < 0.1
assert not seen["mxfp4"].any() and not seen["nvfp4"].any() and (np.abs(seen["mxfp8"]) == 896).all()
weights[0, 3] = np.inf
assert np.isnan(restored(weights, group_size=64, bits=4)).all()
EOF
echo "as described"
