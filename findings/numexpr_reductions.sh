#!/usr/bin/env bash
# numexpr 2.14.2: the reductions `min` and `max` leave NaN out, where numpy's return it, so that a check of the largest number
# finds nothing wrong.  `sum` of float32 adds one number after another in float32: of millions, it has errors of percents,
# and stops to count at 16777216.  numpy adds them in pairs.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6: the maximum of [NaN, 1, 2] is 2, the minimum 1; the sum of 20,000,000
# times 0.1 is 2097152, and 2000000.2 by numpy; that of as many ones is 16777216.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numexpr==2.14.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numexpr
import numpy as np

for x in (np.array([np.nan, 1, 2]), np.array([1, np.nan, 2], np.float32)):
    seen = [float(numexpr.evaluate(f"{name}(x)")) for name in ("min", "max")]
    print(x.tolist(), "numexpr", seen, "numpy", [x.min(), x.max()])
    assert seen == [1, 2] and np.isnan(x.min()) and np.isnan(x.max())
for number, found in ((0.1, 2**21), (1, 2**24)):
    x = np.full(20_000_000, number, np.float32)
    print("sum: numexpr", seen := float(numexpr.evaluate("sum(x)")), "numpy", right := float(x.sum()))
    assert seen == found and abs(right - 20_000_000 * number) < 1
EOF
echo "as described"
