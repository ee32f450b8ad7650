#!/usr/bin/env bash
# zarr 3.1.6: a chunk of complex numbers that are all zero is not written, and reads as the fill value 0, whatever the signs
# of its zeros: -0-0j comes back as 0+0j, and its angle, -pi, as 0.  Negative zeros of float32 are kept.
# `write_empty_chunks=True` keeps those of complex numbers, and tensorstore 0.1.86 keeps both in the same format.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q zarr==3.1.6 tensorstore==0.1.86 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import tempfile

import numpy as np
import tensorstore
import zarr


def kept(dtype, **config):
    """Store negative zeros in an array of two chunks, and read them."""
    array = zarr.create_array(
        tempfile.mkdtemp(), shape=(8,), chunks=(4,), dtype=dtype, fill_value=0, config=config, overwrite=True
    )
    array[:] = np.full(8, complex(-0.0, -0.0) if dtype == "complex64" else -0.0, dtype)
    return array[:]


x = np.full(8, complex(-0.0, -0.0), np.complex64)
grid = {"name": "regular", "configuration": {"chunk_shape": [4]}}
other = tensorstore.open(
    {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": tempfile.mkdtemp() + "/array"},
        "metadata": {"shape": [8], "chunk_grid": grid, "data_type": "complex64", "fill_value": [0.0, 0.0]},
    },
    create=True,
).result()
other.write(x).result()
seen = {
    "written": x, "complex64": kept("complex64"), "float32": kept("float32"),
    "write_empty_chunks": kept("complex64", write_empty_chunks=True), "tensorstore": other.read().result(),
}
print({name: (array[0].item(), round(float(np.angle(array[0])), 4)) for name, array in seen.items()})
negative = {name: bool(np.signbit(array.real).all()) for name, array in seen.items()}
assert negative == {name: name != "complex64" for name in seen}
assert np.angle(seen["complex64"]).tolist() == [0] * 8
EOF
echo "as described"
