#!/usr/bin/env bash
# optax 0.2.8: `clip_by_global_norm` and `clip_by_block_rms` make zeros of finite gradients whose squares overflow their type: the
# norm is infinite, and the gradient divided by it 0.  In float16, 300 is enough.  Clipping has to keep the direction; here the
# step is lost, without an error.
#
# Seen on 2026-12-01, x86-64, Python 3.11, jax 0.10.2, numpy 2.4.6: [300, 300] in float16, clipped to a norm of 1, is [0, 0]
# instead of [0.707, 0.707], and so is [1e20, 1e20] in float32.
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

for dtype, large in ((jnp.float16, 300), (jnp.float32, 1e20)):
    gradient = jnp.full(2, large, dtype)
    for clip in (optax.clip_by_global_norm, optax.clip_by_block_rms):
        small = clip(1.0).update(gradient, clip(1.0).init(gradient))[0]
        print(clip.__name__, gradient, small)
        assert np.isfinite(gradient).all() and not small.any()
EOF
echo "as described"
