#!/usr/bin/env bash
# TensorFlow 2.21.0, CPU: `tf.sort` and `tf.argsort` of numbers with a NaN return them unsorted, and `tf.math.top_k` finds other
# numbers than the greatest, without an error.  With `tf.function(jit_compile=True)`, the same call sorts NaN to the end,
# as numpy does.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6: [3, NaN, 1, 2] is sorted as [1, 3, NaN, 2], and as [1, 2, 3, NaN] with
# `jit_compile` and by numpy; the top two of it are 3 and NaN, of [2, 1, NaN] 2 and 1.
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
x = tf.constant([3, nan, 1, 2], tf.float32)
seen = [tf.function(tf.sort, jit_compile=jit, autograph=False)(x).numpy() for jit in (False, True)]
order = tf.argsort(x).numpy()
tops = [tf.math.top_k(tf.constant(a, tf.float32), 2).values.numpy() for a in ([3, nan, 1, 2], [2, 1, nan])]
print("sorted", *seen, "numpy", np.sort(x), "order", order, "top two", *tops)
np.testing.assert_array_equal(seen, [[1, 3, nan, 2], [1, 2, 3, nan]])
np.testing.assert_array_equal(np.sort(x), seen[1])
np.testing.assert_array_equal(order, [2, 0, 1, 3])
np.testing.assert_array_equal(tops, [[3, nan], [2, 1]])
EOF
echo "as described"
