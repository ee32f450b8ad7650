#!/usr/bin/env bash
# oneDNN 3.2 (onednn-cpu-gomp 2023.2.0), CPU with AVX-512: the product of one row with transposed weights
# takes twice as long as on the same processor limited to AVX2.  For AVX-512, the library chooses a
# kernel that copies the weights to another layout in each execution; for AVX2, a product of a matrix
# and a vector that reads them as they lie.  Weights are transposed in the layers of PyTorch and
# OneFlow, and one row is the usual request of a server.
#
# Seen on 2026-11-29, AMD EPYC with AVX-512, Python 3.11, one thread, 1 x 784 x 512 in float32, medians:
# 41 us ("brg:avx512_core") and 19 us with ONEDNN_MAX_CPU_ISA=AVX2.
set -euo pipefail
grep -q avx512f /proc/cpuinfo || { echo "this processor has no AVX-512: nothing to compare"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" OMP_NUM_THREADS=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onednn-cpu-gomp==2023.2.0 numpy==2.4.6
cat > "$folder/product.py" << 'PROGRAM'
import ctypes
import sys
import time

import numpy as np

lib = ctypes.CDLL(sys.argv[1])
DEEP, COLUMNS = 784, 512
SRC, WEIGHTS, DST, FLOAT32, CPU = 1, 33, 17, 3, 1


def made(function, *arguments):
    """Call a function that returns an object by its first argument."""
    found = ctypes.c_void_p()
    assert getattr(lib, function)(ctypes.byref(found), *arguments) == 0, function
    return found


def layout(sizes, strides):
    numbers = [(ctypes.c_int64 * 2)(*row) for row in (sizes, strides)]
    return made("dnnl_memory_desc_create_with_strides", 2, numbers[0], FLOAT32, numbers[1])


class Argument(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("memory", ctypes.c_void_p)]


engine = made("dnnl_engine_create", CPU, ctypes.c_size_t(0))
stream = made("dnnl_stream_create", engine, 1)
random = np.random.default_rng(0)
x, w = (random.normal(0, 1, shape).astype(np.float32) for shape in ((1, DEEP), (COLUMNS, DEEP)))
y = np.empty((1, COLUMNS), np.float32)
layouts = (
    layout((1, DEEP), (DEEP, 1)), layout((DEEP, COLUMNS), (1, DEEP)), layout((1, COLUMNS), (COLUMNS, 1)),
)
description = made("dnnl_matmul_primitive_desc_create", engine, *layouts[:2], None, layouts[2], None)
primitive = made("dnnl_primitive_create", description)
arguments = (Argument * 3)()
for slot, number, md, array in zip(arguments, (SRC, WEIGHTS, DST), layouts, (x, w, y)):
    slot.number = number
    slot.memory = made("dnnl_memory_create", md, engine, ctypes.c_void_p(array.ctypes.data)).value
times = []
for _ in range(3000):
    started = time.perf_counter()
    assert lib.dnnl_primitive_execute(primitive, stream, 3, arguments) == 0
    times.append(time.perf_counter() - started)
np.testing.assert_allclose(y, x @ w.T, rtol=1e-3, atol=1e-3)
print(sorted(times)[len(times) // 2] * 1e6)
PROGRAM
library=$(find "$folder/venv" -name "libdnnl.so.3" | head -1)
export LD_LIBRARY_PATH=$(dirname "$library")
run() { "$folder/venv/bin/python" "$folder/product.py" "$library"; }
avx512=$(run)
avx2=$(ONEDNN_MAX_CPU_ISA=AVX2 run)
echo "microseconds: AVX-512 $avx512, limited to AVX2 $avx2"
awk -v a="$avx512" -v b="$avx2" 'BEGIN { exit !(a > 1.4 * b) }'
echo "as described"
