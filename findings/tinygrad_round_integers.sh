#!/usr/bin/env bash
# tinygrad 0.14.0: `round` changes numbers that are integers already, if they are odd and large: 8388609 becomes 8388610 in
# float32, 1025 becomes 1026 in float16, and 2**52 + 1 becomes 2**52 + 2 in float64.  Half is added to the number, and the sum
# rounds to even.  `floor` and `trunc` keep these numbers, as NumPy's round does.
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

for kind, number in ((np.float16, 1025), (np.float32, 8388609), (np.float64, 2**52 + 1)):
    x = Tensor(np.array([number, number + 1, 3], kind))
    print(kind.__name__, number, "->", x.round().tolist(), "numpy", np.round(x.numpy()).tolist())
    assert x.numpy()[0] == number == np.round(x.numpy())[0]
    assert x.round().tolist() == [number + 1, number + 1, 3]
    assert x.floor().tolist() == x.trunc().tolist() == [number, number + 1, 3]
EOF
echo "as described"
