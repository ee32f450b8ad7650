#!/usr/bin/env bash
# safetensors 0.8.0: `safetensors.numpy.save_file` writes float8 arrays of ml_dtypes, and `load_file` of
# the same module cannot read the file: it looks for the type in numpy, and raises AttributeError.
# `safe_open` fails likewise, so that one float8 tensor keeps all others of the file from `load_file`.
# bfloat16, which is no type of numpy either, can be read.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6, ml_dtypes 0.5.4: bfloat16 "read";
# float8_e4m3fn, float8_e5m2, float8_e8m0fnu "AttributeError"
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q safetensors==0.8.0 ml_dtypes==0.5.4 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - << 'END'
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file


def outcome(name):
    array = np.ones(4, np.float32).astype(getattr(ml_dtypes, name))
    save_file({"other": np.ones(2, np.float32), "x": array}, "one.safetensors")
    try:
        assert np.array_equal(load_file("one.safetensors")["x"].view(np.uint8), array.view(np.uint8))
    except AttributeError as error:
        assert name in str(error)
        return "AttributeError"
    return "read"


seen = {name: outcome(name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")}
print(seen)
assert list(seen.values()) == ["read"] + ["AttributeError"] * 3
print("as described")
END
