#!/usr/bin/env bash
# TensorFlow 2.21.0, CPU: with `tf.function(jit_compile=True)`, `fused_batch_norm` makes the variance of a batch as the mean of
# squares minus the square of the mean, in float32, and without it from the differences.  For inputs whose mean is large beside
# their deviation, the variance is 0, and the normalized numbers
# are too large by a factor of ten and more.  `tf.nn.moments` is right in both.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6, for 10000, 10001, 10002, 10003: -1.34 to 1.34 and a variance of 1.667
# without, -47.4 to 47.4 and 0 with `jit_compile`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" TF_CPP_MIN_LOG_LEVEL=3
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
import tensorflow as tf


def normalize(x):
    """Normalize a batch of one channel; return the numbers, the variance, and that of `moments`."""
    y, _, variance = tf.compat.v1.nn.fused_batch_norm(tf.reshape(x, [4, 1, 1, 1]), [1.0], [0.0])[:3]
    return tf.reshape(y, [4]), variance[0], tf.nn.moments(x, 0)[1]


for start in (1e4, 1e5):
    x = tf.constant(start + np.arange(4), tf.float32)
    seen = []
    for jit in (False, True):
        y, variance, other = (a.numpy() for a in tf.function(normalize, jit_compile=jit, autograph=False)(x))
        print("jit_compile" if jit else "without", y.round(3).tolist(), "variance", variance, "moments", other)
        seen.append((y, variance))
        assert other == 1.25
    right = (np.arange(4) - 1.5) / np.sqrt(1.25 + 1e-3)
    np.testing.assert_allclose(seen[0][0], right, rtol=1e-3)
    assert abs(seen[0][1] - 5 / 3) < 1e-3 and seen[1][1] == 0
    assert abs(seen[1][0][0] / right[0]) > 10
EOF
echo "as described"
