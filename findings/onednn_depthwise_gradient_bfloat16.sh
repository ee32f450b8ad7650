#!/usr/bin/env bash
# oneDNN 3.2 (onednn-cpu-gomp 2023.2.0), CPU with bfloat16 instructions: the gradient by the image of a
# depthwise convolution with stride 2 takes many times as long in bfloat16 as in float32.  In float32,
# the library chooses a loop over channels ("jit_dw:avx512_core"); in bfloat16, also with AMX, a strided
# convolution ("brgconv_strided:avx512_core_amx") whose matrices hold one channel each.  With stride 1 it
# chooses the loop for both types.  MobileNet has such convolutions.  3.3 (onednn 2024.0.0) and 3.13
# (onednn 2026.1.0) choose the same.
#
# Seen on 2026-11-29, Intel Xeon with AMX, Python 3.11, one thread, one image 56 x 56 of 96 channels,
# 3 x 3 and stride 2, best of 30: 53 us in float32, 1970 us in bfloat16.
set -euo pipefail
grep -q avx512_bf16 /proc/cpuinfo || { echo "this processor has no bfloat16: nothing to compare"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" OMP_NUM_THREADS=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onednn-cpu-gomp==2023.2.0 numpy==2.4.6
cat > "$folder/gradient.py" << 'PROGRAM'
import ctypes
import sys
import time

import numpy as np

lib = ctypes.CDLL(sys.argv[1])
CHANNELS, SIZE, HALF = 96, 56, 28
TYPE = {"float32": 3, "bfloat16": 2}[sys.argv[2]]
DIFF_SRC, WEIGHTS, DIFF_DST, CPU, DIRECT, TRAINING = 129, 33, 145, 1, 1, 64
IMPLEMENTATION, WEIGHTS_MD = 8, 131


def made(function, *arguments):
    """Call a function that returns an object by its first argument."""
    found = ctypes.c_void_p()
    assert getattr(lib, function)(ctypes.byref(found), *arguments) == 0, function
    return found


def numbers(*values):
    return (ctypes.c_int64 * len(values))(*values)


def image(size):
    """Describe an image whose channels are adjacent in memory."""
    strides = numbers(size * size * CHANNELS, 1, size * CHANNELS, CHANNELS)
    sizes = numbers(1, CHANNELS, size, size)
    return made("dnnl_memory_desc_create_with_strides", 4, sizes, TYPE, strides)


class Argument(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("memory", ctypes.c_void_p)]


lib.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
lib.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
engine = made("dnnl_engine_create", CPU, ctypes.c_size_t(0))
stream = made("dnnl_stream_create", engine, 1)
x, y = image(SIZE), image(HALF)
filters = numbers(CHANNELS, 1, 1, 3, 3)
weights = made("dnnl_memory_desc_create_with_tag", 5, filters, TYPE, 1)
geometry = numbers(2, 2), numbers(0, 0), numbers(1, 1), numbers(0, 0)
forward = made(
    "dnnl_convolution_forward_primitive_desc_create", engine, TRAINING, DIRECT, x, weights, None, y,
    *geometry, None,
)
description = made(
    "dnnl_convolution_backward_data_primitive_desc_create", engine, DIRECT, x, weights, y,
    *geometry, forward, None,
)
name = ctypes.c_char_p()
lib.dnnl_primitive_desc_query(description, IMPLEMENTATION, 0, ctypes.byref(name))
print(name.value.decode(), file=sys.stderr)
primitive = made("dnnl_primitive_create", description)
chosen = ctypes.c_void_p(lib.dnnl_primitive_desc_query_md(description, WEIGHTS_MD, 0))
arguments, kept = (Argument * 3)(), []
for slot, number, md in zip(arguments, (DIFF_SRC, WEIGHTS, DIFF_DST), (x, chosen, y)):
    kept.append(np.zeros(lib.dnnl_memory_desc_get_size(md), np.uint8))
    address = ctypes.c_void_p(kept[-1].ctypes.data)
    slot.number, slot.memory = number, made("dnnl_memory_create", md, engine, address).value
times = []
for _ in range(30):
    started = time.perf_counter()
    assert lib.dnnl_primitive_execute(primitive, stream, 3, arguments) == 0
    times.append(time.perf_counter() - started)
print(min(times) * 1e6)
PROGRAM
library=$(find "$folder/venv" -name "libdnnl.so.3" | head -1)
export LD_LIBRARY_PATH=$(dirname "$library")
run() { "$folder/venv/bin/python" "$folder/gradient.py" "$library" "$1"; }
wide=$(run float32)
half=$(run bfloat16)
echo "microseconds: float32 $wide, bfloat16 $half"
awk -v a="$half" -v b="$wide" 'BEGIN { exit !(a > 5 * b) }'
echo "as described"
