#!/usr/bin/env bash
# tinygrad 0.14.0: tanh, sinh, asinh, atanh and erf of 1e-8 are 0, and asin and atan of 1e-8 are 1.19e-7, twelve times the
# argument, although all of them are 1e-8 (erf: 1.13e-8) to the last digit of float32.  They are computed from the sigmoid, from
# differences of exponentials, from logarithms and from polynomials whose terms of order 1 cancel.  tanh of 1e-6 still has an error
# of 7 %.  sin and tan are right to the last digit.
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

x = Tensor(np.array([1e-8, 1e-6], np.float32))
seen = {name: getattr(x, name)().tolist() for name in "tanh sinh asinh atanh erf asin atan sin tan".split()}
for name, values in seen.items():
    print(f"{name:6}", values)
for name in ("tanh", "sinh", "asinh", "atanh", "erf"):
    assert seen[name][0] == 0
for name in ("asin", "atan"):
    assert 1.1e-7 < seen[name][0] < 1.3e-7
for name in ("sin", "tan"):
    assert abs(seen[name][0] / 1e-8 - 1) < 1e-6
assert abs(seen["tanh"][1] / 1e-6 - 1) > 0.07
EOF
echo "as described"
