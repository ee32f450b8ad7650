#!/usr/bin/env bash
# JAX 0.10.2, CPU: an integer divided by zero by `//` is -2, or -1 if it is zero itself, and the remainder by `%` is zero.
# `lax.div` gives -1 for all, since XLA defines so, and `//` subtracts one more where the signs of the numbers differ;
# `lax.rem` gives the number.  Without a warning, a mean over no elements is a number that looks like a count or an index.
#
# Seen on 2026-12-01, x86-64, Python 3.11, of 7, 0 and -7 as int32 by 0: -2, -1 and -2, with remainders of 0; by `lax.div`
# -1, with the remainders 7, 0 and -7.  Of 7 and 0 as uint8: 255.  numpy 2.4.6 gives 0, and warns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" JAX_PLATFORMS=cpu
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import jax.numpy as jnp
import numpy as np
from jax import lax

x, zero = jnp.array([7, 0, -7], jnp.int32), jnp.zeros(3, jnp.int32)
seen = [(x // zero).tolist(), (x % zero).tolist(), lax.div(x, zero).tolist(), lax.rem(x, zero).tolist()]
small = (jnp.array([7, 0], jnp.uint8) // jnp.zeros(2, jnp.uint8)).tolist()
with np.errstate(divide="ignore"):
    usual = (np.asarray(x) // np.asarray(zero)).tolist()
print(seen, small, usual)
assert seen == [[-2, -1, -2], [0, 0, 0], [-1, -1, -1], [7, 0, -7]]
assert (small, usual) == ([255, 255], [0, 0, 0])
EOF
echo "as described"
