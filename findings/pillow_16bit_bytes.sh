#!/usr/bin/env bash
# Pillow 13.0.0: functions that accept images of 16 bits ("I;16", such as depth maps) compute with their bytes.  `rotate` and
# `transform` with BILINEAR or BICUBIC return the low bytes: an image of 30000 is one of 48 in the middle.  `histogram` counts
# the bytes of the left half of each row, so that the mean of ImageStat is that of 48 and 117.  Nothing is refused; NEAREST
# and `resize` are right.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6: 48 and 48 for 30000 after a rotation by 10 degrees, 255 for 65535,
# and 0 for 256; the mean of 30000 without a rotation is 82.5.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pillow==13.0.0 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import numpy as np
from PIL import Image, ImageStat

METHODS = Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC


def middle(number):
    """Return the middle pixel of an image of one number that is rotated by each method, and resized."""
    image = Image.fromarray(np.full((5, 5), number, np.uint16))
    turned = [int(np.asarray(image.rotate(10, resample=method))[2, 2]) for method in METHODS]
    return [*turned, int(np.asarray(image.resize((3, 3), METHODS[1]))[1, 1])]


seen = {number: middle(number) for number in (200, 256, 30000, 65535)}
mean = ImageStat.Stat(Image.fromarray(np.full((4, 4), 30000, np.uint16))).mean
print(seen, mean)
assert seen == {
    200: [200, 200, 200, 200], 256: [256, 0, 0, 256], 30000: [30000, 48, 48, 30000], 65535: [65535, 255, 255, 65535],
}
assert mean == [82.5]
EOF
echo "as described"
