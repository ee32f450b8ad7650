"""Names of array types in annotations."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A numpy array of any shape and element type: ops and kernels take several of each."""

NumpyType: TypeAlias = np.dtype[Any]
"""A numpy element type, whichever."""

Operand: TypeAlias = Array | float
"""An array, or a number that stands for an array of it."""

DeviceArray: TypeAlias = Any
"""An array in device memory, whose type the driver chooses: numpy arrays on the CPU."""
