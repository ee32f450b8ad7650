#!/usr/bin/env bash
# webdataset 1.0.2: the suffixes for which `TarWriter` converts values are not those that `.decode()`
# converts back.  Values of `class`, `count`, `html`, `image` and `tenbin` are written as text, a JPEG
# or tensors, and come back as bytes, without a warning; `cls`, `id`, `png` and `tb`, whose files have
# the same contents, come back as values.  The writer's `pgm` and `pbm` raise KeyError for each image:
# Pillow's name of the format is PPM.
#
# Seen on 2026-11-30, x86-64, Python 3.11, numpy 2.4.6, pillow 13.0.0: types read:
#   cls int, id int, png ndarray, tb list; class, count, html, image, tenbin bytes; pgm, pbm KeyError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q webdataset==1.0.2 numpy==2.4.6 pillow==13.0.0
cd "$folder"
"$folder/venv/bin/python" - << 'END'
import numpy as np
import webdataset

IMAGE = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
VALUES = {
    "cls": 5, "class": 5, "id": 5, "count": 5, "html": "<p>", "png": IMAGE, "image": IMAGE,
    "tb": [np.arange(2)], "tenbin": [np.arange(2)], "pgm": IMAGE[:, :, 0], "pbm": IMAGE[:, :, 0] > 9,
}


def read(suffix, value):
    """Return the type that a value has after it was written and read."""
    try:
        with webdataset.TarWriter("shard.tar") as writer:
            writer.write({"__key__": "sample", suffix: value})
    except KeyError:
        return "KeyError"
    samples = webdataset.WebDataset("shard.tar", shardshuffle=False).decode("rgb8")
    return type(next(iter(samples))[suffix]).__name__


seen = {suffix: read(suffix, value) for suffix, value in VALUES.items()}
print(seen)
assert seen == {
    "cls": "int", "class": "bytes", "id": "int", "count": "bytes", "html": "bytes", "png": "ndarray",
    "image": "bytes", "tb": "list", "tenbin": "bytes", "pgm": "KeyError", "pbm": "KeyError",
}
print("as described")
END
