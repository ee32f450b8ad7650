#!/usr/bin/env bash
# pyarrow 26.0.1: `compute.cumulative_max` and `cumulative_min` skip NaN, but where only NaN came before, they return the
# infinity with which they began, a number that the array does not have.  `compute.max` of such an array is NaN, and
# `cumulative_sum` keeps NaN.
#
# Seen on 2026-11-30, x86-64, Python 3.11: the cumulative maximum of [nan, 1, nan, 2] is [-inf, 1, 1, 2], the minimum
# [inf, 1, 1, 1].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import math

import pyarrow as pa
from pyarrow import compute

numbers = pa.array([math.nan, 1.0, math.nan, 2.0])
largest, least = (
    function(numbers).to_pylist() for function in (compute.cumulative_max, compute.cumulative_min)
)
print(f"cumulative maximum {largest}, minimum {least}")
assert largest == [-math.inf, 1.0, 1.0, 2.0]
assert least == [math.inf, 1.0, 1.0, 1.0]
assert math.isnan(compute.max(numbers[:1]).as_py())
assert all(map(math.isnan, compute.cumulative_sum(numbers).to_pylist()))
print("as described")
EOF
