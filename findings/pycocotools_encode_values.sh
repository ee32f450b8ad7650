#!/usr/bin/env bash
# pycocotools 2.0.11: `mask.encode` starts a run wherever two neighboring elements differ, whatever
# their values, and not only between zero and others.  A mask of one value above 0 (1 or 255) is
# right; one of two values above 0, such as a soft mask or the labels of two parts, gets areas of the
# background for areas of the object, without an error.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6: a row 0 255 255 255 0 encodes to 0 1 1 1 0, area 3;
# a row 0 255 7 255 0 encodes to 0 1 0 1 0, area 2; a row 0 255 7 7 0 encodes to 0 1 0 0 1, area 2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pycocotools==2.0.11 numpy==2.4.6
"$folder/venv/bin/python" - << 'END'
import numpy as np
from pycocotools import mask


def encoded(*row):
    runs = mask.encode(np.asfortranarray([row], np.uint8))
    return mask.decode(runs)[0].tolist(), int(mask.area(runs))


seen = [encoded(0, 255, 255, 255, 0), encoded(0, 255, 7, 255, 0), encoded(0, 255, 7, 7, 0)]
print(seen)
assert seen == [([0, 1, 1, 1, 0], 3), ([0, 1, 0, 1, 0], 2), ([0, 1, 0, 0, 1], 2)]
print("as described")
END
