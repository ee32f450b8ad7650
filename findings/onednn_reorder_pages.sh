#!/usr/bin/env bash
# oneDNN 3.2 (onednn-cpu-gomp 2023.2.0): copying a float32 matrix from tiles of 16 x 16 to rows takes at
# least eight times as long if a row is a whole number of pages (1024 columns) as with 1008 or 1040
# columns: addresses that are 4096 bytes apart share a set of the first-level cache.  Gradients of
# convolution weights are in such tiles ("ABcd16b16a"): with 1024 or 2048 channels, as in ResNet-50,
# the copy takes about as long as the gradient itself.  The copy in the other direction is not affected.
#
# Seen on 2026-11-29, Intel Xeon with AMX, loaded by other programs, Python 3.11, one thread, 2048 rows,
# best of 15 in each of four runs: 6.7 to 79 ms with 1024 columns, 0.75 to 0.81 ms with 1040.
set -euo pipefail
grep -q avx512f /proc/cpuinfo || { echo "seen with AVX-512 only: nothing to compare"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" OMP_NUM_THREADS=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onednn-cpu-gomp==2023.2.0 numpy==2.4.6
cat > "$folder/copy.py" << 'PROGRAM'
import ctypes
import sys
import time

import numpy as np

lib = ctypes.CDLL(sys.argv[1])
ROWS, COLUMNS = 2048, int(sys.argv[2])
FLOAT32, CPU, FROM, TO = 3, 1, 1, 17
lib.dnnl_fmt_tag2str.restype = ctypes.c_char_p
TAGS = {lib.dnnl_fmt_tag2str(i).decode(): i for i in range(1, 600)}


def made(function, *arguments):
    """Call a function that returns an object by its first argument."""
    found = ctypes.c_void_p()
    assert getattr(lib, function)(ctypes.byref(found), *arguments) == 0, function
    return found


def layout(tag):
    sizes = (ctypes.c_int64 * 4)(ROWS, COLUMNS, 1, 1)
    return made("dnnl_memory_desc_create_with_tag", 4, sizes, FLOAT32, TAGS[tag])


class Argument(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("memory", ctypes.c_void_p)]


engine = made("dnnl_engine_create", CPU, ctypes.c_size_t(0))
stream = made("dnnl_stream_create", engine, 1)
tiles, rows = layout("ABcd16b16a"), layout("abcd")
description = made("dnnl_reorder_primitive_desc_create", tiles, engine, rows, engine, None)
primitive = made("dnnl_primitive_create", description)
arguments, kept = (Argument * 2)(), []
for slot, number, md in zip(arguments, (FROM, TO), (tiles, rows)):
    kept.append(np.zeros(ROWS * (COLUMNS + 16) + 1024, np.float32))
    start = kept[-1].ctypes.data
    address = ctypes.c_void_p(start + -start % 4096)
    slot.number, slot.memory = number, made("dnnl_memory_create", md, engine, address).value
times = []
for _ in range(15):
    started = time.perf_counter()
    assert lib.dnnl_primitive_execute(primitive, stream, 2, arguments) == 0
    times.append(time.perf_counter() - started)
print(min(times) * 1e3)
PROGRAM
library=$(find "$folder/venv" -name "libdnnl.so.3" | head -1)
export LD_LIBRARY_PATH=$(dirname "$library")
run() { "$folder/venv/bin/python" "$folder/copy.py" "$library" "$1"; }
pages=$(run 1024)
other=$(run 1040)
echo "milliseconds: 1024 columns $pages, 1040 columns $other"
awk -v a="$pages" -v b="$other" 'BEGIN { exit !(a > 3 * b) }'
echo "as described"
