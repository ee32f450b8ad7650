"""Write and read the files; bfloat16, which numpy lacks, is stored as uint16 and marked by name."""

from pathlib import Path

import ml_dtypes
import numpy as np

from flow_npz.plugin import FILE

BFLOAT16 = ":bfloat16"


def write(path, variables):
    """Write all variables to a file in an empty folder."""
    arrays = {}
    for name, array in variables.items():
        half = array.dtype == ml_dtypes.bfloat16
        arrays[name + BFLOAT16 * half] = array.view(np.uint16) if half else array
    np.savez(Path(path) / FILE, **arrays)


def read(path):
    """Return the variables, keyed by name."""
    path = Path(path)
    with np.load(path / FILE if path.is_dir() else path) as arrays:
        return dict(_typed(name, array) for name, array in arrays.items())


def _typed(name, array):
    if not name.endswith(BFLOAT16):
        return name, array
    return name.removesuffix(BFLOAT16), array.view(ml_dtypes.bfloat16)
