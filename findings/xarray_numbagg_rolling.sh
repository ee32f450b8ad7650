#!/usr/bin/env bash
# xarray 2026.9.0: results depend on whether numbagg 0.9.6 is installed, an optional package for speed that is used unless
# `set_options(use_numbagg=False)` is called.  It keeps one running sum for all windows: after an infinity, all rolling sums
# and means are NaN, and after a large number they have lost their digits, although it is in none of their windows.  A mean of
# float16 is right with numbagg only.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6: the rolling sums of two of [1e17, 1, 2, 3, 4] end with 3, 5, 7, and with
# numbagg with 0, 2, 4; those of [inf, 1, 2, 3, 4] with NaN; the mean of 100,000 times 10 in float16 is inf, and 10.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q xarray==2026.9.0 numpy==2.4.6
cat > "$folder/program.py" << 'EOF'
import importlib.util

import numpy as np
import xarray as xr


def seen():
    """Return the last rolling sums and means behind a large number and infinity, and a mean of float16."""
    large, infinite = (xr.DataArray([first, 1, 2, 3, 4], dims="x").rolling(x=2) for first in (1e17, np.inf))
    rolling = [f().values[2:].tolist() for f in (large.sum, large.mean, infinite.sum, infinite.mean)]
    with np.errstate(over="ignore"):
        return [*rolling, float(xr.DataArray(np.full(100_000, 10, np.float16), dims="x").mean())]


if importlib.util.find_spec("numbagg"):
    print("with numbagg", *(found := seen()))
    for got, right in zip(found, ([0, 2, 4], [1, 2, 3], [np.nan] * 3, [np.nan] * 3, 10), strict=True):
        np.testing.assert_array_equal(got, right)
    xr.set_options(use_numbagg=False)
print("without", *(found := seen()))
assert found == [[3, 5, 7], [1.5, 2.5, 3.5], [3, 5, 7], [1.5, 2.5, 3.5], np.inf]
EOF
"$folder/venv/bin/python" "$folder/program.py"
"$folder/venv/bin/pip" install -q numbagg==0.9.6 numba==0.68.1 numpy==2.4.6
"$folder/venv/bin/python" "$folder/program.py"
echo "as described"
