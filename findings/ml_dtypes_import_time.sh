#!/usr/bin/env bash
# ml_dtypes 0.7.0: its import takes more than half a second of the processor, a hundred times as long as that of 0.6.0 and five
# times as long as that of numpy.  A profile shows numpy's PyUFunc_AddLoop comparing tuples of element types: a new loop of a ufunc
# is compared with all that were added before.  Every start of a program that imports a package on top of it (JAX, onnx,
# TensorFlow, tensorstore) takes so much longer, and pip installs 0.7.0 where `ml_dtypes>=0.5` is required.
#
# Seen on 2026-12-01, x86-64 (AMD EPYC, Zen 4), Python 3.11, numpy 2.4.6, seconds of the processor beyond numpy's import, the
# least of five:
#   0.6.0 0.006
#   0.7.0 0.565
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
cat > "$folder/program.py" << 'END'
import time

import numpy

started = time.process_time()
import ml_dtypes

print(time.process_time() - started)
END
for version in 0.6.0 0.7.0; do
    "$folder/venv/bin/pip" install -q ml_dtypes==$version numpy==2.4.6
    for _ in 1 2 3 4 5 6; do
        OPENBLAS_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/program.py"
    done | tail -n 5 | sort -g | head -n 1 > "$folder/$version"
    echo "$version $(cat "$folder/$version")"
done
awk -v old="$(cat "$folder/0.6.0")" -v new="$(cat "$folder/0.7.0")" 'BEGIN { exit !(new > 20 * old) }'
echo "as described"
