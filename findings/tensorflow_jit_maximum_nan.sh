#!/usr/bin/env bash
# TensorFlow 2.21.0, CPU: with `tf.function(jit_compile=True)`, `reduce_max` and `reduce_min` leave NaN out, so that a check of the
# largest number finds nothing wrong.  Without it they are NaN, as documented.  `maximum` and `minimum` are NaN if the first
# argument is, and the first argument if the second is NaN.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6: the maximum of [1, NaN, 2] is NaN, and 2 with `jit_compile`;
# `maximum` of [NaN, 1, 2] and [1, NaN, 2] is [NaN, NaN, 2], and [NaN, 1, 2].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" TF_CPP_MIN_LOG_LEVEL=3
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
import tensorflow as tf

nan = np.nan
x, y = tf.constant([nan, 1, 2], tf.float32), tf.constant([1, nan, 2], tf.float32)
for name, given, right, compiled in (
    ("reduce_max", (y,), nan, 2), ("reduce_min", (y,), nan, 1), ("reduce_max", (x,), nan, 2),
    ("maximum", (x, y), [nan, nan, 2], [nan, 1, 2]), ("minimum", (x, y), [nan, nan, 2], [nan, 1, 2]),
):
    seen = [tf.function(getattr(tf, name), jit_compile=jit, autograph=False)(*given).numpy() for jit in (False, True)]
    print(name, *(a.numpy().tolist() for a in given), "without", seen[0].tolist(), "with jit_compile", seen[1].tolist())
    np.testing.assert_array_equal(seen[0], right)
    np.testing.assert_array_equal(seen[1], compiled)
EOF
echo "as described"
