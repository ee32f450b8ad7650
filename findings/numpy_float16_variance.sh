#!/usr/bin/env bash
# numpy 2.4.6: `np.var` and `np.std` of float16 add in float16, although `np.mean` adds in float32.  So the deviation of ten
# numbers near 10000 is infinity, and its mean right; for two neighbors, the mean inside of `np.var` is rounded to one of
# them, and the variance twice as large as it is.  `dtype=np.float32` gives the right numbers.
#
# Seen on 2026-12-01, x86-64, Python 3.11: the variance of 10000 and 10008 is 32, and 16 with dtype=np.float32; ten numbers
# from 10000 to 10056 have the mean 10024, and an infinite deviation with "overflow encountered in reduce".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import warnings

import numpy as np

two, ten = np.array([10000, 10008], np.float16), (10000 + 8 * np.arange(10) % 64).astype(np.float16)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    seen = float(two.var()), float(two.var(dtype=np.float32)), float(ten.mean()), float(ten.std())
right = float(ten.std(dtype=np.float32))
print(seen, right, [str(w.message) for w in caught])
assert seen == (32, 16, 10024, np.inf)
assert 19 < right < 19.2
assert "overflow encountered in reduce" in str(caught[0].message)
EOF
echo "as described"
