#!/usr/bin/env bash
# keras 3.15.1: with the numpy backend, `keras.ops.saturate_cast` of a large positive float32 to int32 is the least int32.  It
# limits numbers to the greatest int32 in float32, which rounds that up to 2 to the power of 31, and the cast of this
# overflows.  The function is documented as a safe cast without overflow, and with the JAX backend it is one.
#
# Seen on 2026-12-01, x86-64, Python 3.11, jax 0.10.2, numpy 2.4.6, for 2 to the power of 40, its negative and 1: -2147483648,
# -2147483648 and 1 with numpy; 2147483647, -2147483648 and 1 with JAX.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" KERAS_HOME="$folder/keras" JAX_PLATFORMS=cpu
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > "$folder/program.py" << 'EOF'
import keras
import numpy as np

x = np.float32([2**40, -(2**40), 1])
found = np.asarray(keras.ops.saturate_cast(x, "int32"))
print(keras.backend.backend(), found)
least, greatest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
assert found.tolist() == [least if keras.backend.backend() == "numpy" else greatest, least, 1]
EOF
for backend in numpy jax; do
  KERAS_BACKEND=$backend "$folder/venv/bin/python" -W ignore "$folder/program.py"
done
echo "as described"
