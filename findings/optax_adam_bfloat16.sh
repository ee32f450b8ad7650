#!/usr/bin/env bash
# optax 0.2.8: for bfloat16 parameters, `adam` keeps both moments in bfloat16, where steps of 0.001 of a number are rounded away:
# the second moment stops at half of its value, and the first above it.  For a constant gradient, whose update is the learning
# rate by Adam's definition, the update grows to 1.38 times as much.  `mu_dtype` changes the first moment only, so that no
# argument helps.  `ema` with a decay of 0.999 stops likewise.
#
# Seen on 2026-12-01, x86-64, Python 3.11, jax 0.10.2, numpy 2.4.6, gradient 1 and learning rate 1, after 5000 steps: an update of
# -1.383 and a second moment of 0.5, -1 and 0.993 in float32; with mu_dtype="float32" -1.408; `ema` of ones is 0.504.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" JAX_PLATFORMS=cpu
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import jax
import jax.numpy as jnp
import optax


def last(optimizer, dtype):
    """Take 5000 steps with a gradient of 1; return the last update and the state."""
    gradient = jnp.ones(1, dtype)
    state, update = optimizer.init(gradient), jax.jit(optimizer.update)
    for _ in range(5000):
        found, state = update(gradient, state)
    return round(float(found[0]), 4), state


seen = {}
for name, dtype, given in (("float32", jnp.float32, None), ("bfloat16", jnp.bfloat16, None), ("mu", jnp.bfloat16, "float32")):
    found, state = last(optax.adam(1.0, mu_dtype=given), dtype)
    seen[name] = found, round(float(state[0].mu[0]), 4), round(float(state[0].nu[0]), 4)
print("update, first and second moment", seen)
assert seen == {"float32": (-1, 1, 0.9933), "bfloat16": (-1.3828, 0.9844, 0.5), "mu": (-1.408, 1.001, 0.5)}
print("ema", averages := [last(optax.ema(0.999), dtype)[0] for dtype in (jnp.float32, jnp.bfloat16)])
assert averages == [1, 0.5039]
EOF
echo "as described"
