#!/usr/bin/env bash
# optax 0.2.8: `inject_hyperparams`, which makes hyperparameters such as the learning rate readable and changeable during a run,
# casts all of them to the type of the parameters.  In bfloat16, Adam's `b2` of 0.999 is 1: its bias correction divides by 0,
# and every update is NaN from the first step.  Without the wrapper, or with `hyperparam_dtype="float32"`, it is right.
#
# Seen on 2026-12-01, x86-64, Python 3.11, jax 0.10.2, numpy 2.4.6, gradients 0.5 and -2, learning rate 0.001, in bfloat16:
# -0.001 and 0.001 without the wrapper and with `hyperparam_dtype`, NaN and NaN with the wrapper alone; in float32 all three are
# right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" JAX_PLATFORMS=cpu
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import jax.numpy as jnp
import numpy as np
import optax

for dtype in ("float32", "bfloat16"):
    gradient = jnp.array([0.5, -2], dtype)
    for name, optimizer in {
        "plain": optax.adam(0.001),
        "injected": optax.inject_hyperparams(optax.adam)(0.001),
        "injected as float32": optax.inject_hyperparams(optax.adam, hyperparam_dtype=jnp.float32)(0.001),
    }.items():
        found, state = optimizer.update(gradient, optimizer.init(gradient))
        print(dtype, name, found, "b2", float(state.hyperparams["b2"]) if "injected" in name else 0.999)
        right = [np.nan, np.nan] if (dtype, name) == ("bfloat16", "injected") else [-0.001, 0.001]
        np.testing.assert_allclose(found.astype("float32"), right, rtol=0.01)
EOF
echo "as described"
