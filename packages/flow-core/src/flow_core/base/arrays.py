"""Names for array types, for use in annotations.

``Any`` remains in signatures where numpy's stubs infer no type, such as for arithmetic on arrays of
any element type; where a caller or plugin chooses the type, such as for settings and results of
jobs; and for values of which a function only inspects attributes.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A numpy array of any shape and element type, as ops and kernels accept several of each."""

NumpyType: TypeAlias = np.dtype[Any]
"""Any numpy element type."""

Operand: TypeAlias = Array | float
"""An array, or a number that stands for an array filled with it."""


@runtime_checkable
class DeviceArray(Protocol):
    """An array in device memory: the attributes that core requires of an arena's arrays.

    Core reads only these attributes, and passes the array to its driver, to kernels and to
    communicators (comms); see `DriverArray`.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type, as in numpy."""


DriverArray: TypeAlias = Any
"""A `DeviceArray` that is passed to code which knows the array class of the driver: the driver, its
kernels and its comms, which use the other attributes of that class."""
