#!/usr/bin/env bash
# ml_dtypes 0.7.0: casts of bfloat16 and float8 to integers make 0 of numbers that the type cannot hold: of infinities, of finite
# ones, and of negative ones for unsigned types.  0.6.0 made of bfloat16 what numpy makes of float32 and float16, and of
# float8_e5m2 the nearest integer.  So results change with the version of the package, and with the floating point type, without a
# warning.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6, for infinity, 4e9 and -5: bfloat16 as int32 is -2147483648, -2147483648 and
# -5 by 0.6.0, and 0, 0 and -5 by 0.7.0; as uint8 0, 0, 251, and 0, 0, 0; float8_e5m2 as uint8 is 255, 255, 251, and 0, 0, 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
cat > "$folder/program.py" << 'EOF'
import sys

import ml_dtypes
import numpy as np

with np.errstate(all="ignore"):
    x = np.array([np.inf, 4e9, -5], np.float32)
    kinds = np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2
    seen = [[x.astype(kind).astype(to).tolist() for to in ("int32", "uint8")] for kind in kinds]
print(ml_dtypes.__version__, *zip([np.dtype(kind).name for kind in kinds], seen))
least = -(2**31)
assert seen[:2] == [[[least, least, -5], [0, 0, 251]]] * 2
if ml_dtypes.__version__ == "0.6.0":
    assert seen[2] == [[least, least, -5], [0, 0, 251]]
    assert seen[3] == [[2**31 - 1, 2**31 - 1, -5], [255, 255, 251]]
else:
    assert seen[2:] == [[[0, 0, -5], [0, 0, 0]]] * 2
EOF
for version in 0.6.0 0.7.0; do
    "$folder/venv/bin/pip" install -q ml_dtypes==$version numpy==2.4.6
    "$folder/venv/bin/python" "$folder/program.py"
done
echo "as described"
