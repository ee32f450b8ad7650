#!/usr/bin/env bash
# tinygrad 0.14.0 (CPU): if a tensor has a NaN, `sort` returns other elements than the tensor has, without an error: of 7 ... 1
# and NaN it returns 4, 5, 6, 7, 4, 5, 6, 7, and `argsort` names index 0 five times.  Sorted are copies of elements that were
# found by comparison, and NaN compares as unequal.  `argmax` of NaN, 1, 2 is 3, past the end, and indexing with it gives 0.
# NumPy sorts NaN to the end, and its argmax is the index of NaN.
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

x = np.array([7, 6, 5, 4, 3, 2, 1, np.nan], np.float32)
values, places = (part.tolist() for part in Tensor(x).sort())
top = Tensor([np.nan, 1.0, 2.0])
print("sort", values, "argsort", places, "numpy", np.sort(x))
print("argmax", top.argmax().item(), "indexed by it", top[top.argmax()].item(), "numpy", top.numpy().argmax())
assert values == [4, 5, 6, 7, 4, 5, 6, 7] and places == [3, 2, 1, 0, 0, 0, 0, 0]
assert top.argmax().item() == 3 and top[top.argmax()].item() == 0
assert sorted(Tensor(x[:7]).sort()[0].tolist()) == sorted(x[:7].tolist())
EOF
echo "as described"
