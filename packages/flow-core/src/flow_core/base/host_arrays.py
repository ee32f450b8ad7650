"""Exchange of arrays with other libraries, by ``__array__`` and ``__dlpack__``."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array

_HOST = 1
"""The number of the host in DLPack's enumeration of device types."""


def host_array(value: object) -> Array:
    """Return the values of an array, tensor or nested list, without a copy if possible.

    An object that holds host memory is viewed through ``__array__``, the buffer protocol or
    ``__dlpack__``; an object in device memory is copied to the host.  A tensor that records
    gradients is detached first.

    Raises:
        Exception: a method of the object may raise any exception.

    >>> host_array([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    detach = getattr(value, "detach", None)
    array: Any = detach() if callable(detach) else value
    if hasattr(array, "__dlpack_device__") and not isinstance(array, np.ndarray):
        if array.__dlpack_device__()[0] != _HOST:
            return np.from_dlpack(array, device="cpu")
        if not hasattr(array, "__array__"):
            return np.from_dlpack(array)
    elif not hasattr(array, "__array__") and callable(getattr(array, "numpy", None)):
        array = array.numpy()
    return np.asarray(array)


class HostDLPack:
    """Implements DLPack's protocol for a class that has ``__array__``."""

    __slots__ = ()

    def __dlpack__(self, **options: Any) -> Any:
        """Return a capsule with the values; ``options`` as for numpy arrays."""
        return np.asarray(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device of the capsule, which is always the host."""
        return (_HOST, 0)
