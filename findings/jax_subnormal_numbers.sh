#!/usr/bin/env bash
# JAX 0.10.2, CPU: ops on float32 and bfloat16 take subnormal numbers for zero, also comparisons, although arrays hold
# them: `jnp.nextafter(0, 1)` equals 0, the logarithm of 1e-40 is -infinity, and its reciprocal infinity, as that of 0.
# float16 keeps its subnormal numbers.  So probabilities that numpy, or another process, made positive are not.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6: the logarithm of 1e-40 is -inf, and -92.10341 by numpy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" JAX_PLATFORMS=cpu
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import jax.numpy as jnp
import numpy as np

x = jnp.float32(1e-40)
seen = {
    "held": float(x) > 0, "x > 0": bool(x > 0), "x == 0": bool(x == 0), "x * 1": float(x * 1),
    "log": float(jnp.log(x)), "1 / x": float(1 / x), "sqrt": float(jnp.sqrt(x)),
}
print(seen, float(np.log(np.asarray(x))))
assert seen == {
    "held": True, "x > 0": False, "x == 0": True, "x * 1": 0, "log": -np.inf, "1 / x": np.inf, "sqrt": 0,
}
assert -92.2 < np.log(np.asarray(x)) < -92
assert bool(jnp.nextafter(jnp.float32(0), jnp.float32(1)) == 0)
assert bool(jnp.bfloat16(1e-40) == 0) and float(jnp.bfloat16(1e-40)) > 0
assert bool(jnp.float16(6e-8) > 0)
EOF
echo "as described"
