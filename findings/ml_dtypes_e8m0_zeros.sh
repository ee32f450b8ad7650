#!/usr/bin/env bash
# ml_dtypes 0.5.4: `np.zeros` of float8_e8m0fnu, the type of the scales of OCP's MX formats, has no
# zeros.  The type has none; the bits 0 are 2**-127.  So the zeros of `np.zeros` are true and 2**-127,
# those that were converted from another type are NaN, and no function warns.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: zeros(2) is 5.877471754111438e-39 and any() True;
# zeros(2).astype is nan; zeros_like, empty arrays that are filled with 0, and pad differ likewise
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ml_dtypes==0.5.4 numpy==2.4.6
"$folder/venv/bin/python" - << 'END'
import ml_dtypes
import numpy as np

scale = ml_dtypes.float8_e8m0fnu
made, converted = np.zeros(2, scale), np.zeros(2).astype(scale)
filled = np.ones(2, scale)
filled[:] = 0
padded = np.pad(np.ones(1, scale), 1)
rows = [x.astype(np.float64).tolist() for x in (made, np.zeros_like(made), converted, filled, padded)]
print(rows, bool(made.any()))
assert rows[:2] == [[2.0**-127] * 2] * 2 and made.any()
assert np.isnan(rows[2:4]).all() and np.isnan(rows[4])[[0, 2]].all() and rows[4][1] == 1
print("as described")
END
