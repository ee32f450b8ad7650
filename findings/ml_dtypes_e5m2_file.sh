#!/usr/bin/env bash
# ml_dtypes 0.5.4: `np.save` writes a float8_e5m2 array to a file that `np.load` refuses, because its
# header names the type "<f1".  The file of each other type of one byte says "<V1", loads as bytes, and
# gives the numbers by `.view`.  Only float8_e5m2 has the kind "f" of numpy's own types; therefore
# `np.promote_types` accepts it beside float16, too, and raises for the others.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: float8_e5m2: kind f, load ValueError, promoted with
# float16 float32; float8_e4m3fn, float8_e5m2fnuz: kind V, load V1, promotion refused
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ml_dtypes==0.5.4 numpy==2.4.6
"$folder/venv/bin/python" - << 'END'
import io

import ml_dtypes
import numpy as np


def behavior(name):
    dtype, file = np.dtype(getattr(ml_dtypes, name)), io.BytesIO()
    np.save(file, np.ones(3, dtype))
    file.seek(0)
    try:
        loaded = np.load(file).dtype.str
    except ValueError:
        loaded = "ValueError"
    try:
        promoted = str(np.promote_types(dtype, np.float16))
    except np.exceptions.DTypePromotionError:
        promoted = "refused"
    return dtype.kind, loaded, promoted


seen = {name: behavior(name) for name in ("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz")}
print(seen)
assert seen == {
    "float8_e5m2": ("f", "ValueError", "float32"),
    "float8_e4m3fn": ("V", "|V1", "refused"),
    "float8_e5m2fnuz": ("V", "|V1", "refused"),
}
print("as described")
END
