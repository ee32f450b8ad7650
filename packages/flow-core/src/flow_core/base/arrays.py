"""Names of array types in annotations.

``Any`` remains in signatures where numpy's stubs infer no type, as for arithmetic on arrays of any
element type; where a caller or plugin chooses the type, as for settings and results of jobs; and
for values that a function only inspects by attributes.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A numpy array of any shape and element type: ops and kernels take several of each."""

NumpyType: TypeAlias = np.dtype[Any]
"""A numpy element type, whichever."""

Operand: TypeAlias = Array | float
"""An array, or a number that stands for an array of it."""


@runtime_checkable
class DeviceArray(Protocol):
    """An array in device memory, as an arena returns it: all that core requires of it.

    Core reads these attributes and passes the array to its driver, to kernels and to comms; see
    `DriverArray`.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type, as in numpy."""


DriverArray: TypeAlias = Any
"""A `DeviceArray` where a driver's own code receives it: its kernels and comms use the other
attributes of the driver's class."""
