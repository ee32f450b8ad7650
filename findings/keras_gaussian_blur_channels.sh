#!/usr/bin/env bash
# keras 3.15.1: with the JAX backend, `keras.ops.image.gaussian_blur` gives each channel another kernel: an image whose channels
# are constant does not stay as it is.  With the numpy backend, the same call is right: a blur of a constant is the constant.
#
# Seen on 2026-12-01, x86-64, Python 3.11, jax 0.10.2, numpy 2.4.6: the middle of an image of [1, 2, 3] everywhere is [1, 2,
# 1.904] with JAX and [1, 2, 3] with numpy; of numbers that grow evenly, [26.4, 37, 27.3] and [36, 37, 38].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" KERAS_HOME="$folder/keras" JAX_PLATFORMS=cpu
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > "$folder/program.py" << 'EOF'
import keras
import numpy as np

constant = np.broadcast_to(np.float32([1, 2, 3]), (1, 5, 5, 3))
growing = np.arange(75, dtype=np.float32).reshape(1, 5, 5, 3)
blurred = [keras.ops.image.gaussian_blur(image, (3, 3), (1.0, 1.0)) for image in (constant, growing)]
middles = [np.asarray(image)[0, 2, 2] for image in blurred]
print(keras.backend.backend(), middles)
right = [[1, 2, 3], [36, 37, 38]]
wrong = [[1, 2, 1.904], [26.41, 37, 27.31]]
np.testing.assert_allclose(middles, right if keras.backend.backend() == "numpy" else wrong, rtol=1e-3)
EOF
for backend in numpy jax; do
  KERAS_BACKEND=$backend "$folder/venv/bin/python" -W ignore "$folder/program.py"
done
echo "as described"
