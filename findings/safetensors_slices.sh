#!/usr/bin/env bash
# safetensors 0.8.0: `safe_open(...).get_slice(name)` reads parts of a tensor by numpy's notation, but
# for numpy's rules about bounds: a negative index counts from the end, a negative bound of a slice is
# an OverflowError; a bound beyond the end is an error in place of the end, and no rows of a tensor
# without rows can be read; a slice whose end is before its start is a SystemError in place of an empty
# array.  Code that divides rows among ranks as x[rank * n : (rank + 1) * n] fails for the last one.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6, for a tensor of shape (3, 4): see SEEN below
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q safetensors==0.8.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - << 'END'
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

SEEN = {
    "x[-1]": "as numpy",
    "x[::2]": "as numpy",
    "x[..., 1]": "as numpy",
    "x[:-1]": "OverflowError",
    "x[-2:]": "OverflowError",
    "x[2:4]": "SafetensorError",
    "x[2:1]": "SystemError",
    "x[[0, 2]]": "SafetensorError",
    "empty[0:0]": "SafetensorError",
}
ARRAYS = {"x": np.arange(12.0).reshape(3, 4), "empty": np.zeros((0, 4))}


def outcome(text, slices):
    expected = eval(text, dict(ARRAYS))
    try:
        found = eval(text, slices)
    except Exception as error:
        return type(error).__name__
    return "as numpy" if np.array_equal(found, expected) else "different"


save_file(ARRAYS, "arrays.safetensors")
with safe_open("arrays.safetensors", "np") as file:
    slices = {name: file.get_slice(name) for name in ARRAYS}
    seen = {text: outcome(text, dict(slices)) for text in SEEN}
print(seen)
assert seen == SEEN
print("as described")
END
