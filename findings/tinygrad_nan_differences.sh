#!/usr/bin/env bash
# tinygrad 0.14.0: expressions of one tensor are simplified before they run, as if no number were NaN, infinite or zero:
# x - x is 0 and x * 0 is 0 for NaN and infinity, x / x is 1 for 0, infinity and NaN, 0 / x is 0 for 0 and NaN, and x >= 0 is
# true for NaN.  With a second tensor of the same numbers, x - y and x * zeros are NaN, as IEEE 754 says.  So a check such as
# ((x - x) == 0).all() accepts every tensor.
#
# Seen on 2026-12-01, x86-64, Python 3.11, clang 14, numpy 2.4.6.  tinygrad's CPU device needs clang.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" XDG_CACHE_HOME="$folder/cache" DEV=CPU
command -v clang > /dev/null || { echo "clang is missing" >&2; exit 1; }
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tinygrad==0.14.0 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
from tinygrad import Tensor

x, y = (Tensor([np.nan, np.inf, 0.0, 1.0]) for _ in range(2))
zeros = Tensor(np.zeros(4, np.float32))
one = {
    "x - x": (x - x).tolist(), "x * 0": (x * 0).tolist(), "x / x": (x / x).tolist(),
    "0 / x": (0 / x).tolist(), "x >= 0": (x >= 0).tolist(), "all zero": bool(((x - x) == 0).all().item()),
}
two = {"x - y": (x - y).tolist(), "x * zeros": (x * zeros).tolist(), "x / y": (x / y).tolist()}
print(one, two, sep="\n")
assert one["x - x"] == one["x * 0"] == one["0 / x"] == [0, 0, 0, 0]
assert one["x / x"] == [1, 1, 1, 1] and one["x >= 0"] == [True] * 4 and one["all zero"]
assert np.isnan(two["x - y"]).tolist() == np.isnan(two["x * zeros"]).tolist() == [True, True, False, False]
assert np.isnan(two["x / y"]).tolist() == [True, True, True, False]
EOF
echo "as described"
