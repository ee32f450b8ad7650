#!/usr/bin/env bash
# numcodecs 0.16.6: `BitRound` adds to the bits of all numbers, also to those of NaN: a NaN whose fraction is all ones,
# as in memory that is filled with 0xff, becomes 0.0 or -0.0, and one with a small fraction infinity.  The largest
# numbers become infinity, and arrays of the other byte order are refused with a KeyError.
#
# Seen on 2026-11-30, x86-64, Python 3.11, for three bits: 0xffffffff becomes 0.0, 0x7fffffff -0.0, 0x7f800001 inf,
# the largest float32 inf; numpy's own NaN, 0x7fc00000, is kept; KeyError: '>f4'.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numcodecs==0.16.6 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
from numcodecs import BitRound

codec = BitRound(keepbits=3)
given = np.array([0xFFFFFFFF, 0x7FFFFFFF, 0x7F800001, 0x7FC00000, 0x7F7FFFFF], np.uint32)
array = given.view(np.float32)
found = codec.decode(codec.encode(array)).view(np.uint32)
for before, after in zip(given, found):
    print(f"{before:#010x} {before.view(np.float32)} -> {after:#010x} {after.view(np.float32)}")
assert np.isnan(array[:4]).all()
assert found.tolist() == [0, 0x80000000, 0x7F800000, 0x7FC00000, 0x7F800000]
try:
    codec.encode(np.ones(3, ">f4"))
    raise AssertionError("the other byte order is accepted")
except KeyError as error:
    print(f"KeyError: {error}")
    assert str(error) == "'>f4'"
print("as described")
EOF
