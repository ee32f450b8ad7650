#!/usr/bin/env bash
# ml_dtypes 0.5.4: casts from float64, int64 and int32 to bfloat16 and to the types of 4, 6 and 8 bits
# round twice, first to float32.  A number just above the middle of two neighbors becomes that middle,
# and then the even neighbor, which may be the more distant one.  numpy's own cast from float64 to
# float16 rounds once.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: of the numbers a relative 1e-12 above the middles of
# all pairs of positive neighbors, the more distant neighbor: bfloat16 16319 of 32638, float8_e4m3fn
# 62 of 125, float8_e5m2 61 of 122, float4_e2m1fn 3 of 6, float16 0 of 31742.
# int32 16842753 -> bfloat16 16777216 (16908288 is closer)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ml_dtypes==0.5.4 numpy==2.4.6
"$folder/venv/bin/python" - << 'END'
import ml_dtypes
import numpy as np


def wrong(dtype):
    """Return how many numbers just above a middle become the lower neighbor, and of how many."""
    width = np.dtype(dtype).itemsize
    codes = np.arange(2 ** (8 * width), dtype=np.uint64).astype(f"u{width}")
    if dtype is ml_dtypes.float4_e2m1fn:
        codes = codes[:16]
    numbers = codes.view(dtype).astype(np.float64)
    numbers = np.unique(numbers[np.isfinite(numbers) & (numbers > 0)])
    above = (numbers[:-1] + numbers[1:]) / 2 * (1 + 1e-12)
    found = above.astype(dtype).astype(np.float64)
    return int((found != numbers[1:]).sum()), len(above)


names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
seen = {name: wrong(getattr(ml_dtypes, name)) for name in names} | {"float16": wrong(np.float16)}
print(seen)
assert seen == {
    "bfloat16": (16319, 32638), "float8_e4m3fn": (62, 125), "float8_e5m2": (61, 122),
    "float4_e2m1fn": (3, 6), "float16": (0, 31742),
}
integer = float(np.array([16842753], np.int32).astype(ml_dtypes.bfloat16)[0])
print(integer)
assert integer == 16777216
print("as described")
END
