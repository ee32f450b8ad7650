#!/usr/bin/env bash
# JAX 0.10.2, CPU: `jax.device_put` of a numpy array copies it, unless its first element lies at a multiple of 64 bytes:
# then the JAX array, which cannot be changed, has the memory of the numpy array, and changes with it.  A program that
# fills one buffer with batch after batch trains on the right numbers or not, depending on where the buffer lies; numpy
# places arrays at multiples of 16.  `jnp.asarray` copies both.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6: after `x[0] = 7`, the first element of the JAX array is 7 for an
# offset of 0 bytes, and 0 for offsets of 16, 32 and 48 bytes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" JAX_PLATFORMS=cpu
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import jax
import jax.numpy as jnp
import numpy as np


def first(put, offset):
    """Put an array that begins at an offset; return the first element after a change of the array."""
    memory = np.zeros(4096, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    x = memory[start : start + 2048].view(np.float32)
    y = put(x)
    y.block_until_ready()
    x[0] = 7
    return float(y[0])


for put in (jax.device_put, jnp.asarray):
    print(put.__name__, seen := [first(put, offset) for offset in (0, 16, 32, 48)])
    assert seen == [7 if put is jax.device_put else 0, 0, 0, 0]
EOF
echo "as described"
